"""What the user asked for, checked; and what the log of an earlier run says, to repeat it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pccl.stress import schedule
from pccl.stress.backends import BACKENDS
from pccl.stress.schedule import Fault
from pccl.stress.workload import MIXED, TrainingPlan, plan_training

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
        """What a log says of them: all that is needed to repeat the run."""
        fields = {name: value for name, value in vars(self).items() if name not in ("out", "log")}
        return fields | {"rates": dict(self.rates)}


# ---- the log of an earlier run ----


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a log says of a run: enough to repeat it, and to compare the outcomes. Its events:

    start     the options, the versions, the schedule        formed    all peers have come together: `t` begins anew
    fault     one that was applied, with the step it met
    process   one was started        gone      one has ended        report    what one told, without the ops of a step
    sample    throughput and memory of the last second             violation a claim that did not hold        end    the outcome
    """

    options: Mapping[str, Any]
    faults: list[Fault]  # those that were planned, with the step in which each one came, if it did
    outcome: Mapping[str, Any] | None  # None: it was cut off

    @classmethod
    def read(cls, path: Path) -> Recording:
        """ValueError says what is wrong with the file."""
        options: Mapping[str, Any] | None = None
        planned: list[Fault] = []
        applied: list[Fault] = []
        outcome = None
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    event = json.loads(line)
                    match event["event"]:
                        case "start":
                            options = event["options"]
                            planned = [Fault.from_fields(fault) for fault in event["faults"]]
                        case "fault":
                            applied.append(Fault.from_fields(event["fault"]))
                        case "end":
                            outcome = event["outcome"]
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"line {number} is no event of a stress run: {error}") from None
        if options is None:
            raise ValueError("it is no log of a stress run: nothing in it says how the run began")
        steps = {(fault.at, fault.kind, fault.slot): fault.step for fault in applied}
        faults = [replace(fault, step=steps.get((fault.at, fault.kind, fault.slot))) for fault in planned]
        return cls(options=options, faults=faults, outcome=outcome)


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """What a repeated run found that the recorded one did not, or the other way round. Empty: the same outcome."""
    if before is None or before.get("cut_short"):
        return ["the recorded run was cut off before its end: there is no outcome to compare with"]
    found = []
    if before["passed"] != now["passed"]:
        words = {True: "passed", False: "failed"}
        found.append(f"the recorded run {words[before['passed']]}, this one {words[now['passed']]}")
    old, new = set(before["broken"]), set(now["broken"])
    found += [f"only the recorded run broke {claim!r}" for claim in sorted(old - new)]
    found += [f"only this run broke {claim!r}" for claim in sorted(new - old)]
    return found
