"""What a run must hold to, and whether it did. Pure: it is fed what happened, in order, and never asks.

It believes no process's conclusions, only what it can compare: who is in a sum by the sum's own content, on every survivor.
All that report success of an op must agree, with one exception. A peer that is stopped for too long may wake, find all inputs of
an op there, and succeed in what the others have long made again without it; and so may one that then dies. It must be the last
thing that it does as a member, and the others' result must not have it. So the ops of a step are compared once the next report of
the process shows whether it was still a member, or its end that it was not.

Where peers train by pccl.diloco, a step is an outer step, and a line is a run from its first outer step on. A member makes every
one of them, one after another, with the same state as all others; so does a newcomer from where it came in.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stress.content import codes_in
from stress.lab.processes import Usage
from stress.reports import Accepted, Ended, Expelled, Flaw, OpDone, Range, Report, Stepped

CLAIMS = {
    "sum": "every result is the exact sum of whole inputs, each once; where it is compressed, as exact as that is",
    "contributors": "who is in a result is who took part, as many as the library says, and nobody who was gone",
    "agreement": "all survivors got the same bytes in the same ops, after as many tries",
    "parity": "after every sync all members hold the same bytes",
    "input": "failed ops leave their input as it was",
    "error": "nothing fails in a way that is not documented",
    "expelled": "nobody is expelled without a cause",
    "crash": "no process ends by itself",
    "hang": "nobody stands still longer than the bound",
    "growth": "memory and descriptors do not grow",
    "end": "at the end all places are taken, and all leave in the same step with the same state",
}

KEEP_SECONDS = 120.0
"""How long what was seen of a step is kept to be compared with what others see of it."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A claim that did not hold."""

    claim: str  # a key of CLAIMS
    at: float  # seconds of the monotonic clock
    detail: str


@dataclass(kw_only=True)
class Worker:
    """A process, as the judge sees it."""

    serial: int
    slot: int
    code: int
    began: float
    ended: float | None = None
    joined: tuple[int, int] = (-1, -1)  # line and step from which it began to train
    last: tuple[int, int] = (-1, -1)  # line and step of its last report, or `joined`
    unconfirmed: Stepped | None = None  # that report, until a later one shows that it was a member
    stops: list[tuple[float, float]] = field(default_factory=list)  # from, to
    cuts: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    """Whom a name of the library belongs to."""

    code: int
    joined: tuple[int, int]  # as that of the Worker then


@dataclass(frozen=True)
class _Seen:
    """What a process reported of an op."""

    by: Worker
    op: OpDone
    survived: bool  # the step, as a member


