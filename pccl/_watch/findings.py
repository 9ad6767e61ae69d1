"""Finds the members and links that make the operations of a run slow, in what its members report. Pure.

`find` examines each group of members by itself: who does nothing while others wait (HUNG), who begins late (STRAGGLER), and
which link is slower than the others and why (SLOW_SENDER, SLOW_RECEIVER, SLOW_EDGE, LOSS). Reports are not proven, so any
numbers must be survived. docs/diagnosis.md says what each kind means.

In a ring all links carry the same bytes in the same time, however fast they are. The link that delays the others is the one at
whose sender bytes wait to be sent, and which is busy for longer with the same bytes. Heartbeats to and from third members tell
whether its sender, its receiver or the way between is slow: those that pass the full queue are late.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pccl._watch.reports import EdgeReport, Finding, FindingKind, MemberReport

FINDINGS_MOST = 16
SLOW_RATIO = 0.5  # of the usual speed; below, an edge is slow
ALIKE_RATIO = 0.9  # of another edge's rate; above, they are as fast
BACKLOGGED_LEAST = 0.4  # fraction of looks that find bytes waiting at a slow edge
SHARE_LEAST = 0.05  # likewise, with which a speed is computed
SLOW_COST_LEAST = 0.1  # fraction of an operation
STRAGGLER_COST = 0.12  # likewise
STRAGGLER_LEAST = 2e-3  # seconds
LOSS_LEAST = 5e-3  # segments sent again, of all
LOSS_SLOW_LEAST = 5e-4  # likewise, of a slow edge without a queue
LOSS_RATIO = 4.0  # of the others' fraction
QUEUE_LEAST = 3e-3  # seconds that a heartbeat is late behind a queue
QUEUE_RATIO = 0.3  # of what bytes on the slow edge wait
WINDOW_LEAST = 0.5  # fraction of the busy time with a full receive window
BEATS_MUTE = 2.2  # heartbeats that are missing
FIRST_S = 30.0  # that the first operation may wait for a member
MOST_SHARE = 0.5  # of a member's other edges that are slow as well
FRESH_S, OLD_S = 10.0, 60.0  # age of a report from which a finding loses confidence, and at which it has none
SAMPLES_LEAST, ENTRIES_LEAST, SEGMENTS_LEAST = 5, 2, 1000
BYTES_LEAST, BUSY_LEAST = 1 << 20, 0.05  # acknowledged bytes and busy seconds, for a speed
REPORT_S = 1.0  # between two reports of a member
SMOOTHING = 30  # rounds


def find(
    members: Sequence[MemberReport], edges: Sequence[EdgeReport], heartbeat_limit: float
) -> tuple[list[Finding], list[float]]:
    """Returns the findings, the gravest first, and by member how many seconds later than the first of its group it begins.

    Members of a group follow each other. `heartbeat_limit` is in seconds.
    """
    places = {member.uuid: place for place, member in enumerate(members)}
    run = [_Edge(edge, places[edge.member], places[edge.other]) for edge in edges]
    findings: list[Finding] = []
    begins: list[float] = []
    for _, group in itertools.groupby(range(len(members)), key=lambda place: members[place].group):
        here = _Group(members, list(group), run, heartbeat_limit, findings)
        if len(here.places) > 1:
            here.examine()
        begins += here.begins
    findings = [_aged(finding, _age(members[places[finding.member]])) for finding in findings]
    findings.sort(key=lambda finding: -finding.cost * finding.confidence)
    return _without_followers(findings), begins


def _age(member: MemberReport) -> float:
    """Seconds since the member's last report."""
    return math.inf if member.told_seconds is None else member.told_seconds


def _aged(finding: Finding, age: float) -> Finding:
    """Nobody reports while no operations are called, so an old finding says its age and counts for less."""
    if finding.kind is FindingKind.HUNG or age <= FRESH_S:
        return finding
    left = max(1 - (age - FRESH_S) / (OLD_S - FRESH_S), 0.0)
    return replace(finding, text=f"{finding.text}, as of {age:.0f} s ago", confidence=finding.confidence * left)


