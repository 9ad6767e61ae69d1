"""Reports of the members of a run, each with one fault: what is found, and where (pccl/_watch/findings.py). And any numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pccl import EdgeReport, FindingKind, MemberReport
from pccl._watch.findings import FINDINGS_MOST, begin_times, find

SPAN, OP, OPS, MB = 3.3, 0.15, 18, 1_000_000
STRAGGLER, SENDER, RECEIVER = FindingKind.STRAGGLER, FindingKind.SLOW_SENDER, FindingKind.SLOW_RECEIVER
EDGE, LOSS, HUNG = FindingKind.SLOW_EDGE, FindingKind.LOSS, FindingKind.HUNG


class Run:
    """A ring of members with large operations, in which all is well: 25 MB/s each, bytes wait in a third of the looks."""

    def __init__(self, count: int = 4) -> None:
        self.count = count
        member = dict.fromkeys(MemberReport.__annotations__, 0.0) | {"name": "", "group": 0, "address": ""}
        busy = {"told_seconds": 0.4, "recent_seconds": SPAN, "span_seconds": SPAN, "ops": float(OPS), "op_seconds": OPS * OP}
        now = {"live": 1, "oldest_seconds": 0.08, "still_seconds": 0.001}
        self.members = [member | busy | now | {"uuid": UUID(bytes=bytes([i + 1]) + bytes(15))} for i in range(count)]
        edge = dict.fromkeys(EdgeReport.__annotations__, 0.0) | {"reason": "", "awaited": 0, "lanes": 0}
        seen = edge | {"samples": 28.0, "round_trip_seconds": 0.002, "queue_seconds": 0.0005}
        self.edges = {(i, k): dict(seen) for i in range(count) for k in range(count) if i != k}
        for i in range(count):
            self.edges[i, (i + 1) % count] |= {
                "acked_bytes": 50.0 * MB,
                "busy_seconds": 2.0,
                "segments": 35000.0,
                "backlogged": 9.0,
                "entries": float(OPS),
                "late_seconds": OPS * 0.001,
            }

    def find(self):
        """Findings, with members by their places, and when each member begins."""
        members = [MemberReport(**member) for member in self.members]
        for (i, k), edge in self.edges.items():
            edge |= {"member": members[i].uuid, "other": members[k].uuid}
        findings, begins = find(members, [EdgeReport(**edge) for edge in self.edges.values()], 5.0)
        places = {member.uuid: place for place, member in enumerate(members)}
        return [(f.kind, places[f.member], None if f.other is None else places[f.other]) for f in findings], findings, begins

    def slow(self, i: int, k: int) -> None:
        self.edges[i, k] |= {"acked_bytes": 15.0 * MB, "busy_seconds": 2.6, "backlogged": 24.0}
        self.edges[k, i]["queue_seconds"] = 0.04

    def late(self, i: int, seconds: float) -> None:
        self.edges[(i - 1) % self.count, i]["late_seconds"] += OPS * seconds
        self.edges[i, (i + 1) % self.count]["early_seconds"] += OPS * seconds
        for k, member in enumerate(self.members):
            member["op_seconds"] += 0 if k == i else OPS * seconds

    def wait(self, seconds: float, but: int | None = None) -> None:
        for k, member in enumerate(self.members):
            if k != but:
                member |= {"oldest_seconds": seconds, "still_seconds": seconds}

    def queue(self, seconds: float, *edges: tuple[int, int]) -> None:
        for edge in edges:
            self.edges[edge]["queue_seconds"] = seconds

    def silent(self, i: int, seconds: float) -> None:
        self.members[i] |= {"silent_seconds": seconds, "told_seconds": seconds}

    def ring(self):
        return [self.edges[i, (i + 1) % self.count] for i in range(self.count)]

    def never_told(self, i: int) -> None:
        self.members[i] |= dict.fromkeys(("ops", "op_seconds", "oldest_seconds", "still_seconds"), 0.0)
        self.members[i] |= {"live": 0, "told_seconds": None}


def _fault(*actions: tuple) -> Callable[[Run], None]:
    """Calls methods of a Run by name; a tuple that begins with two numbers updates this edge, with one this member."""

    def make(run: Run) -> None:
        for name, *arguments in actions:
            if name == "edge":
                run.edges[arguments[0]] |= arguments[1]
            elif callable(name):
                name(run)
            elif name == "member":
                run.members[arguments[0]] |= arguments[1]
            else:
                getattr(run, name)(*arguments)

    return make


def busy_sub_group(run: Run) -> None:
    """Members 0, 1 and 2 have operations of their own: their ways are always full, and as fast as the others, which do little."""
    for edge in run.ring():
        edge |= {"acked_bytes": 12.0 * MB, "busy_seconds": 0.48, "backlogged": 2.0}
    for i in range(3):
        run.edges[i, (i + 1) % 3] |= {"acked_bytes": 75.0 * MB, "busy_seconds": 3.0, "segments": 50000.0, "backlogged": 25.0}
        run.queue(0.04, ((i + 1) % 3, i))


def slow_in_busy_sub_group(run: Run) -> None:
    busy_sub_group(run)
    for i in range(3):
        run.edges[i, (i + 1) % 3] |= {"acked_bytes": 20.0 * MB, "backlogged": 25.0 if i == 1 else 5.0}
        run.queue(0.04 if i == 1 else 0.0005, ((i + 1) % 3, i))


def slow_edge_sets_the_rate(run: Run) -> None:
    """As on far links, where bytes are always under way: what comes late to the others is sent on at the same rate."""
    run.slow(1, 2)
    for edge in run.ring():
        edge |= {"acked_bytes": 15.0 * MB, "busy_seconds": 2.6}


def overflows_by_chance(run: Run) -> None:
    for i, edge in enumerate(run.ring()):
        edge["backlogged"] = 24.0 if i == 1 else 3.0
        run.queue(0.016, ((i + 1) % 4, i))
    run.edges[1, 2]["retransmits"] = 280.0


def all_lose(run: Run) -> None:
    for edge in run.ring():
        edge["retransmits"] = 350.0


def every_way_slow(run: Run) -> None:
    for i in range(4):
        run.slow(i, (i + 1) % 4)


def all_silent(run: Run) -> None:
    for i in range(4):
        run.silent(i, 3.0)


def partition(run: Run) -> None:
    """The master has not heard of members 2 and 3 since, and all wait for each other over links that have failed."""
    run.wait(2.1)
    for i in (2, 3):
        run.silent(i, 2.1)
    for edge in run.ring():
        edge["awaited"] = 1


def first_op(run: Run) -> None:
    HANGS_IN_COMPUTE(run)
    for member in run.members:
        member |= {"ops": 0.0, "op_seconds": 0.0}


def computes_for_long(run: Run) -> None:
    """As it always does."""
    run.wait(2.5, 2)
    run.members[2]["live"] = 0
    run.edges[1, 2]["awaited"] = 1
    for member in run.members:
        member["op_seconds"] = OPS * 2.0


def first_op_for_long(run: Run) -> None:
    first_op(run)
    run.wait(60.0, 2)


def waits_for_one_that_computes(run: Run) -> None:
    computes_for_long(run)
    run.edges[0, 1]["awaited"] = 1


SLOW_SENDER = (("slow", 1, 2), ("queue", 0.03, (3, 1), (0, 1)))
ITS_ANSWERS = (*SLOW_SENDER, ("edge", (0, 1), {"acked_bytes": 14.0 * MB, "busy_seconds": 2.6, "backlogged": 24.0}))
OVERFLOWS = (("slow", 1, 2), ("edge", (1, 2), {"segments": 12000.0, "retransmits": 600.0}))
AWAITED = ("edge", (1, 2), {"awaited": 1})
HANGS_IN_COMPUTE = _fault(("wait", 6.0, 2), ("member", 2, {"live": 0, "told_seconds": 6.0}), AWAITED)

CASES = {
    "nothing": (4, _fault(), []),
    "nothing among two": (2, _fault(), []),
    "straggler": (4, _fault(("late", 2, 0.06)), [(STRAGGLER, 2, None)]),
    "two stragglers": (6, _fault(("late", 1, 0.06), ("late", 4, 0.06)), [(STRAGGLER, 1, None), (STRAGGLER, 4, None)]),
    "straggler of two": (2, _fault(("late", 1, 0.06)), [(STRAGGLER, 1, None)]),
    "one after another": (4, _fault(("late", 0, 0.003), ("late", 2, 0.009), ("late", 3, 0.016)), []),
    "slow edge": (4, _fault(("slow", 1, 2)), [(EDGE, 1, 2)]),
    "slow sender": (4, _fault(*SLOW_SENDER), [(SENDER, 1, None)]),
    "slow receiver": (4, _fault(("slow", 1, 2), ("queue", 0.03, (2, 3), (2, 0))), [(RECEIVER, 2, None)]),
    "slow sender, and its acknowledgements": (4, _fault(*ITS_ANSWERS), [(SENDER, 1, None)]),
    "the same, late itself": (4, _fault(*ITS_ANSWERS, ("queue", 0.009, (1, 0), (1, 2))), [(SENDER, 1, None)]),
    "straggler sends last": (
        4,
        _fault(("late", 2, 0.12), ("edge", (2, 3), {"backlogged": 26.0}), ("queue", 0.009, (3, 2), (0, 2), (1, 2))),
        [(STRAGGLER, 2, None)],
    ),
    "straggler and slow sender": (4, _fault(("late", 2, 0.06), *SLOW_SENDER), [(SENDER, 1, None), (STRAGGLER, 2, None)]),
    "does not read": (4, _fault(("slow", 1, 2), ("edge", (1, 2), {"window_seconds": 2.4})), [(RECEIVER, 2, None)]),
    "every way slow": (4, every_way_slow, []),
    "busy sub-group": (4, busy_sub_group, []),
    "slow in a busy sub-group": (4, slow_in_busy_sub_group, [(EDGE, 1, 2)]),
    "slow edge sets the rate": (4, slow_edge_sets_the_rate, [(EDGE, 1, 2)]),
    "overflows by chance": (4, overflows_by_chance, []),
    "slow where nothing waits": (4, _fault(("slow", 1, 2), ("edge", (1, 2), {"backlogged": 0.0})), []),
    "loss": (4, _fault(("edge", (1, 2), {"retransmits": 350.0})), [(LOSS, 1, 2)]),
    "loss that makes it slow": (
        4,
        _fault(("slow", 1, 2), ("queue", 0.0005, (2, 1)), ("edge", (1, 2), {"segments": 12000.0, "retransmits": 60.0})),
        [(LOSS, 1, 2)],
    ),
    "slow edge overflows": (4, _fault(*OVERFLOWS), [(EDGE, 1, 2)]),
    "loss everywhere": (4, all_lose, []),
    "overflows, seen by round trips": (
        4,
        _fault(*OVERFLOWS, ("queue", 0.0005, (2, 1)), ("edge", (1, 2), {"loaded_seconds": 0.04})),
        [(EDGE, 1, 2)],
    ),
    "stopped process": (4, _fault(("wait", 2.5, 2), ("silent", 2, 2.5)), [(HUNG, 2, None)]),
    "stopped just now": (4, _fault(("wait", 0.9, 2), ("silent", 2, 0.9)), []),
    "stopped in the operation before": (4, _fault(("wait", 2.1, 2), ("silent", 2, 2.0), AWAITED), []),
    "hangs in its code": (4, HANGS_IN_COMPUTE, [(HUNG, 2, None)]),
    "computes as long as ever": (4, computes_for_long, []),
    "in another operation": (4, _fault(("wait", 4.0), AWAITED), [(HUNG, 2, None)]),
    "in no operation, and says little": (
        4,
        _fault(("wait", 2.5, 2), ("member", 2, {"live": 0, "silent_seconds": 2.0, "told_seconds": 60.0})),
        [],
    ),
    "waits for one that computes": (4, waits_for_one_that_computes, []),
    "first operation": (4, first_op, []),
    "first operation, for long": (4, first_op_for_long, [(HUNG, 2, None)]),
    "wait for each other": (
        4,
        _fault(("wait", 4.0), AWAITED, ("edge", (2, 1), {"awaited": 1})),
        [(HUNG, 1, None), (HUNG, 2, None)],
    ),
    "a partition, before silence tells": (4, partition, []),
    "the same, between two operations": (4, _fault((partition,), ("member", 2, {"live": 0}), ("member", 3, {"live": 0})), []),
    "nobody is heard": (4, all_silent, []),
    "has not reported": (4, _fault(("never_told", 1)), []),
    "the same, late in its first operation": (4, _fault(("late", 1, 0.06), ("never_told", 1)), []),
    "the same, and a way to it seems slow": (
        4,
        _fault(("slow", 0, 1), ("edge", (0, 1), {"window_seconds": 2.4}), ("never_told", 1)),
        [],
    ),
    "has never reported, and hangs": (
        4,
        _fault(("never_told", 1), ("wait", 6.0, 1), ("edge", (0, 1), {"awaited": 1})),
        [(HUNG, 1, None)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_faults(case):
    count, make, wanted = CASES[case]
    run = Run(count)
    make(run)
    places, findings, _ = run.find()
    assert places == wanted
    for finding in findings:
        assert finding.cost > 0
        assert finding.cost <= 1
        assert 0.5 < finding.confidence <= 1
        assert len(finding.text) > 40


def slow_line(run: Run, member: int, sends: bool, rng: random.Random) -> None:
    """The line of a member is slow, to all others (`sends`) or from them: heartbeats wait there, and so do acknowledgements.

    What goes the other way waits for these, and then seems to be as slow.
    """
    before, following = (member - 1) % run.count, (member + 1) % run.count
    busy, fastest, late = rng.uniform(2.0, 2.8), rng.uniform(2, 100) * MB, rng.uniform(0.01, 0.06)
    for i, way in enumerate(run.ring()):
        slow, waits = i == (member if sends else before), i == (before if sends else member)
        part = rng.uniform(0.4, 0.8) if slow else rng.uniform(0.5, 1.0) if waits else rng.uniform(0.85, 1.0)
        looks = rng.randint(24, 28) if slow else rng.randint(12, 28) if waits else rng.randint(2, 9)
        way |= {"busy_seconds": busy, "acked_bytes": fastest * part * busy, "backlogged": float(looks)}
    for edge in run.edges.values():
        edge["queue_seconds"] = rng.uniform(0.0001, 0.0025)
    for i in range(run.count):
        if i != member:
            run.queue(late * rng.uniform(0.85, 1.15), (i, member) if sends else (member, i))
    way = run.edges[(member, following) if sends else (before, member)]
    way["loaded_seconds"] = late * 24 / way["backlogged"]


@pytest.mark.parametrize("seed", range(200))
def test_a_slow_line(seed):
    rng = random.Random(seed)
    run = Run(rng.randint(3, 6))
    member, sends = rng.randrange(run.count), rng.random() < 0.5
    slow_line(run, member, sends, rng)
    assert run.find()[0] == [(SENDER if sends else RECEIVER, member, None)]


@pytest.mark.parametrize("seed", range(200))
def test_a_ring_that_is_full_all_round(seed):
    """The same bytes in the same time, and where they wait is by chance."""
    rng = random.Random(seed)
    run = Run(rng.randint(3, 8))
    full = rng.uniform(0.01, 0.06)
    for i, edge in enumerate(run.ring()):
        edge["acked_bytes"] = 500_000.0 * rng.randint(96, 100)
        edge["backlogged"] = float(rng.randint(20, 28) if rng.random() < 0.5 else rng.randint(0, 6))
        run.queue(full * rng.uniform(0.75, 1.25), ((i + 1) % run.count, i))
    assert run.find()[0] == []


def test_begin_times_of_a_ring():
    run = Run(8)
    run.late(3, 0.06)
    run.late(6, 0.02)
    begins = run.find()[2]
    assert begins == pytest.approx([0, 0, 0, 0.06, 0, 0, 0.02, 0], abs=1e-3)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.randoms())
def test_begin_times_are_those_that_the_pairs_tell(times, rng):
    count = len(times)
    pairs = [(i, (i + 1) % count, times[(i + 1) % count] - times[i]) for i in range(count)]
    rng.shuffle(pairs)
    found = begin_times(pairs, count)
    assert found == pytest.approx([time - min(times) for time in times], abs=1e-6)
    assert count < 2 or begin_times([pair for pair in pairs if 0 not in pair[:2]], count) is None


def test_groups_are_examined_by_themselves():
    run = Run(8)
    run.slow(5, 6)
    for member in run.members[4:]:
        member["group"] = 1
    for (i, k), edge in run.edges.items():
        if (i < 4) != (k < 4):
            edge |= dict.fromkeys(edge, 0.0) | {"reason": ""}
    places, findings, _ = run.find()
    assert places == [(EDGE, 5, 6)]
    assert "peer 06000000 (place 1 of the ring) to peer 07000000 (place 2 of the ring)" in findings[0].text


def test_an_operation_takes_the_others_no_less_than_they_wait_for_a_straggler():
    run = Run()
    run.late(2, 0.09)
    for member in run.members:
        member["op_seconds"] = OPS * 0.008
    run.members[2].update(name="host-c", rank=2)
    ((_, findings, _),) = [run.find()]
    assert findings[0].cost == 1
    assert findings[0].text == (
        "peer host-c (03000000, rank 2, place 2 of the ring) computes for longer: it starts operations 90.0 ms after the "
        "next-latest member, 100 % of the 90.0 ms that an operation takes the others"
    )


@pytest.mark.parametrize("case", ["straggler", "slow edge", "slow sender", "loss"])
def test_ages(case):
    def after(seconds):
        run = Run()
        CASES[case][1](run)
        if seconds:
            for member in run.members:
                member |= {"told_seconds": seconds, "live": 0}
        return run.find()[1]

    (fresh,) = after(0)
    assert " s ago" not in fresh.text
    assert after(9.0) == [fresh]
    (old,) = after(35.0)
    assert old.text == f"{fresh.text}, as of 35 s ago"
    assert old.confidence == pytest.approx(fresh.confidence / 2)
    assert asdict(old) == asdict(fresh) | {"text": old.text, "confidence": old.confidence}
    assert after(61.0) == []


NUMBERS = st.one_of(st.just(0.0), st.floats(0, 3e8), st.floats(0, 100), st.integers(0, 2**48))


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.data())
def test_any_numbers(count, data):
    """Reports are not proven."""
    run = Run(count)
    numbers = [name for name, value in Run(2).edges[0, 1].items() if name != "reason"]
    changes = st.dictionaries(st.sampled_from(numbers), NUMBERS, max_size=4)
    for pair, change in data.draw(st.lists(st.tuples(st.sampled_from(sorted(run.edges)), changes), max_size=8)):
        run.edges[pair] |= change
    numbers = ["silent_seconds", "told_seconds", "recent_seconds", "ops", "op_seconds", "live", "oldest_seconds", "still_seconds"]
    for member in run.members:
        member |= data.draw(st.dictionaries(st.sampled_from(numbers), NUMBERS, max_size=4))
    places, findings, begins = run.find()
    assert len(findings) <= FINDINGS_MOST
    assert len(begins) == count
    assert all(math.isfinite(begin) and begin >= 0 for begin in begins)
    for (_, member, other), finding in zip(places, findings, strict=True):
        assert member < count
        assert other is None or other < count
        assert 0 <= finding.cost <= 1
        assert 0 <= finding.confidence <= 1


def test_nobody():
    assert find([], [], 5.0) == ([], [])
