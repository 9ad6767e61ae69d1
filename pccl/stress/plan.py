"""The faults of `pccl stress --program`: which copy, when and how, drawn from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

FAULTS = ("kill", "stop", "restart", "cut")
SHORT, LONG = (0.1, 0.4), (1.3, 1.6)
"""How long a copy is stopped or cut off, in heartbeat limits: after a long fault the others have expelled it."""

SETTLE_SECONDS = 1.0
"""After which a copy that a long fault has expelled has ended, if it ends."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. A `restart` replaces a copy that was killed before, or kills the copy first."""

    at: float  # seconds since all copies made progress
    kind: str  # one of FAULTS
    place: int  # of the copy
    how: str = ""  # of a cut: reset, stall or drop
    seconds: float = 0.0  # how long a stop or a cut lasts
    expels: bool = False  # it lasts longer than the heartbeat limit

    def __str__(self) -> str:
        how = f" ({self.how})" if self.how else ""
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{how} of copy {self.place}{lasting}"


def read_faults(text: str) -> tuple[str, ...]:
    """Reads a list such as "kill,stop". ValueError: it names an unknown fault, or none."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        what = f"{unknown[0]!r} is not a fault" if unknown else "no fault given"
        raise ValueError(f"{what}; choose from {', '.join(FAULTS)}")
    return names


def plan_faults(
    *, seed: int, members: int, seconds: float, every: float, kinds: Iterable[str], heartbeat_limit: float
) -> list[Fault]:
    """Returns the faults of a run, in order. The same arguments give the same faults.

    The time between two faults is 0.5 to 1.5 times `every` seconds. `kill` leaves two copies, or one of two.
    """
    random_ = random.Random(f"pccl stress {seed}")
    kinds = sorted(kinds)
    living = list(range(members))
    away: dict[int, float] = {}  # places without a copy that the others know, and since when
    least = min(2, members - 1)
    faults: list[Fault] = []
    at = 0.0
    pending = random_.sample(kinds, len(kinds))  # each kind comes once before any kind comes twice
    while True:
        at += random_.uniform(0.5, 1.5) * every
        if at >= seconds:
            return faults
        if not pending:
            pending = random_.sample(kinds, len(kinds))
        kind = pending.pop()
        if kind == "kill" and len(living) <= least:
            kind = "restart" if away and "restart" in kinds else next((one for one in kinds if one in ("stop", "cut")), "")
        if not kind:
            return faults  # nothing is left that may be killed
        empty = [place for place, since in away.items() if since < at]
        place = random_.choice(empty if kind == "restart" and empty else living)
        spare = len(living) > least
        how = random_.choice(("reset", "stall", "drop")[: 3 if spare else 2]) if kind == "cut" else ""
        long = how == "drop" or (kind == "stop" and spare and random_.random() < 0.5)
        lasts = 0.0 if kind in ("kill", "restart") or how == "reset" else random_.uniform(*(LONG if long else SHORT))
        faults.append(
            Fault(at=round(at, 3), kind=kind, place=place, how=how, seconds=round(lasts * heartbeat_limit, 3), expels=long)
        )
        if kind == "kill" or long:
            living.remove(place)
            away[place] = at + faults[-1].seconds + SETTLE_SECONDS
        elif kind == "restart" and away.pop(place, None) is not None:
            living.append(place)