class Judge:
    """`violations` grows as things happen.

    `delay`: steps are outer steps, which apply what the members had learned so many outer steps earlier than the last one.
    """

    def __init__(self, *, heartbeat_limit: float, bound: float, recovery: float = 0.0, delay: int | None = None) -> None:
        self._limit = heartbeat_limit
        self._bound = bound
        self._recovery = recovery  # seconds for which peers wait for a lost master; 0: they do not
        self._trains = delay is not None
        self._delay = delay or 0
        self.violations: list[Violation] = []
        self._workers: dict[int, Worker] = {}
        self._by_code: dict[int, Worker] = {}
        self._members: dict[str, _Member] = {}  # by the library's names
        self._unnamed: list[tuple[str, tuple[int, int, int], float, Range]] = []  # ranges with names that nobody has yet
        self._ops: dict[tuple[int, int, int], list[_Seen]] = {}
        self._states: dict[tuple[int, int], tuple[Worker, float, str]] = {}
        self._ends: dict[int, Ended] = {}
        self._masters_died: list[float] = []
        self._swept = 0.0

    # ---- what is done to the processes ----

    def started(self, serial: int, slot: int, code: int, at: float) -> None:
        """A process was started, with a code that no living one has."""
        worker = Worker(serial=serial, slot=slot, code=code, began=at)
        self._workers[serial] = self._by_code[code] = worker

    def stopped(self, serial: int, at: float, until: float) -> None:
        """It stands still for that time."""
        self._workers[serial].stops.append((at, until))

    def cut(self, serial: int, at: float) -> None:
        """Some of its connections were broken."""
        self._workers[serial].cuts.append(at)

    def master_died(self, at: float) -> None:
        """Then whoever is told so may lose the membership."""
        self._masters_died.append(at)

    def master_ended(self, at: float, detail: str) -> None:
        """Without having been told to."""
        self._violate("crash", at, detail)

    def gone(self, serial: int, at: float, status: int, *, expected: bool) -> None:
        """The process has ended."""
        worker = self._workers[serial]
        worker.ended = at
        self._compare(worker, survived=False)
        if not expected:
            self._violate("crash", at, f"{_name(worker)} ended by itself with status {status}")

    def hung(self, serial: int, at: float, where: str, seconds: float, all_places: str) -> None:
        """The process made no progress for that long."""
        name = _name(self._workers[serial])
        self._violate("hang", at, f"{name} has been in {where} for {seconds:.1f} s, while there were {all_places}")

    # ---- what they tell ----

    def take(self, serial: int, report: Report) -> None:
        """A report of a process."""
        worker = self._workers[serial]
        self._compare(worker, survived=not isinstance(report, Expelled))
        match report:
            case Stepped():
                self._take_step(worker, report)
            case Expelled():
                self._take_expulsion(worker, report)
            case Flaw():
                self._violate(report.claim, report.at, f"{_name(worker)}: {report.detail}")
            case Ended():
                self._ends[serial] = report
            case Accepted():
                worker.last = worker.joined = report.line, report.step
                if report.state:
                    self._compare_state(worker, worker.last, report.at, report.state)
                self._members[report.uuid] = _Member(worker.code, worker.joined)
                waiting, self._unnamed = self._unnamed, []
                for text, name, at, one in waiting:
                    self._check_names(text, name, at, one)

    def _take_step(self, worker: Worker, report: Stepped) -> None:
        place = report.line, report.step
        if place <= worker.last or (self._trains and place != (worker.last[0], worker.last[1] + 1)):
            self._violate("agreement", report.at, f"{_name(worker)} made step {place} after step {worker.last}")
        worker.last = place
        worker.unconfirmed = report
        for tag, op in enumerate(report.ops):
            self._check_op(worker, (*place, tag), op)
        if report.state:
            self._compare_state(worker, place, report.at, report.state)
        self._sweep(report.at)

    def _check_op(self, worker: Worker, name: tuple[int, int, int], op: OpDone) -> None:
        text = _op_text(name)
        begin, before = 0, op.ranges[0].who
        for one in op.ranges:
            place = text if len(op.ranges) == 1 else f"{text} from {begin}"
            codes = codes_in(one.who)
            if not (one.who >> worker.code & 1 or self._came_late(worker.joined, name)):
                self._violate("contributors", op.at, f"{_name(worker)} is not in its own result of {place}: codes {codes}")
            if op.world and (len(codes) < op.world or (len(codes) > op.world and not one.peers)):
                self._violate("contributors", op.at, f"{place}: codes {codes} are in it, but {_name(worker)} is told {op.world}")
            self._check_names(place, name, op.at, one)
            for code in codes:
                self._check_contributor(place, name, op, code)
            begin = one.stop
            if before & one.who not in (before, one.who):
                self._violate("contributors", op.at, f"{place}: codes {codes}, after {codes_in(before)}: nobody joins an op")
            before = one.who

    def _came_late(self, joined: tuple[int, int], name: tuple[int, int, int]) -> bool:
        """It came in when the average was launched that this op has applied: it took part with nothing to give."""
        return self._delay > 0 and joined == (name[0], name[1] - self._delay)

    def _check_names(self, text: str, name: tuple[int, int, int], at: float, one: Range) -> None:
        """The library must say who the content shows. A name may be heard of before its owner's own report."""
        if not all(peer in self._members for peer in one.peers):
            self._unnamed.append((text, name, at, one))
            return
        members, codes = [self._members[peer] for peer in one.peers], codes_in(one.who)
        gave = sorted(member.code for member in members if not self._came_late(member.joined, name))
        if one.peers and codes != gave:
            self._violate("contributors", at, f"{text}: codes {codes} are in it, but the library says {gave}")

    def _compare(self, worker: Worker, *, survived: bool) -> None:
        """Compares its last step with what others saw of it."""
        report, worker.unconfirmed = worker.unconfirmed, None
        if report is None:
            return
        for tag, op in enumerate(report.ops):
            name = report.line, report.step, tag
            mine = _Seen(worker, op, survived)
            others = self._ops.setdefault(name, [])
            for other in others:
                if apart := _disagreement(mine, other):
                    self._violate("agreement", op.at, f"{_op_text(name)}: {apart}")
                    break
            others.append(mine)

    def _check_contributor(self, text: str, name: tuple[int, int, int], op: OpDone, code: int) -> None:
        worker = self._by_code.get(code)
        if worker is None:
            self._violate("contributors", op.at, f"{text}: nobody has code {code}")
        elif worker.ended is not None and worker.last[0] == name[0] and name[1] > worker.last[1] + 1 + self._delay:
            # The worker may have begun the step after the last one that it reported, and no other.
            self._violate("contributors", op.at, f"{text}: {_name(worker)} is in it, whose last step was {worker.last[1]}")

    def _compare_state(self, worker: Worker, place: tuple[int, int], at: float, state: str) -> None:
        first, _, told = self._states.setdefault(place, (worker, at, state))
        if told != state:
            self._violate(
                "parity",
                at,
                f"after the sync of step {place[1]} (line {place[0]}) {_name(worker)} holds {state}, {_name(first)} holds {told}",
            )

    def _take_expulsion(self, worker: Worker, report: Expelled) -> None:
        if not self._explained(worker, report.at):
            self._violate("expelled", report.at, f"{_name(worker)}, to which nothing was done: {report.detail}")

    def _explained(self, worker: Worker, at: float) -> bool:
        """It was stopped for long enough, or cut off twice in a row, or lost its master."""
        for begin, end in worker.stops:
            if end - begin > 0.8 * self._limit and begin <= at <= end + self._bound:
                return True
        if self._explained_by_master(at):
            return True
        cuts = sorted(cut for other in self._workers.values() for cut in other.cuts if 0 <= at - cut <= self._bound)
        return any(second - first < self._limit for first, second in itertools.pairwise(cuts))

    def _explained_by_master(self, at: float) -> bool:
        """A lost master's run is taken up by the next one if more than half of the members are there to do it."""
        died = [moment for moment in self._masters_died if moment <= at <= moment + self._bound]
        if not died or self._recovery == 0 or len(died) > 1:
            return bool(died)
        since = died[0] - self._limit
        members = [worker for worker in self._workers.values() if worker.began <= died[0] and not _over(worker, since)]
        away = [worker for worker in members if _over(worker, at) or any(end >= since for _, end in worker.stops)]
        return 2 * len(away) >= len(members)

    def _sweep(self, now: float) -> None:
        if now - self._swept < KEEP_SECONDS / 4:
            return
        self._swept = now
        self._ops = {name: seen for name, seen in self._ops.items() if now - seen[-1].op.at < KEEP_SECONDS}
        self._states = {place: seen for place, seen in self._states.items() if now - seen[1] < KEEP_SECONDS}

    # ---- at the end ----

    def finish(self, at: float, expected: Sequence[int]) -> None:
        """The processes that had to be there at the end."""
        for text, _, _, one in self._unnamed:
            self._violate("contributors", at, f"{text}: the library names somebody who was never accepted: {one.peers}")
        missing = [_name(self._workers[serial]) for serial in expected if serial not in self._ends]
        if missing:
            self._violate("end", at, f"{', '.join(missing)} did not leave as told")
        ends = {serial: self._ends[serial] for serial in expected if serial in self._ends}
        if len({(end.line, end.step, end.state) for end in ends.values()}) > 1:
            text = "; ".join(
                f"{_name(self._workers[serial])}: step {end.step} (line {end.line}), state {end.state}"
                for serial, end in ends.items()
            )
            self._violate("end", at, f"they left apart: {text}")

    def grew(self, at: float, detail: str) -> None:
        """A process's memory or descriptors grow."""
        self._violate("growth", at, detail)

    def not_whole(self, at: float, detail: str) -> None:
        """The run did not come together, at the start or after the last fault."""
        self._violate("end", at, detail)

    def _violate(self, claim: str, at: float, detail: str) -> None:
        self.violations.append(Violation(claim=claim, at=at, detail=detail))


