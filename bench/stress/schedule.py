"""What is done to a run, and when: drawn from a seed before the run begins. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from stress.lab.reports import Record

KINDS = ("kill", "stop", "cut", "delay", "join", "master")

DEFAULT_RATES: Mapping[str, float] = {"kill": 3, "stop": 1, "cut": 2, "delay": 2, "join": 1, "master": 1}

STOP_LIMITS = (1.3, 2.5)
"""A stop lasts that many heartbeat limits: the peer is given up, and wakes later."""
DELAY_LIMITS = (0.02, 0.5)
"""A delay lasts that many heartbeat limits: too short to be given up for."""
BACK_SECONDS = (0.0, 1.5)
"""How long after a death a new process takes the place."""
JOIN_SECONDS = (0.05, 12.0)
"""How long an additional peer stays, from its start."""
MASTER_BACK_SECONDS = (0.0, 1.0)
STANDBY_SECONDS = (3.0, 12.0)
"""How long every other master stays away where there is a standby: it must take over."""
CUTS = ("one reset", "one shutdown", "one half", "all reset", "all shutdown")
"""Which of the peer's connections to other peers, and how: an RST, or the end of both directions, or of its own."""
JOIN_ENDS = ("leave", "kill")
KILLS = ("", "in retry")
"""When: at once, or when the peer is in an op in retry mode, which the others then have to go on with; see `lateness`."""
LATE_SECONDS = 0.05
"""At most, after such an op has begun: some of its segments may have been committed."""

FIRST_SECONDS = 0.3
"""No fault comes earlier after the run has formed."""


@dataclass(frozen=True, kw_only=True)
class Fault(Record):
    """One thing that is done to one slot, the place of a peer."""

    at: float  # seconds since all peers had come together
    kind: str  # of KINDS
    slot: int = 0  # whose process it meets; additional peers have slots of their own
    seconds: float = 0.0  # how long a stop or delay lasts, and how long an additional peer lives
    back: float = 0.0  # seconds until a new process takes the place of a killed one, or the master comes back
    how: str = ""  # of CUTS, JOIN_ENDS or KILLS
    step: int | None = None  # of the run when it was applied; None: not applied yet

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """Opposite of to_fields; ValueError for what is no fault. What it does not know, it leaves out."""
        names = {field.name for field in fields(cls)}
        fault = super().from_fields({name: value for name, value in given.items() if name in names})
        numbers = (fault.at, fault.slot, fault.seconds, fault.back)
        if fault.kind not in KINDS or not all(isinstance(number, (int, float)) and number >= 0 for number in numbers):
            raise ValueError(f"not a fault: {given}")
        return fault


def read_rates(text: str) -> dict[str, float]:
    """Weights by kind, from kill=3,stop=1; kinds that are not named do not come. ValueError says what is wrong."""
    rates: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, equals, number = part.partition("=")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of fault: there are {', '.join(KINDS)}")
        if kind in rates:
            raise ValueError(f"{kind} is given twice")
        try:
            rates[kind] = float(number) if equals else 1.0
        except ValueError:
            raise ValueError(f"{number!r} is no number, in {part!r}") from None
        if not 0 <= rates[kind] < math.inf:
            raise ValueError(f"{part!r}: a rate is 0 or more")
    return {kind: rate for kind, rate in rates.items() if rate > 0}


def rates_text(rates: Mapping[str, float]) -> str:
    """Opposite of read_rates."""
    return ",".join(f"{kind}={rate:g}" for kind, rate in rates.items())


def spared(seed: int, peers: int, at: float, seconds: float) -> int:
    """The slot that is neither killed nor stopped at this time: another one in each half of the run.

    Somebody keeps what the group holds, and lives long enough for a leak to show.
    """
    first, second = random.Random(f"spared {seed}").sample(range(peers), 2)
    return first if at < seconds / 2 else second


def draw(
    *,
    seed: int,
    peers: int,
    seconds: float,
    every: float,
    rates: Mapping[str, float],
    heartbeat_limit: float,
    standbys: int = 0,
) -> list[Fault]:
    """The faults of a run of that many seconds, one every `every` seconds in the mean, at random times of their own."""
    rng = random.Random(f"faults {seed}")
    kinds = [kind for kind in KINDS if rates.get(kind, 0) > 0]
    faults: list[Fault] = []
    at = FIRST_SECONDS + rng.expovariate(1 / every) if kinds else seconds
    extra = peers
    while at < seconds:
        kind = rng.choices(kinds, [rates[kind] for kind in kinds])[0]
        safe = spared(seed, peers, at, seconds)
        slot = rng.choice([slot for slot in range(peers) if slot != safe or kind not in ("kill", "stop")])
        if kind == "join":
            slot, extra = extra, extra + 1
        elif kind == "master":
            slot = 0
        fault = _fault(rng, round(at, 4), kind, slot, heartbeat_limit)
        if kind == "master" and standbys and rng.random() < 0.5:
            fault = replace(fault, back=round(rng.uniform(*STANDBY_SECONDS), 4))
        faults.append(fault)
        at += rng.expovariate(1 / every)
    return faults


def lateness(fault: Fault) -> float:
    """Seconds from the beginning of an op to a kill in it: none for half of them. It is not drawn: seeds keep their schedules."""
    return LATE_SECONDS * max(0.0, 2 * fault.back / BACK_SECONDS[1] - 1)


def _fault(rng: random.Random, at: float, kind: str, slot: int, heartbeat_limit: float) -> Fault:
    def between(bounds: tuple[float, float], unit: float = 1.0) -> float:
        return round(rng.uniform(*bounds) * unit, 4)

    match kind:
        case "kill":
            how = KILLS[round(at * 1e4) % len(KILLS)]  # a random bit, too: seeds of old keep their schedules
            return Fault(at=at, kind=kind, slot=slot, back=between(BACK_SECONDS), how=how)
        case "stop":
            return Fault(at=at, kind=kind, slot=slot, seconds=between(STOP_LIMITS, heartbeat_limit))
        case "delay":
            return Fault(at=at, kind=kind, slot=slot, seconds=between(DELAY_LIMITS, heartbeat_limit))
        case "cut":
            return Fault(at=at, kind=kind, slot=slot, how=rng.choice(CUTS))
        case "join":
            # short lives are as likely as long ones: they end while they are being admitted
            low, high = (math.log(bound) for bound in JOIN_SECONDS)
            return Fault(
                at=at, kind=kind, slot=slot, seconds=round(math.exp(rng.uniform(low, high)), 4), how=rng.choice(JOIN_ENDS)
            )
        case _:
            return Fault(at=at, kind=kind, back=between(MASTER_BACK_SECONDS))
