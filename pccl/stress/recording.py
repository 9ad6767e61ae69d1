"""What the log of a run says, to repeat the run and to compare the outcomes. Its events:

start     the options, the versions, the schedule        formed    all peers have come together: `t` begins anew
fault     one that was applied, with the step it met
process   one was started        gone      one has ended        report    what one told, without the ops of a step
sample    throughput and memory of the last second             violation a claim that did not hold        end    the outcome
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pccl.stress.schedule import Fault


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a log says of a run: enough to repeat it, and to compare the outcomes."""

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