def _name(worker: Worker) -> str:
    return f"peer {worker.slot} (process {worker.serial}, code {worker.code})"


def _disagreement(one: _Seen, other: _Seen) -> str:
    """What two reports of an op have apart that they must not. Empty: nothing."""
    texts = [f"{_name(seen.by)} has {_result_text(seen.op)}" for seen in (one, other)]
    if _left_behind(one, other) or _left_behind(other, one):
        return ""
    if (one.op.ranges, one.op.check, one.op.tries) != (other.op.ranges, other.op.check, other.op.tries):
        return ", ".join(texts)
    return ""


def _left_behind(one: _Seen, other: _Seen) -> bool:
    """It is no survivor, and the other's result was made, from some place on, without it; until there they agree."""
    if one.survived or all(piece.who >> one.by.code & 1 for piece in other.op.ranges):
        return False
    return all(mine == his for _, mine, his in _pieces(one.op, other.op) if his >> one.by.code & 1)


def _pieces(one: OpDone, other: OpDone) -> Iterator[tuple[int, int, int]]:
    """Where both have the same contributors throughout: the end, and who is in one and the other."""
    for stop in sorted({piece.stop for op in (one, other) for piece in op.ranges}):
        who = [next(piece.who for piece in op.ranges if piece.stop >= stop) for op in (one, other)]
        yield stop, who[0], who[1]


