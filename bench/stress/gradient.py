"""Pseudo-gradients whose average tells who is in it, also after a codec has rounded it. Pure.

Every element belongs to one code, in turn. The pseudo-gradient of a process is a pattern, numbers of magnitude 0.75 to 1, in the
elements of its own code, and 0 in all others. The pattern differs from round to round. So each element of a weighted average is
the pattern times (weight of its code) / (sum of the weights of all contributors), or 0 if that code is not in it. A codec rounds
the sum to some share of the largest number in a block (`Slack`), and so the fit with the whole pattern decides who is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stress.content import CODES, PERIOD, Array, Reading

LEAST_COUNT = 128 * CODES
"""Elements that are enough for a fit."""
LEAST_MAGNITUDE = 0.75
ROUND_SHIFT = 1009
MOST_WEIGHT = 3


@dataclass(frozen=True)
class Slack:
    """How far a result may be from the exact one."""

    element: float = 0.0  # of each element, as a share of the largest contribution to the sum
    fit: float = 1e-3  # of the share that a whole contribution has in the result
    rounding: float = 0.0  # of each element of the average, by the arithmetic in fp32


class Gradient:
    """The pseudo-gradients of all processes, for a model of `size` parameters."""

    def __init__(self, size: int, *, weighted: bool) -> None:
        self.size = size
        self._weighted = weighted
        rng = np.random.default_rng(PERIOD)
        self._pattern = (rng.uniform(LEAST_MAGNITUDE, 1, PERIOD) * rng.choice([-1, 1], PERIOD)).astype(np.float32)

    def pattern(self, number: int) -> Array:
        """Of a round: fp32 of shape (size,)."""
        return np.resize(np.roll(self._pattern, -(number * ROUND_SHIFT % PERIOD)), self.size)

    def of(self, code: int, number: int) -> Array:
        """What the process with this code contributes in a round: fp32 of shape (size,)."""
        made = np.zeros(self.size, np.float32)
        made[code::CODES] = self.pattern(number)[code::CODES]
        return made

    def weight(self, code: int) -> float:
        """How much it counts. In all rounds alike: what a codec left over from one comes with its weight in the next."""
        return float(1 + code % MOST_WEIGHT) if self._weighted else 1.0

    def read(self, average: Array, number: int, slack: Slack, start: int = 0) -> Reading:
        """Who is in an average of a round, or in the piece of one that begins at `start`."""
        pattern = self.pattern(number)[start : start + average.size].astype(np.float64)
        weights = np.array([self.weight(code) for code in range(CODES)])
        products, squares = (_by_code(values, start).sum(axis=0) for values in (average * pattern, pattern * pattern))
        shares = products / squares / weights  # 1 / (sum of weights), or 0
        present = shares > max(shares.max() / 2, 1 / (2 * CODES * MOST_WEIGHT))
        codes = [int(code) for code in np.flatnonzero(present)]
        who = sum(1 << code for code in codes)
        total = float(weights[present].sum()) or 1.0
        for code in codes:
            if abs(shares[code] * total - 1) > slack.fit:
                return Reading(who, f"{shares[code] * total:.4f} times what code {code} gave is in it, with codes {codes}")
        parts = np.where(present, weights, 0) / total
        wanted = (_by_code(pattern, start) * parts).reshape(-1)[start % CODES :][: average.size]
        wrong = np.flatnonzero(~(np.abs(average - wanted) <= slack.element * parts.max() + slack.rounding))
        if wrong.size:
            place = int(wrong[0])
            text = f"element {place} of {average.size} is {average[place]}, not {wanted[place]} with codes {codes}"
            return Reading(who, f"{text}; {wrong.size} are wrong")
        return Reading(who)


def _by_code(values: Array, start: int) -> Array:
    """A column for each code; what lies before and after the piece is 0."""
    before = start % CODES
    return np.pad(values, (before, -(before + values.size) % CODES)).reshape(-1, CODES)
