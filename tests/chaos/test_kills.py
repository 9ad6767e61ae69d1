"""One peer dies at a chosen moment: what the others see, op by op."""

from __future__ import annotations

import time

import pytest
from actors import Actor, Fate, Meet, Ops, Pause, Reduce, Vote, all_follow, cast, check_agreement, contributors, losses

from pccl import QuantizationAlgorithm

LARGE = 1_500_000
MEDIUM = 200_000


def play(steps, fates, count=3, **options):
    """What the survivors saw, who must agree; a small op more, after all deaths, ends it."""
    with cast(count, **options) as (_, actors):
        logs = all_follow(actors, steps, fates)
        assert set(logs) == set(range(count)) - set(fates)
        check_agreement(logs)
        last = all_follow([actor for actor in actors if actor.number in logs], [Ops("plain", (Reduce(10),))])
        check_agreement(last)
    return next(iter(logs.values())) + next(iter(last.values()))


def check_one_loss(log, ops, everyone, survivors):
    """One error in all, and every sum is of everyone before it and of the survivors after it."""
    assert len(losses(log)) == 1
    who = contributors(log)
    assert len(who) == ops
    assert set(who) <= {everyone, survivors}
    assert who == sorted(who, reverse=everyone > survivors)
    assert who[-1] == survivors


@pytest.mark.parametrize(("in_place", "same_host"), [(True, "0"), (True, "1"), (False, "1")])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_in_a_large_op(fraction, victim, same_host, in_place):
    reduce = Reduce(LARGE, "float32", in_place)
    steps = [Ops("plain", (reduce, reduce)), Ops("plain", (reduce,)), Ops("plain", (reduce, reduce))]
    log = play(steps, {victim: Fate(1, fraction=fraction)}, environment={"PCCL_SAME_HOST_MEMORY": same_host})
    check_one_loss(log, 6, 7, 7 - (1 << victim))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_in_a_quantised_op(fraction):
    quantised = Reduce(LARGE, "float32", True, QuantizationAlgorithm.MIN_MAX)
    steps = [Ops("plain", (quantised, quantised)), Ops("plain", (quantised, quantised))]
    check_one_loss(play(steps, {1: Fate(1, fraction=fraction)}), 5, 7, 5)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01])
def test_among_small_ops(delay, in_place):
    steps = [Ops("plain", (Reduce(1000, in_place=in_place),) * 300)]
    log = play([Ops("plain", (Reduce(10),)), *steps], {2: Fate(1, delay)})
    check_one_loss(log, 302, 7, 3)


@pytest.mark.parametrize("way", ["plain", "async", "multi"])
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_between_ops(way, pause):
    """Nothing runs when it dies: the next op alone tells of it, and multiple_with_retry not even that."""
    last = Ops(way, tuple(Reduce(count) for count in (10, MEDIUM, 1)))
    with cast(3) as (_, actors):
        logs = all_follow(actors, [Ops("plain", (Reduce(10),))])
        check_agreement(logs)
        actors[0].kill()
        later = all_follow(actors[1:], [Pause(pause), last, last])
        check_agreement(later)
    log = logs[1] + later[1]
    if way == "multi":
        assert not losses(log)
        assert [[who for who, _ in entry[3]] for entry in log if entry[1] == "multi"] == [[6, 6, 6]] * 2
    elif way == "plain":
        check_one_loss(log, 7, 7, 6)
    else:
        # one round of three errors, then every op once
        assert [entry[1] for entry in losses(log)] == [[0, 1, 2]]
        assert contributors(log) == [7, *[6] * 6]


@pytest.mark.parametrize("delay", [0.0, 0.005, 0.02, 0.06])
@pytest.mark.parametrize("way", ["async", "multi"])
def test_with_many_ops_in_flight(way, delay):
    sizes = [1, 100, 40_000, MEDIUM, 500_000, 3, 70_000, MEDIUM]
    reduces = tuple(Reduce(size, in_place=position % 2 == 0) for position, size in enumerate(sizes))
    log = play([Ops(way, reduces), Ops(way, reduces)], {1: Fate(1, delay)})
    assert log[-1][3][0] == 5
    assert len(losses(log)) <= 1
    if way == "multi":
        assert all({who for who, _ in entry[3]} <= {7, 5} for entry in log if entry[1] == "multi")
    else:
        assert set(contributors(log)) <= {7, 5}


@pytest.mark.parametrize("call", ["update_topology", "are_peers_pending", "optimize_topology"])
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01, 0.05])
def test_in_a_vote(call, delay):
    """In it alone, in it with the others, or while they wait for it; an optimisation also while it measures."""
    late = [Vote(call, stagger=0.04) for _ in range(3)]
    log = play([Ops("plain", (Reduce(10),)), *late, Ops("plain", (Reduce(10), Reduce(MEDIUM)))], {2: Fate(1, delay)})
    assert contributors(log)[-1] == 3
    if call == "are_peers_pending":  # it adopts nothing, so the loss shows in the op
        assert len(losses(log)) == 1
        assert all(entry[3] == 3 for entry in log if entry[1] == call)