def _without_followers(findings: list[Finding]) -> list[Finding]:
    """Drops what a graver finding explains.

    A member that sends or receives slowly spoils its other edges, if only for the acknowledgements on them. While a member that
    begins late sends, nobody else has much to send any more: bytes wait there alone.
    """
    kept: list[Finding] = []
    for finding in findings:
        touched = {finding.member, finding.other}
        late = finding.kind in (FindingKind.STRAGGLER, FindingKind.HUNG)
        if not any(
            (graver.kind in (FindingKind.SLOW_SENDER, FindingKind.SLOW_RECEIVER) and not late and graver.member in touched)
            or (
                graver.kind is FindingKind.STRAGGLER
                and finding.kind is FindingKind.SLOW_SENDER
                and finding.member == graver.member
            )
            for graver in kept
        ):
            kept.append(finding)
    return kept


def _confidence(measured: float, threshold: float) -> float:
    """Two thirds at twice the threshold."""
    return 0.0 if measured <= 0 or threshold <= 0 else measured / (measured + threshold)


def _mean_op(member: MemberReport) -> float:
    return member.op_seconds / member.ops if member.ops else 0.0


def begin_times(pairs: Sequence[tuple[int, int, float]], count: int) -> list[float] | None:
    """Returns by how many seconds each of `count` members begins later than the earliest one; None if a pair is missing.

    A pair is two members, and by how much the second one begins later than the first. The times first follow the pairs from one
    member to the next. Then each becomes the mean of what its pairs say, so that all share the errors on the way round a ring.
    """
    times, placed = [0.0] * count, [True] + [False] * (count - 1)
    grows = True
    while grows:
        grows = False
        for first, second, by in pairs:
            if placed[first] != placed[second]:
                if placed[first]:
                    times[second] = times[first] + by
                else:
                    times[first] = times[second] - by
                placed[first] = placed[second] = grows = True
    if not all(placed):
        return None
    for _ in range(SMOOTHING if count > 2 else 0):
        total, weight = [0.0] * count, [0] * count
        for first, second, by in pairs:
            total[second] += times[first] + by
            total[first] += times[second] - by
            weight[second] += 1
            weight[first] += 1
        # Half of the way, or a ring of an even number would swing.
        times = [(time + total[i] / weight[i]) / 2 if weight[i] else time for i, time in enumerate(times)]
    least = min(times)
    return [time - least for time in times]


@dataclass(eq=False)
class _Edge:
    """What the member at place `member` reports about the one at place `other`."""

    report: EdgeReport
    member: int
    other: int
    usual: float = 0.0  # speed of comparable edges; 0: there is nothing to compare with
    is_slow: bool = False

    @property
    def backlogged(self) -> float:
        """Fraction of looks that found bytes waiting to be sent."""
        return min(self.report.backlogged / self.report.samples, 1.0) if self.report.samples else 0.0

    @property
    def rate(self) -> float:
        """Bytes per second while bytes were under way."""
        return self.report.acked_bytes / self.report.busy_seconds

    @property
    def speed(self) -> float:
        """The rate of the edge if it always had unsent data. A link that rarely has is limited by another link."""
        return self.rate / max(self.backlogged, SHARE_LEAST)

    @property
    def loss(self) -> float:
        segments = self.report.segments
        return min(self.report.retransmits / segments, 1.0) if segments >= SEGMENTS_LEAST else 0.0

    @property
    def backlog(self) -> float:
        """How much longer than at best bytes of operations, and their acknowledgements, take: what they wait behind."""
        return self.report.loaded_seconds - self.report.round_trip_seconds if self.report.loaded_seconds > 0 else 0.0


