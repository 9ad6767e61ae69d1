"""Kills, stops, joins, failed steps and roll-backs at random, with loaders that read ahead: each sample is committed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from sampler_world import World, play, play_programs, play_unevenly

SCHEDULES, PARTS = 1000, 5


def play_all(play_one: Callable[[int], object], seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            play_one(seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_each_sample_of_an_epoch_is_in_one_committed_step(part):
    """Members stay in step with each other, commit what they have trained with, and leave nothing."""
    play_all(play, range(part, SCHEDULES, PARTS))


@pytest.mark.parametrize("part", range(2))
def test_members_that_make_different_numbers_of_steps(part):
    play_all(play_unevenly, range(part, 400, 2))


@pytest.mark.long
def test_programs_of_newcomers_and_members_make_their_steps_together():
    play_all(play_programs, range(1000))


@pytest.mark.parametrize("seed", range(40))
def test_the_same_contributors_give_the_same_order(seed):
    assert play(seed) == play(seed)


@pytest.mark.parametrize("members", [1, 2, 4])
def test_without_changes_the_order_is_that_of_seed_and_epoch(members):
    """Each step is the next part of the order, however many members read it."""
    found = []
    for number in (1, members):
        world = World(8, size=60, batch=12 // number, ahead=0, members=number)
        for _ in range(5):
            for one in world.members:
                assert one.next()
                one.seal()
            world.commit([])
        found.append([set(world.committed[at : at + 12]) for at in range(0, 60, 12)])
    assert found[0] == found[1]


@pytest.mark.parametrize("members", [2, 3])
def test_with_drop_last_nothing_is_repeated(members):
    world = World(4, size=20, batch=2, ahead=2, members=members, drop_last=True)
    while {one.next() for one in world.members} == {True}:
        assert all(all(one.sampler.mask(len(one.open))) for one in world.members)
        for one in world.members:
            one.seal()
        world.commit([])
    world.check(1)
    assert len(world.committed) == 20 // members * members
