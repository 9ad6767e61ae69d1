"""Deaths in ops in retry mode: no error, only what was not complete is redone, and the result tells who is in what."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from actors import Fate, Ops, Reduce, all_follow, cast, check_agreement, losses

from pccl import QuantizationAlgorithm, ReduceOp

LARGE = 9_000_000
"""float32: 17 segments."""
SEGMENT = 1 << 19
AHEAD = 6
"""Segments under way at once: what a death may cost at most."""
WAYS = [(in_place, same_host) for in_place in (True, False) for same_host in "01"]


def play(steps, fates, count=3, **options):
    """What the survivors saw, who must agree."""
    with cast(count, **options) as (_, actors):
        logs = all_follow(actors, steps, fates)
        assert set(logs) == set(range(count)) - set(fates)
        check_agreement(logs)
        last = {}
        if count - len(fates) > 1:  # after all deaths
            last = all_follow([actor for actor in actors if actor.number in logs], [Ops("retry", (Reduce(10),))])
            check_agreement(last)
    log = next(iter(logs.values())) + next(iter(last.values()), [])
    assert not losses(log)
    check_names(log)
    return log


def resumed(log):
    """The ranges of the ops, in order."""
    return [entry[3] for entry in log if entry[2:3] == ("resumed",)]


def check_names(log):
    """The peers that an op names are those whose values are in it: one value, one name, throughout."""
    names: dict[Any, Any] = {}
    for ranges in resumed(log):
        for _, _, who, uuids in ranges:
            assert names.setdefault(who, uuids) == uuids
    for (who, uuids), (other, others) in itertools.combinations(names.items(), 2):
        assert (who & other).bit_count() == len(set(uuids) & set(others))


def check_loss(log, everyone, survivors, cost=(AHEAD + 1) * SEGMENT):
    """Ops before the death are of everyone, later ones of the survivors; one may be of both, and costs what was under way."""
    who = [{mask for _, _, mask, _ in ranges} for ranges in resumed(log)]
    assert all(masks <= {everyone, survivors} for masks in who)
    assert who[-1] == {survivors}
    first = next(number for number, masks in enumerate(who) if survivors in masks)
    assert all(masks == {everyone} for masks in who[:first])
    assert all(masks == {survivors} for masks in who[first + 1 :])
    if who[first] == {everyone, survivors}:
        ranges = resumed(log)[first]
        at = max(stop for _, stop, mask, _ in ranges if mask == everyone)
        redone = sum(stop - start for start, stop, mask, _ in ranges if mask == survivors and start < at)
        assert redone < cost
        return True
    return False


@pytest.mark.parametrize(("in_place", "same_host"), WAYS)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_in_a_large_op(victim, in_place, same_host):
    fraction = (0.2, 0.5, 0.9)[(victim + WAYS.index((in_place, same_host))) % 3]
    reduce = Reduce(LARGE, "float32", in_place)
    steps = [Ops("retry", (reduce, reduce)), Ops("retry", (reduce, reduce)), Ops("retry", (reduce,))]
    log = play(steps, {victim: Fate(1, fraction=fraction)}, environment={"PCCL_SAME_HOST_MEMORY": same_host})
    check_loss(log, 7, 7 - (1 << victim))
    assert log[-1][-1] == 2  # the loss is adopted without an error


def test_resumes():
    """Of deaths spread over an op one at least falls into it, and then it keeps what was complete."""
    reduce = Reduce(2 * LARGE, "float32", False)
    steps = [Ops("retry", (reduce, reduce)), Ops("retry", (reduce,))]
    fractions = 3 * (0.5, 0.3, 0.7, 0.4, 0.6, 0.2, 0.8, 0.1, 0.5, 0.3)
    deaths = (play(steps, {1: Fate(1, fraction=fraction)}, environment={"PCCL_SAME_HOST_MEMORY": "0"}) for fraction in fractions)
    assert any(check_loss(log, 7, 5) for log in deaths)


@pytest.mark.parametrize(
    ("quantized", "op", "in_place", "fraction"),
    [
        (QuantizationAlgorithm.MIN_MAX, ReduceOp.SUM, True, 0.3),
        (QuantizationAlgorithm.MIN_MAX, ReduceOp.SUM, False, 0.7),
        (None, ReduceOp.AVG, True, 0.7),
        (None, ReduceOp.AVG, False, 0.3),
        (QuantizationAlgorithm.ZERO_POINT_SCALE, ReduceOp.SUM, True, 0.3),
        (QuantizationAlgorithm.ZERO_POINT_SCALE, ReduceOp.SUM, False, 0.7),
        (QuantizationAlgorithm.BLOCK_E3M0, ReduceOp.SUM, True, 0.7),
        (QuantizationAlgorithm.BLOCK_E3M0, ReduceOp.SUM, False, 0.3),
    ],
)
def test_averages_and_quantised_ops(quantized, op, in_place, fraction):
    """An average divides each range by those who are in it."""
    reduce = Reduce(LARGE, "float32", in_place, quantized, op)
    steps = [Ops("retry", (reduce, reduce)), Ops("retry", (reduce,))]
    check_loss(play(steps, {1: Fate(1, fraction=fraction)}), 7, 5)


@pytest.mark.parametrize("delay", [0.002, 0.01, 0.03, 0.06])
@pytest.mark.parametrize("in_place", [True, False])
def test_many_ops_in_flight(delay, in_place):
    sizes = [LARGE, 10, 2_000_000, 100_000, LARGE // 2, 1, 1_500_000]
    reduces = tuple(Reduce(size, "float32", in_place) for size in sizes)
    log = play([Ops("retry_async", reduces), Ops("retry_async", reduces)], {2: Fate(1, delay)})
    for ranges in resumed(log):
        assert {mask for _, _, mask, _ in ranges} <= {7, 3}


@pytest.mark.parametrize("gap", [0.0, 0.005, 0.02, 0.05])
@pytest.mark.parametrize("way", ["retry", "retry_async"])
def test_a_second_death_in_what_is_redone(way, gap):
    reduce = Reduce(LARGE, "float32")
    fates = {1: Fate(1, fraction=0.4), 3: Fate(1, gap, fraction=0.4)}
    log = play([Ops("retry", (reduce,)), Ops(way, (reduce,) * 3)], fates, count=4)
    for ranges in resumed(log):
        assert {mask for _, _, mask, _ in ranges} <= {15, 13, 7, 5}
    assert {mask for _, _, mask, _ in resumed(log)[-1]} == {5}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("fraction", [0.3, 0.6])
def test_down_to_the_last(fraction, in_place):
    """The last one keeps what was complete, and its own input elsewhere."""
    reduce = Reduce(2 * LARGE, "float32", in_place)
    # It dies in one of them, however slow the last one of the others was.
    log = play([Ops("retry", (reduce, reduce)), Ops("retry", (reduce,) * 40)], {0: Fate(1, fraction=fraction)}, count=2)
    assert log[-1][2] == "alone"
    assert {mask for _, _, mask, _ in log[-1][3]} <= {3, 0}


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("delay", [0.01, 0.05])
def test_plain_among_them(victim, delay):
    """A member that runs its ops plain meets others in retry mode: it gets its error, they get none, and all get the same."""
    reduces = (Reduce(LARGE, "float32"), Reduce(1000), Reduce(LARGE // 2))
    with cast(3) as (_, actors):
        logs = all_follow(actors, [Ops("mixed", reduces), Ops("mixed", reduces * 2)], {victim: Fate(1, delay)})
        survivors = [actors[0], actors[3 - victim]]
        last = all_follow(survivors, [Ops("mixed", reduces)])
    plain, retry = (logs[actor.number] + last[actor.number] for actor in survivors)
    assert len(losses(plain)) == 1
    assert not losses(retry)
    sums = [entry[3] for entry in plain if entry[2] == "done"]
    assert [crc for _, crc in sums] == [entry[5] for entry in retry]
    assert [who for who, _ in sums] == [entry[3][0][2] for entry in retry]
    assert all(len(entry[3]) == 1 for entry in retry)
