"""Judges a run of `pccl stress --program` by exit codes, progress lines and state hashes. Pure: callers say what happens."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pccl._host.processes import how_ended

LINE_MOST = 4096
"""Bytes of a line that are searched."""

START_FACTOR = 3
"""How much longer a copy may take to its first progress line: it has to import its packages."""

SHOWN = 160
"""Characters of a line that are quoted."""

STEPS_MOST = 1 << 16
"""Steps whose hashes are kept."""

CLAIMS = {
    "exit": "every copy that was not killed exits with status 0",
    "progress": "every copy makes progress, also after each fault",
    "state": "all copies that print a hash for a step print the same",
    "faults": "at least one fault was injected",
}


@dataclass(eq=False, kw_only=True)
class Copy:
    """One process of the program."""

    place: int
    life: int  # 0: one of the first; else how many were there before it
    began: float
    moved: float  # when it made progress last, or was released from a fault
    step: int | None = None  # the largest number of a progress line
    state: tuple[int, str] | None = None  # step and hash that no later hash has confirmed yet
    line: str = ""  # the last one
    lines: int = 0
    held: int = 0  # faults that keep it from progress
    killed: bool = False  # by a fault
    harmed: bool = False  # by a fault that expels it: it may fail
    asked: bool = False  # to end, by SIGTERM
    ended: float | None = None
    status: int | None = None

    def __str__(self) -> str:
        return f"copy {self.place}" + (f" (replacement {self.life})" if self.life else "")

    def quote(self) -> str:
        """The last line, for a message."""
        if not self.lines:
            return "it has printed nothing"
        return f"its last line was {self.line[:SHOWN]!r}"


@dataclass(frozen=True)
class Violation:
    """Something that does not hold."""

    claim: str
    detail: str


class Verdict:
    """Takes what happens. `patience` is how many seconds a copy may make no progress, once it has begun."""

    def __init__(self, progress: re.Pattern[str], state: re.Pattern[str], patience: float) -> None:
        self._progress, self._state, self._patience = progress, state, patience
        self.copies: list[Copy] = []
        self.violations: list[Violation] = []
        self.notes: list[str] = []
        self.compared = 0
        """Steps for which two copies or more have printed a hash."""
        self.states = 0
        self.stateless = 0
        """Hashes printed before any progress line, which belong to no step."""
        self.fault = ""
        """The last fault, with its time, for messages."""
        self._steps: dict[int, dict[str, list[str]]] = {}  # names of copies by step and hash

    @property
    def held(self) -> bool:
        """Whether all claims hold so far."""
        return not self.violations

    def started(self, place: int, life: int, now: float) -> Copy:
        """A process of the program was started."""
        copy = Copy(place=place, life=life, began=now, moved=now)
        self.copies.append(copy)
        return copy

    def line(self, copy: Copy, raw: bytes, now: float) -> None:
        """A copy has printed a line, of any bytes."""
        copy.lines += 1
        copy.line = raw[:LINE_MOST].decode(errors="replace")
        if found := self._progress.search(copy.line):
            step = _number(found, "step") if found.re.groups else (copy.step or 0) + 1
            if step is not None and (copy.step is None or step > copy.step):
                copy.step, copy.moved = step, now
        if found := self._state.search(copy.line):
            self._take_state(copy, found)

    def released(self, copy: Copy, now: float) -> None:
        """A fault that kept it from progress is over."""
        copy.held -= 1
        copy.moved = now

    def ended(self, copy: Copy, status: int, now: float) -> None:
        """A copy has ended."""
        copy.ended, copy.status = now, status
        if copy.killed:
            copy.state = None  # the others may have repeated its last step without it
            return
        if status == 0:
            self._confirm(copy)
            if copy.step is None:
                self.violate("progress", f"{copy} ended with status 0 and without a progress line; {copy.quote()}")
            return
        copy.state = None
        after = f"{how_ended(status)} {now - copy.began:.1f} s after its start"
        if copy.asked and status in (-15, 143):
            return
        if copy.harmed:
            self.notes.append(f"{copy} {after}; a fault had cut it off for longer than the heartbeat limit")
        elif copy.life and copy.step is None and self._is_over():
            self.notes.append(f"{copy} {after}; it came when the others had finished")
        else:
            self.violate("exit", f"{copy} {after}{self._since()}; {copy.quote()}")

    def look(self, now: float) -> None:
        """Looks for copies that make no progress."""
        for copy in self.running():
            silent = now - copy.moved
            if copy.held or copy.asked or copy.killed or silent <= self._patience * (START_FACTOR if copy.step is None else 1):
                continue
            if copy.life and copy.step is None and self._is_over():
                continue
            at = "no progress line" if copy.step is None else f"no progress after step {copy.step}"
            self.violate("progress", f"{copy} has made {at} for {silent:.1f} s{self._since()}; {copy.quote()}")

    def too_late(self) -> list[Copy]:
        """Returns replacements that wait for a run which is over, if no other copy is running."""
        running = self.running()
        late = [copy for copy in running if copy.life and copy.step is None]
        return late if late == running and self._is_over() else []

    def running(self) -> list[Copy]:
        """Returns the copies that have not ended."""
        return [copy for copy in self.copies if copy.ended is None]

    def violate(self, claim: str, detail: str) -> None:
        """Adds a violation."""
        self.violations.append(Violation(claim, detail))

    def finish(self, applied: int) -> None:
        """Judges what only the whole run shows: `applied` faults were injected."""
        if self.held and not any(copy.status == 0 or copy.asked for copy in self.copies):
            self.violate("exit", "no copy ended with status 0")
        if self.held and not applied:
            self.violate("faults", "the program ended before the first fault; let it run longer, or set a smaller --every")
        if not self.states and not self.stateless:
            self.notes.append("no copy printed a state hash, so states were not compared")
        elif not self.compared:
            self.notes.append("no two copies printed a state hash for the same step, so states were not compared")

    def details(self) -> dict[str, str]:
        """What was found for each claim that holds."""
        ends = Counter("killed" if copy.killed else str(copy.status) for copy in self.copies if copy.ended is not None)
        steps = [copy.step for copy in self.copies if copy.step is not None]
        return {
            "exit": ", ".join(f"{count} x {status}" for status, count in sorted(ends.items())),
            "progress": f"up to step {max(steps)}" if steps else "no progress line",
            "state": f"{self.compared} steps compared",
            "faults": "",
        }

    def judged(self) -> dict[str, bool]:
        """Whether a claim that holds had something to judge."""
        stepped = any(copy.step is not None for copy in self.copies)
        return {"exit": True, "progress": stepped, "state": self.compared > 0, "faults": True}

    def _is_over(self) -> bool:
        return any(copy.status == 0 for copy in self.copies)

    def _since(self) -> str:
        return f"; the last fault was {self.fault}" if self.fault else "; no fault had been injected"

    def _take_state(self, copy: Copy, found: re.Match[str]) -> None:
        named = found.re.groupindex
        value = (found["hash"] if "hash" in named else found[1] if found.re.groups else found[0]) or ""
        step = _number(found, "step") if "step" in named else copy.step
        if step is None:
            self.stateless += 1
            return
        if copy.state != (step, value):
            self._confirm(copy)
        self.states += 1
        copy.state = (step, value)

    def _confirm(self, copy: Copy) -> None:
        """Compares a hash once the copy has gone on: the last one of a copy that is killed need not be that of the others."""
        if copy.state is None:
            return
        (number, value), copy.state = copy.state, None
        if len(self._steps) >= STEPS_MOST:
            self._steps = dict(sorted(self._steps.items())[STEPS_MOST // 2 :])
        printed = self._steps.setdefault(number, {})
        printed.setdefault(value, []).append(str(copy))
        self.compared += sum(map(len, printed.values())) == 2
        if len(printed) > 1:
            parted = sorted(printed.items(), key=lambda item: len(item[1]))
            texts = [f"{', '.join(copies)} printed {value}" for value, copies in parted]
            self.violate("state", f"step {number}: {'; '.join(texts)}{self._since()}; {copy.quote()}")


def _number(found: re.Match[str], name: str) -> int | None:
    text = found[name] if name in found.re.groupindex else found[1]
    try:
        return int(text)
    except (TypeError, ValueError):
        return None
