"""What a stress run must hold to: what is planted in its reports is found."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")


from stress.judge import CLAIMS, GrowthLimits, Judge, growth, trend
from stress.lab.processes import Usage
from stress.reports import Accepted, Ended, Expelled, Flaw
from stress_runs import op, step


@pytest.fixture
def judge():
    made = Judge(heartbeat_limit=1.5, bound=12.0)
    for number in range(3):
        made.started(number, number, number, 0.0)
    return made


def broken(judge):
    return [violation.claim for violation in judge.violations]


def test_a_good_run_passes(judge):
    for serial in range(3):
        judge.take(serial, Accepted(at=0.0, world=3, seconds=0.1, life=0))
        judge.take(serial, step())
        judge.take(serial, step(2, [], state="abc"))
    judge.gone(2, 11.0, -9, expected=True)
    judge.started(3, 2, 3, 11.5)
    for serial in (0, 1):
        judge.take(serial, step(3, [op(who=0b011, world=2, tries=2)]))
    for serial in (0, 1, 3):
        judge.take(serial, step(4, [op(who=0b1011)]))
        judge.take(serial, Ended(at=12.0, line=0, step=4, state="abc"))
    judge.finish(13.0, [0, 1, 3])
    assert broken(judge) == []


@pytest.mark.parametrize(
    ("one", "other", "claim"),
    [
        (op(world=2), None, "contributors"),
        (op(who=0b110, world=2), None, "contributors"),  # not in its own result
        (op(who=0b1000111, world=4), None, "contributors"),  # nobody has that code
        (op(), op(check=98), "agreement"),
        (op(), op(who=0b011, world=2), "agreement"),
        (op(), op(tries=2), "agreement"),
    ],
)
def test_wrong_contributors_and_disagreement_are_found(judge, one, other, claim):
    judge.take(0, step(ops=[one]))
    if other:
        judge.take(1, step(ops=[other]))
        assert broken(judge) == []  # one of them may not have survived it
        for serial in (0, 1):
            judge.take(serial, step(2, []))
    assert claim in broken(judge)


AGAIN = op(who=0b011, world=2, tries=2)
FROM_THE_MIDDLE = op(ranges=[(4, 0b111), (8, 0b011)], world=0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("end", ["expelled", "killed"])
@pytest.mark.parametrize(
    ("left", "others", "claims"),
    [
        pytest.param(op(), AGAIN, [], id="they made it again without the one that is gone"),
        pytest.param(op(), FROM_THE_MIDDLE, [], id="or some of it"),
        pytest.param(op(), op(), [], id="all agree"),
        pytest.param(op(who=0b101, world=2), FROM_THE_MIDDLE, ["agreement"], id="it has another result where they have it"),
        pytest.param(op(check=98), op(), ["agreement"], id="they have it"),
        pytest.param(op(tries=2), op(), ["agreement"], id="at another try"),
    ],
)
def test_who_is_gone_need_not_agree_with_what_was_made_without_it(judge, left, others, claims, end, order):
    # seed 114: a peer that was stopped found all inputs of an op when it woke
    judge.stopped(2, 5.0, 9.9)
    reports = {0: step(ops=[others]), 1: step(ops=[others]), 2: step(ops=[left])}
    for serial in order:
        judge.take(serial, reports[serial])
    if end == "expelled":
        judge.take(2, Expelled(at=10.1, detail="silent"))
        judge.take(2, Accepted(at=10.2, world=3, seconds=0.1, life=1))
    else:
        judge.gone(2, 10.1, -9, expected=True)
    for serial in (0, 1):
        judge.take(serial, step(2, [op(who=0b011, world=2)]))
    assert set(broken(judge)) == set(claims)


def test_a_member_must_agree_also_with_what_was_made_without_it(judge):
    for serial, one in ((0, AGAIN), (1, AGAIN), (2, op())):
        judge.take(serial, step(ops=[one]))
    for serial in range(3):
        judge.take(serial, step(2, []))
    assert broken(judge) == ["agreement"]


@pytest.mark.parametrize(
    ("ranges", "claims"),
    [
        ([(4, 0b111, ["a", "b", "c"]), (8, 0b011, ["a", "b"])], []),
        ([(4, 0b111, ["a", "b", "c"]), (8, 0b011, ["a", "c"])], ["contributors"]),  # the library names another
        ([(4, 0b011, ["a", "b"]), (8, 0b111, ["a", "b", "c"])], []),  # the first segment was made again
        ([(4, 0b011, ["a", "b"]), (8, 0b101, ["a", "c"])], ["contributors"]),  # one of them came in the middle
        ([(4, 0b110, ["b", "c"]), (8, 0b111, ["a", "b", "c"])], ["contributors"]),  # not in its own result
    ],
)
def test_every_range_must_have_the_contributors_that_the_library_says(judge, ranges, claims):
    for serial, name in enumerate("abc"):
        judge.take(serial, Accepted(at=0.0, world=3, seconds=0.1, life=0, uuid=name))
    judge.take(0, step(ops=[op(ranges=ranges, world=2)]))
    assert broken(judge) == claims


def test_a_name_may_be_heard_of_before_its_owner(judge):
    one = [(8, 0b011, ["a", "b"])]
    judge.take(0, Accepted(at=0.0, world=2, seconds=0.1, life=0, uuid="a"))
    judge.take(0, step(ops=[op(ranges=one, world=2)]))
    judge.take(0, step(2, ops=[op(ranges=[(8, 0b011, ["a", "x"])], world=2)]))
    judge.take(1, Accepted(at=0.0, world=2, seconds=0.1, life=0, uuid="b"))
    assert broken(judge) == []
    judge.finish(11.0, [])
    assert broken(judge) == ["contributors"]  # nobody was x


def test_goodput_counts_what_was_contributed():
    assert op().reduced == 3 * 64
    assert FROM_THE_MIDDLE.reduced == 3 * 32 + 2 * 32


def test_the_dead_contribute_no_more(judge):
    for serial in range(3):
        judge.take(serial, step(1))
    judge.gone(2, 10.1, -9, expected=True)
    judge.take(0, step(2))  # it may have begun this one
    assert broken(judge) == []
    judge.take(0, step(3))
    assert broken(judge) == ["contributors"]


def test_different_states_are_found(judge):
    judge.take(0, step(5, [], state="abc"))
    judge.take(1, step(5, [], state="abd"))
    assert broken(judge) == ["parity"]


def test_nobody_goes_back(judge):
    judge.take(0, step(5, []))
    judge.take(0, step(5, []))
    assert broken(judge) == ["agreement"]


def test_flaws_and_crashes_and_hangs_are_found(judge):
    judge.take(0, Flaw(at=1.0, claim="sum", detail="element 7"))
    judge.gone(1, 2.0, 1, expected=False)
    judge.hung(2, 3.0, "reduce", 13.0, "peer 0 in meet")
    assert broken(judge) == ["sum", "crash", "hang"]
    assert set(broken(judge)) <= set(CLAIMS)
    assert "peer 2 (process 2, code 2) has been in reduce for 13.0 s" in judge.violations[2].detail


@pytest.mark.parametrize(
    ("told", "explained"),
    [
        (lambda judge: None, False),
        (lambda judge: judge.stopped(0, 5.0, 8.0), True),
        (lambda judge: judge.stopped(0, 9.0, 9.5), False),  # too short to be given up for
        (lambda judge: judge.stopped(1, 5.0, 8.0), False),  # another one
        (lambda judge: judge.cut(0, 9.0), False),  # it is repaired
        (lambda judge: (judge.cut(0, 9.0), judge.cut(1, 9.2)), True),
        (lambda judge: judge.master_died(9.0), True),
    ],
)
def test_an_expulsion_needs_a_cause(judge, told, explained):
    told(judge)
    judge.take(0, Expelled(at=10.0, detail="silent"))
    assert broken(judge) == ([] if explained else ["expelled"])


@pytest.mark.parametrize(
    ("told", "explained"),
    [
        (lambda judge: None, False),  # the next master takes the run up
        (lambda judge: judge.gone(1, 9.5, -9, expected=True), False),  # two of three are more than half
        (lambda judge: (judge.gone(1, 9.5, -9, expected=True), judge.stopped(2, 9.2, 9.9)), True),
        (lambda judge: (judge.gone(1, 5.0, -9, expected=True), judge.gone(2, 9.5, -9, expected=True)), True),  # one of two
        (lambda judge: judge.master_died(9.6), True),
    ],
)
def test_a_master_that_is_followed_by_another_is_no_cause(told, explained):
    judge = Judge(heartbeat_limit=1.5, bound=12.0, recovery=9.0)
    for number in range(3):
        judge.started(number, number, number, 0.0)
    judge.master_died(9.0)
    told(judge)
    judge.take(0, Expelled(at=10.0, detail="no master"))
    assert broken(judge) == ([] if explained else ["expelled"])


def test_who_does_not_leave_with_the_others_is_found(judge):
    judge.take(0, Ended(at=1.0, line=0, step=9, state="a"))
    judge.take(1, Ended(at=1.0, line=0, step=9, state="b"))
    judge.finish(2.0, [0, 1, 2])
    assert broken(judge) == ["end", "end"]


# ---- where peers train ----


@pytest.fixture
def trains():
    return judges(delay=0)


def judges(delay):
    made = Judge(heartbeat_limit=1.5, bound=12.0, delay=delay)
    for number in range(3):
        made.started(number, number, number, 0.0)
    return made


def accepted(judge, serial, at_step=0, state="s0", line=7):
    judge.take(serial, Accepted(at=0.0, world=3, seconds=0.1, life=0, uuid="abc"[serial], line=line, step=at_step, state=state))


def trained(number, who, names, state="", line=7):
    return step(number, [op(ranges=[(8, who, list(names))], world=0)], line=line, state=state or f"s{number}")


def test_a_good_training_passes(trains):
    for serial in (0, 1):
        accepted(trains, serial)
        trains.take(serial, trained(1, 0b011, "ab"))
    accepted(trains, 2, 1, "s1")
    for serial in range(3):
        trains.take(serial, trained(2, 0b111, "abc"))
    trains.gone(1, 11.0, -9, expected=True)
    trains.take(0, trained(3, 0b111, "abc"))
    for serial in (0, 2):
        trains.take(serial, Ended(at=12.0, line=7, step=3, state="s3"))
    trains.finish(13.0, [0, 2])
    assert broken(trains) == []


@pytest.mark.parametrize(
    ("report", "claim"),
    [
        (trained(2, 0b001, "a"), "agreement"),  # an outer step is left out
        (trained(1, 0b001, "a", line=8), "agreement"),  # of another run
        (trained(1, 0b001, "ab"), "contributors"),
        (trained(1, 0b011, "a"), "contributors"),
        (trained(1, 0b010, "b"), "contributors"),
    ],
)
def test_wrong_outer_steps_are_found(trains, report, claim):
    accepted(trains, 0)
    accepted(trains, 1)
    trains.take(0, report)
    assert claim in broken(trains)


def test_a_newcomer_begins_with_the_state_of_the_others(trains):
    accepted(trains, 0)
    trains.take(0, trained(1, 0b001, "a"))
    accepted(trains, 1, 1, "other")
    assert broken(trains) == ["parity"]


def test_a_newcomer_has_nothing_to_give_to_an_average_under_way():
    for who, claims in ((0b011, []), (0b111, ["contributors"])):
        judge = judges(delay=1)
        for serial in (0, 1):
            accepted(judge, serial)
            judge.take(serial, step(1, [], line=7, state="s1"))
        accepted(judge, 2, 1, "s1")
        judge.take(2, trained(2, who, "abc"))
        assert broken(judge) == claims
        judge.take(0, trained(2, 0b011, "abc"))
        judge.take(0, trained(3, 0b011, "abc"))
        assert broken(judge) == [*claims, "contributors"]  # by now it has


def test_the_dead_are_in_the_averages_that_they_have_launched():
    judge = judges(delay=1)
    for serial in (0, 1):
        accepted(judge, serial)
        judge.take(serial, step(1, [], line=7, state="s1"))
    judge.gone(1, 11.0, -9, expected=True)
    for number in (2, 3):  # it may have launched the next one before it could tell
        judge.take(0, trained(number, 0b011, "ab"))
    assert broken(judge) == []
    judge.take(0, trained(4, 0b011, "ab"))
    assert broken(judge) == ["contributors"]


# ---- growth ----

MIB = 1 << 20


def usages(bytes_at, descriptors_at=lambda second: 20, seconds=120):
    rng = random.Random(1)
    return [Usage(second, int(bytes_at(second) + rng.uniform(-1, 1) * MIB), descriptors_at(second)) for second in range(seconds)]


def test_a_leak_is_found():
    assert "bytes" in growth(usages(lambda second: (50 + second) * MIB))
    assert "descriptors" in growth(usages(lambda second: 50 * MIB, lambda second: 20 + second // 5))


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(lambda second: 50, id="level"),
        pytest.param(lambda second: min(second, 10) * 8, id="warms up"),
        pytest.param(lambda second: 50 + 300 * (second % 20 == 0), id="peaks"),
        pytest.param(lambda second: 50 + 20 * (second % 7 > 3), id="saw"),
        pytest.param(lambda second: 90 - second / 2, id="shrinks"),
        pytest.param(lambda second: 50 + second / 20, id="less than the limit"),
    ],
)
def test_no_leak_is_found_where_there_is_none(level):
    assert growth(usages(lambda second: level(second) * MIB)) == ""


def test_short_lives_are_not_judged():
    assert growth(usages(lambda second: second * 100 * MIB, seconds=29)) == ""
    assert growth(usages(lambda second: second * MIB), GrowthLimits(bytes=500 * MIB)) == ""


def test_the_trend_ignores_outliers():
    values = [2.0 * second for second in range(50)]
    values[7] = values[31] = 1e6
    assert trend(range(50), values) == pytest.approx(2.0)
    assert trend([1.0], [5.0]) == 0.0