def _result_text(op: OpDone) -> str:
    ranges = ", ".join(f"codes {codes_in(one.who)} to {one.stop}" for one in op.ranges)
    return f"{ranges}, checksum {op.check:08x}, at try {op.tries}"


def _over(worker: Worker, at: float) -> bool:
    return worker.ended is not None and worker.ended <= at


def _op_text(name: tuple[int, int, int]) -> str:
    return f"op {name[2]} of step {name[1]} (line {name[0]})"


# ---- growth ----


@dataclass(frozen=True, kw_only=True)
class GrowthLimits:
    """What still counts as standing still."""

    bytes: float = 24 * (1 << 20)
    descriptors: float = 12
    seconds: float = 30.0  # a process that lived shorter is not judged
    warm_up: float = 0.25  # the share of its life in which it may grow


DEFAULT_GROWTH = GrowthLimits()


def trend(times: Sequence[float], values: Sequence[float]) -> float:
    """Growth per second: the median of the slopes between points half the range apart (robust as Theil and Sen's)."""
    half = len(times) // 2
    slopes = [
        (values[at + half] - values[at]) / (times[at + half] - times[at])
        for at in range(len(times) - half)
        if times[at + half] > times[at]
    ]
    return statistics.median(slopes) if slopes else 0.0


def growth(usages: Sequence[Usage], limits: GrowthLimits = DEFAULT_GROWTH) -> str:
    """What a process grew by over its life, if that is more than the limits allow; else nothing.

    Both the trend and the level at the end must say so: one late peak is no leak, and neither is one step up in the middle.
    """
    if len(usages) < 8 or usages[-1].at - usages[0].at < limits.seconds:
        return ""
    settled = [usage for usage in usages if usage.at - usages[0].at >= limits.warm_up * (usages[-1].at - usages[0].at)]
    times = [usage.at for usage in settled]
    span = times[-1] - times[0]
    for name, limit, values in (
        ("bytes of memory", limits.bytes, [float(usage.bytes) for usage in settled]),
        ("descriptors", limits.descriptors, [float(usage.descriptors) for usage in settled]),
    ):
        third = max(1, len(values) // 3)
        risen = statistics.median(values[-third:]) - statistics.median(values[:third])
        grown = trend(times, values) * span
        if grown > limit and risen > limit / 2:
            return f"{grown:,.0f} {name} in {span:.0f} s, from {values[0]:,.0f} to {values[-1]:,.0f}"
    return ""
