"""What the user asked for, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stress import schedule
from stress.backends import BACKENDS
from stress.workload import MIXED, TrainingPlan, plan_training

MOST_PEERS = 12
MOST_STANDBYS = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """A run."""

    peers: int
    seconds: float
    seed: int
    elements: int  # of the largest op
    every: float  # seconds between faults, in the mean
    rates: Mapping[str, float]  # weights by kind of fault
    beat: float  # the heartbeat limit in seconds
    backend: str
    baseline: float  # seconds without faults, half before the run and half after; 0: none
    keep_going: bool  # after the first violation too
    out: Path
    log: Path
    workload: str = MIXED  # of WORKLOADS
    standbys: int = 0  # masters beside the one that serves
    plant: str = ""  # a deliberate fault, for tests of the harness

    @property
    def recovery(self) -> float:
        """Seconds for which pccl's peers wait for a lost master; 0: they do not."""
        return 6 * self.beat if BACKENDS[self.backend].own else 0.0

    @property
    def bound(self) -> float:
        """Seconds that one call may take.

        A silent peer is given up after one heartbeat limit; while the others wait, a second one may fall silent, and a newcomer
        may have to be left out; the rest is for a machine that is busy with other work. Where masters die, half of the members
        may die with one: then the others wait for as long as it may be awaited.
        """
        return 4 * self.beat + 6 + (self.recovery if self.rates.get("master") else 0.0)

    def faults(self) -> list[schedule.Fault]:
        """The schedule that belongs to these options."""
        return schedule.draw(
            seed=self.seed,
            peers=self.peers,
            seconds=self.seconds,
            every=self.every,
            rates=self.rates,
            heartbeat_limit=self.beat,
            standbys=self.standbys,
        )

    def training(self) -> TrainingPlan | None:
        """How the peers train, if that is what they do."""
        return None if self.workload == MIXED else plan_training(self.workload, self.seed, self.elements)

    def undisturbed(self) -> Options:
        """The same run without faults, half as long as the baseline is to be."""
        return replace(self, seconds=self.baseline / 2, rates={})

    def to_fields(self) -> dict[str, Any]:
        """As JSON, for the log."""
        fields = {name: value for name, value in vars(self).items() if name not in ("out", "log")}
        return fields | {"rates": dict(self.rates)}