@pytest.mark.parametrize("gap", [0.0, 0.001, 0.005, 0.03])
def test_two_deaths_in_a_row(gap):
    reduce = Reduce(1_000_000)
    fates = {1: Fate(1, fraction=0.3), 3: Fate(1, gap, fraction=0.3)}
    log = play(
        [Ops("plain", (reduce, reduce)), Ops("plain", (reduce,) * 3), Pause(0.2), Ops("plain", (Reduce(10),))], fates, count=4
    )
    assert 1 <= len(losses(log)) <= 2
    assert contributors(log)[-1] == 5


@pytest.mark.parametrize("way", ["plain", "async", "multi"])
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (2, 3)])
def test_two_of_four_at_once(pair, way):
    reduces = (Reduce(1_000_000), Reduce(1000), Reduce(MEDIUM))
    with cast(4) as (_, actors):
        survivors = [actor for actor in actors if actor.number not in pair]
        for actor in actors:
            actor.tell("follow", [Ops(way, reduces * 10)])
        time.sleep(0.05)
        for number in pair:
            actors[number].kill()
        check_agreement({actor.number: actor.answer() for actor in survivors})
        last = all_follow(survivors, [Ops("plain", reduces)])
    check_agreement(last)
    assert contributors(next(iter(last.values()))) == [15 - sum(1 << number for number in pair)] * 3


@pytest.mark.parametrize("count", [2, 4])
def test_down_to_the_last(count):
    """One after another dies: an error each, and the last one is told that it is alone."""
    fates = {number: Fate(2 * number + 1) for number in range(count - 1)}
    steps = [Ops("plain", (Reduce(1000), Reduce(MEDIUM))), Pause(0.05)] * (count + 1)
    log = play(steps, fates, count=count)
    assert len(losses(log)) == count - 1
    assert log[-1][2] == "alone"
    assert losses(log)[-1][3] == [1, 1, 1, 1]


def test_in_another_group():
    """Ops of a group do not notice the deaths of another one, which repeats its op while the first is in a vote already."""
    ops = Ops("plain", (Reduce(MEDIUM), Reduce(100)) * 10)
    steps = [ops, Ops("plain", (Reduce(1_000_000),)), Vote("update_topology"), ops]
    with cast(5, groups=[0, 0, 1, 1, 1]) as (_, actors):
        logs = all_follow(actors, steps, {3: Fate(1, 0.003)})
        assert set(logs) == {0, 1, 2, 4}
        last = all_follow([actor for actor in actors if actor.number in logs], [ops])
    for pair, before, after in (((0, 1), 3, 3), ((2, 4), 28, 20)):
        check_agreement({number: logs[number] for number in pair})
        check_agreement({number: last[number] for number in pair})
        assert set(contributors(logs[pair[0]])) <= {before, after}
        assert set(contributors(last[pair[0]])) == {after}
        assert len(losses(logs[pair[0]] + last[pair[0]])) <= (before != after)


@pytest.mark.parametrize("delays", [[i * 0.0005 for i in range(12)], [0.006 + i * 0.002 for i in range(12)]])
def test_while_joining(delays):
    """Newcomers die after each half millisecond of their way in. An accepted one costs an error, any other one nothing."""
    with cast(3) as (address, actors):
        for turn, delay in enumerate(delays):
            fresh = Actor(address, 3)
            try:
                fresh.tell("connect_and_die", delay)
                logs = all_follow(actors, [Vote("update_topology", 0.004)] * 6 + [Ops("plain", (Reduce(10), Reduce(MEDIUM)))])
                assert fresh.answer() is None
            finally:
                fresh.kill()
            check_agreement(logs)
            assert len(losses(logs[0])) <= 1, (turn, delay)
            again = all_follow(actors, [Pause(0.02), Ops("plain", (Reduce(10),))])
            check_agreement(again)
            assert contributors(again[0]) == [7]


def wait_for_newcomer(actors):
    answers = [False]
    while not all(answers):
        for actor in actors:
            actor.tell("call", "are_peers_pending")
        answers = [actor.answer() for actor in actors]


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.004, 0.008])
def test_an_accepted_peer_dies_while_another_joins(victim, delay):
    """The newcomer is in, once, and the others go on with it."""
    steps = [Meet(0.003), Pause(0.02), Meet(), Ops("plain", (Reduce(10), Reduce(MEDIUM), Reduce(10)))]
    with cast(3) as (address, actors):
        fresh = Actor(address, 3)
        actors.append(fresh)
        fresh.tell("join_late", steps, None, 0.0, None)
        wait_for_newcomer(actors[:3])
        logs = all_follow(actors[:3], steps, {victim: Fate(0, delay)})
        assert set(logs) == {0, 1, 2} - {victim}
        logs[3] = fresh.answer()
        last = all_follow([actor for actor in actors if actor.number != victim], [Ops("plain", (Reduce(10),))])
    check_agreement({number: [e for e in log if e[0] > 0] for number, log in logs.items()})
    check_agreement(last)
    assert contributors(last[1]) == [15 - (1 << victim)]