def set_usual_speeds(edges: Sequence[_Edge]) -> None:
    """Compares each edge with those that carry at least half as many bytes, itself among them: takes their middle speed.

    How fast an edge with little to do would be nobody knows: bytes seldom wait there, however slow it is. Where sub-groups have
    operations of their own, some edges carry much more than others.
    """
    by_bytes = sorted(edges, key=lambda edge: -edge.report.acked_bytes)
    speeds: list[float] = []
    for edge in by_bytes:
        while len(speeds) < len(by_bytes) and by_bytes[len(speeds)].report.acked_bytes >= edge.report.acked_bytes / 2:
            bisect.insort(speeds, by_bytes[len(speeds)].speed)
        edge.usual = speeds[len(speeds) // 2] if len(speeds) > 1 else 0.0


@dataclass(frozen=True)
class _Side:
    """Statistics of the other edges of the sender, or of the receiver, of a slow edge."""

    slow: float  # fraction of those that carry operations
    late: float  # of heartbeats on them, on average, in seconds

    def is_at_fault(self, other: _Side, backlog: float) -> bool:
        """Whether this side is slow as a whole, and neither the way alone nor the other side."""
        least = max(QUEUE_RATIO * backlog, QUEUE_LEAST)
        return (self.slow >= MOST_SHARE and self.slow > other.slow) or (self.late > least and self.late > 2 * other.late)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class _Group:
    """One group of a run. Members are known by their places in the run's list."""

    def __init__(
        self,
        members: Sequence[MemberReport],
        places: list[int],
        edges: Sequence[_Edge],
        heartbeat_limit: float,
        findings: list[Finding],
    ) -> None:
        self.places = places
        self.begins = [0.0] * len(places)
        self._members = members
        self._edges = edges
        self._inside = [edge for edge in edges if edge.member in places and edge.other in places]
        self._findings = findings
        self._beat = heartbeat_limit / 5
        self._period = min(REPORT_S, self._beat)

    def examine(self) -> None:
        """Adds the findings. Skips the other tests if a member hangs: measurements of the others mean little then."""
        before = len(self._findings)
        self._find_hung()
        if len(self._findings) == before:
            self._find_stragglers()
            self._find_slow()

    def _add(self, kind: FindingKind, at: int, to: int, value: float, usual: float, cost: float, sure: float, text: str) -> None:
        """Adds a finding unless it is a repetition, or a member of it has not reported recently.

        A member without a recent report, such as a newcomer in its first second, is known by the reports of others only: these
        suffice if they wait for it, and for nothing else.
        """
        member, other = self._members[at], self._members[to]
        if kind is not FindingKind.HUNG and max(_age(member), _age(other)) > OLD_S:
            return
        where = kind, member.uuid, None if at == to else other.uuid
        if len(self._findings) < FINDINGS_MOST and where not in ((f.kind, f.member, f.other) for f in self._findings):
            self._findings.append(
                Finding(
                    kind=kind, member=where[1], other=where[2], value=value, usual=usual, cost=cost, confidence=sure, text=text
                )
            )

    def _name(self, place: int) -> str:
        member, ring = self._members[place], f"place {place - self.places[0]} of the ring"
        short = member.uuid.hex[:8]
        return f"peer {member.name} ({short}, rank {member.rank}, {ring})" if member.name else f"peer {short} ({ring})"

    # ---- hung ----

    def _stands_still(self, place: int) -> float:
        """Seconds since anything moved in an operation of this member, by a recent report; 0: it is in none, or it moves."""
        member, told = self._members[place], _age(self._members[place])
        if member.live == 0 or told > 3 * self._period + 0.5:
            return 0.0
        still = member.still_seconds + told
        return still if still >= 2 * self._period else 0.0

    def _is_heard(self, place: int) -> bool:
        """A member that is not may be behind a link that has failed: nobody knows what it does."""
        return self._members[place].silent_seconds <= 1.5 * self._period + 0.3

    def _tells_that_it_waits(self, place: int) -> bool:
        """Whether it tells so itself. Nobody knows whether a silent member still waits."""
        still = self._members[place].still_seconds
        return self._stands_still(place) > 0 and still >= 2 * self._period and self._is_heard(place)

    def _find_hung(self) -> None:
        silence = max(1.5 * self._period + 0.3, BEATS_MUTE * self._beat)  # without operations, heartbeats alone are heard
        still = [self._members[place] for place in self.places if self._stands_still(place) != 0]
        waiting = [member for member in still if member.silent_seconds <= self._period]
        if not waiting:
            return
        longest = max(member.oldest_seconds for member in waiting)
        usual = max(map(_mean_op, waiting))
        # The first operation waits for what each member does at its start, which takes its time.
        patience = max(FIRST_S if usual == 0 else 3 * usual, 2 * self._period)
        waits = [(edge.member, edge.other) for edge in self._inside if edge.report.awaited > 0]
        awaits = {member for member, _ in waits}
        awaited = {other for member, other in waits if self._stands_still(member) > 0}
        found = False
        for place in self.places:
            member = self._members[place]
            mute = member.silent_seconds > silence
            idle = place in awaited and member.live == 0 and longest > patience and self._is_heard(place)
            if mute or idle:
                self._tell_hung(place, len(waiting), longest, usual, mute, silence if mute else patience)
                found = True
        if found or longest <= 2 * self._period or not all(self._is_heard(place) for edge in waits for place in edge):
            return
        # Follows wait-for edges. Blames the member that nobody blocks; if all are blocked, it is a cycle.
        everybody = {edge.other for edge in self._edges if edge.report.awaited > 0 and edge.other in self.places}
        for place in self.places:
            if self._tells_that_it_waits(place) and place in awaited and (place not in awaits or everybody <= awaits):
                self._tell_hung(place, len(waiting), longest, usual, False, 2 * self._period)

    def _tell_hung(self, place: int, waiting: int, longest: float, usual: float, mute: bool, threshold: float) -> None:
        member, name = self._members[place], self._name(place)
        silent = member.silent_seconds
        if mute:
            text = f"{name} hangs: its process has been silent for {silent:.1f} s, while {waiting} others wait in an operation"
        elif member.live > 0:
            text = (
                f"{name} has not started the operation in which others have waited for {longest:.1f} s, and waits in "
                "another one: the members call different operations"
            )
        elif usual == 0:
            text = (
                f"{name} hangs in its own code: it has not started the first operation, in which {waiting} others have "
                f"waited for {longest:.1f} s"
            )
        else:
            text = (
                f"{name} hangs in its own code: it has not started the operation in which {waiting} others have waited for "
                f"{longest:.1f} s; an operation usually takes {usual:.3f} s"
            )
        value, sure = silent if mute else longest, 0.5 * threshold
        self._add(FindingKind.HUNG, place, place, value, threshold if mute else usual, 1.0, _confidence(value, sure), text)

    # ---- stragglers ----

    def _find_stragglers(self) -> None:
        """Finds the members behind the largest gap in starts, if the gap is more than the usual spread."""
        first, count = self.places[0], len(self.places)
        pairs = [
            # The sign of the other one's start was on its way for half a round trip.
            (edge.member - first, edge.other - first, (report.late_seconds - report.early_seconds) / report.entries - half)
            for edge in self._inside
            for report, half in [(edge.report, edge.report.round_trip_seconds / 2)]
            if report.entries >= ENTRIES_LEAST and _age(self._members[edge.member]) <= OLD_S
        ]
        begins = begin_times(pairs, count)
        if begins is None:
            return
        self.begins = begins
        order = sorted(begins)
        gap, late = 0.0, 0
        for k in range(1, (1 if count < 3 else (count - 1) // 2) + 1):
            here = order[count - k] - order[count - k - 1]
            if here > gap:
                gap, late = here, k
        before = order[count - late - 1] if late else 0.0
        op = max(_mean_op(self._members[place]) for place in self.places)
        if op > 0:
            op = max(op, gap)  # it takes the others as long as they wait; each tells of operations of its own
        cost = gap / op if op > 0 else 0.0
        if late == 0 or gap < STRAGGLER_LEAST or cost < STRAGGLER_COST or gap < before:
            return
        for place, begin in zip(self.places, begins, strict=True):
            if begin > before:
                text = (
                    f"{self._name(place)} computes for longer: it starts operations {(begin - before) * 1e3:.1f} ms after the "
                    f"next-latest member, {cost * 100:.0f} % of the {op * 1e3:.1f} ms that an operation takes the others"
                )
                sure = _confidence(cost, STRAGGLER_COST / 2)
                self._add(FindingKind.STRAGGLER, place, place, begin, before, cost, sure, text)

    # ---- slow links ----

    def _find_slow(self) -> None:
        self._back: dict[tuple[int, int], float] = {}  # seconds for which heartbeats wait, by their sender and receiver
        for edge in self._edges:
            self._back.setdefault((edge.other, edge.member), edge.report.queue_seconds)
        self._carrying = [edge for edge in self._inside if self._carries(edge)]
        set_usual_speeds([e for e in self._carrying if e.backlogged < BACKLOGGED_LEAST or not self._answers_wait(e)])
        for edge in self._carrying:
            edge.is_slow = self._is_slow(edge)
        usual_loss = self._middle([edge.loss for edge in self._carrying])
        for edge in self._carrying:
            # A full queue drops packets too: then the way is slow, and nothing is lost elsewhere.
            least = LOSS_SLOW_LEAST if edge.is_slow else LOSS_LEAST
            queues = self._queue(edge) > QUEUE_LEAST or edge.backlog > QUEUE_LEAST
            if edge.loss >= least and edge.loss >= LOSS_RATIO * usual_loss and not (edge.is_slow and queues):
                self._tell_loss(edge, usual_loss, least)
            elif edge.is_slow and not self._is_full_all_round(edge):
                self._tell_slow(edge)

    def _carries(self, edge: _Edge) -> bool:
        report = edge.report
        enough = report.samples >= SAMPLES_LEAST and report.acked_bytes >= BYTES_LEAST and report.busy_seconds >= BUSY_LEAST
        return enough and _age(self._members[edge.member]) <= OLD_S

    def _middle(self, values: list[float]) -> float:
        """The middle one, of two the smaller one."""
        return sorted(values)[(len(values) - 1) // 2] if len(values) > 1 else 0.0

    def _queue(self, edge: _Edge) -> float:
        """Seconds for which heartbeats on this edge wait, as its receiver tells."""
        return self._back.get((edge.member, edge.other), 0.0)

    def _answers_wait(self, edge: _Edge) -> bool:
        """Whether acknowledgements wait on the way back: then the edge seems to be slow, however fast it is."""
        answer = edge.report.queue_seconds
        return answer > QUEUE_LEAST and self._queue(edge) < answer / 2

    def _lateness(self, place: int, *, leaving: bool) -> float:
        """How late heartbeats from this member, or to it, come on average, in seconds."""
        told = [edge for edge in self._edges if (edge.other if leaving else edge.member) == place]
        return _mean([edge.report.queue_seconds for edge in told if edge.report.queue_seconds > 0])

    def _waits_for_answers(self, edge: _Edge) -> bool:
        """Whether acknowledgements wait on the way back, or on the line of the member that sends them: that line is slow."""
        leaves = self._lateness(edge.other, leaving=True)
        return self._answers_wait(edge) or (leaves > QUEUE_LEAST and self._lateness(edge.other, leaving=False) < leaves / 2)

    def _cost(self, edge: _Edge) -> float:
        span = self._members[edge.member].recent_seconds
        busy = min(edge.report.busy_seconds / span, 1.0) if span else 0.0
        return 0.0 if edge.usual <= 0 else (1 - min(edge.speed / edge.usual, 1.0)) * busy

    def _is_full_all_round(self, edge: _Edge) -> bool:
        """Whether bytes wait here by chance: no edge is faster, and half of the others have queues about as long."""
        others = [other for other in self._carrying if other is not edge]
        if any(edge.rate < ALIKE_RATIO * other.rate for other in others):
            return False
        least = max(QUEUE_LEAST, self._queue(edge) / 2)
        return 2 * sum(self._queue(other) > least for other in others) >= len(others)

    def _is_slow(self, edge: _Edge) -> bool:
        limit = SLOW_RATIO * edge.usual
        return (
            edge.speed < limit
            and edge.backlogged >= BACKLOGGED_LEAST
            and self._cost(edge) >= SLOW_COST_LEAST
            and not self._waits_for_answers(edge)
        )

    def _side(self, of: _Edge, *, leaving: bool) -> _Side:
        if leaving:
            others = [edge for edge in self._carrying if edge.member == of.member and edge.other != of.other]
            # The receiver of heartbeats reports on the same direction.
            told = [edge for edge in self._inside if edge.other == of.member and edge.member != of.other]
        else:
            others = [edge for edge in self._carrying if edge.other == of.other and edge.member != of.member]
            told = [edge for edge in self._inside if edge.member == of.other and edge.other != of.member]
        late = [edge.report.queue_seconds for edge in told if edge.report.queue_seconds > 0]
        return _Side(_mean([edge.is_slow for edge in others]), _mean(late))

    def _tell_slow(self, edge: _Edge) -> None:
        sender, receiver = self._side(edge, leaving=True), self._side(edge, leaving=False)
        here, looks = f"{edge.rate / 1e6:.1f} MB/s", 100 * edge.backlogged
        waits = f"{looks:.0f} % of the samples have unsent data"
        elsewhere = f"elsewhere in {100 * self._middle([other.backlogged for other in self._carrying]):.0f} %"
        full = edge.report.window_seconds / edge.report.busy_seconds
        start, end = self._name(edge.member), self._name(edge.other)
        kind, at, to = FindingKind.SLOW_EDGE, edge.member, edge.other
        if full > WINDOW_LEAST:
            kind, at = FindingKind.SLOW_RECEIVER, to
            share = min(full, 1.0) * 100
            text = f"{end} receives slowly: {here} from {start}, and its receive window was full for {share:.0f} % of the time"
        elif receiver.is_at_fault(sender, edge.backlog):
            kind, at = FindingKind.SLOW_RECEIVER, to
            text = f"{end} receives slowly: {here} from {start}, {waits}, {elsewhere}; other members have to wait, too"
        elif sender.is_at_fault(receiver, edge.backlog):
            kind, to = FindingKind.SLOW_SENDER, at
            text = f"{start} sends slowly: {here} to {end}, {waits}, {elsewhere}; its other links have unsent data, too"
        else:
            text = f"path from {start} to {end} is slow: {here}, {waits}, {elsewhere}"
        sure = _confidence(edge.usual / edge.speed, 0.5 / SLOW_RATIO)
        self._add(kind, at, to, edge.speed, edge.usual, self._cost(edge), sure, text)

    def _tell_loss(self, edge: _Edge, usual: float, least: float) -> None:
        text = (
            f"path from {self._name(edge.member)} to {self._name(edge.other)} loses packets: {edge.loss * 100:.2f} % of "
            f"the segments were retransmitted, elsewhere {usual * 100:.2f} %; it has {edge.rate / 1e6:.1f} MB/s"
        )
        cost = max(self._cost(edge), edge.loss)
        self._add(FindingKind.LOSS, edge.member, edge.other, edge.loss, usual, cost, _confidence(edge.loss, least / 2), text)
