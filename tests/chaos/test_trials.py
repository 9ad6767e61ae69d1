"""Seeded random trials: random scripts, random deaths, random newcomers.

CHAOS_SEED=17 plays one seed alone; CHAOS_TRIALS=5000 plays so many (60 unless told), from CHAOS_FIRST on.
A seed fixes the script, and when in it who dies.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import time

import pytest
from actors import PATIENCE, Actor, Fate, Meet, Ops, Pause, Reduce, Vote, cast, check_agreement, losses

from pccl import QuantizationAlgorithm

BATCH = 10
"""Seeds per test: few enough to spread over workers, enough to pay for a test's start."""

ONE = os.environ.get("CHAOS_SEED")
FIRST = int(ONE or os.environ.get("CHAOS_FIRST", "0"))
TRIALS = 1 if ONE else int(os.environ.get("CHAOS_TRIALS", "60"))

EXACT = [QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE, QuantizationAlgorithm.BLOCK_E3M0]
"""Those that write elements which are all alike without a rounding."""


def random_reduce(rng: random.Random) -> Reduce:
    count = rng.choice([1, 2, 7, 100, 1000, 5000, 16_384, 40_000, 100_000, 300_000, 1_300_000])
    if rng.random() < 0.2:
        return Reduce(count, "float32", rng.random() < 0.5, rng.choice(EXACT))
    return Reduce(count, rng.choice(["int64", "int32", "float32", "float64"]), rng.random() < 0.6)


def random_step(rng: random.Random, votes: list[str]) -> Ops | Vote | Pause:
    pick = rng.random()
    if pick < 0.1:
        return Pause(rng.random() * 0.01)
    if pick < 0.3:
        return Vote(rng.choice(votes), rng.random() * 0.005)
    way = rng.choice(["plain", "async", "async", "multi", "retry", "retry_async"])
    reduces = tuple(random_reduce(rng) for _ in range(rng.randint(1, 4 if way == "plain" else 8)))
    return Ops(way, reduces, rng.randint(1, 8))


def play(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([2, 3, 3, 3, 4, 4, 5])
    fresh_count = rng.choice([0, 0, 1, 1, 2])
    # a newcomer cannot know what a vote said before, so an optimisation, which a lone peer may not ask for, is rare
    votes = ["are_peers_pending"] * 3 + ["optimize_topology"] * (rng.random() < 0.05)
    steps = [random_step(rng, votes) for _ in range(rng.randint(5, 10))]
    for _ in range(rng.choice([0, 1, 1, 2])):
        steps.insert(rng.randint(1, len(steps)), Meet(rng.choice([0.001, 0.01, 0.03])))
    steps.append(Ops("plain", (Reduce(10), random_reduce(rng))))
    victims = rng.sample(range(count), rng.choice([0, 1, 1, 1, 2, min(3, count)][: count + 2]))
    busy = [number for number, step in enumerate(steps) if isinstance(step, Ops)]
    place = rng.choice(busy)
    together = rng.random() < 0.4
    fates = {}
    for victim in victims:
        step = place if together else rng.choice(busy) if rng.random() < 0.6 else rng.randrange(len(steps))
        fates[victim] = Fate(step, rng.choice([0.0, rng.random() * 0.001, rng.random() * 0.005, rng.random() * 0.02]))
    environment = {"PCCL_SAME_HOST_MEMORY": rng.choice("01")}
    with cast(count, lanes=rng.choice([0, 1, 2, 8]), environment=environment) as (address, actors):
        members = list(actors)
        for number in range(count, count + fresh_count):
            fresh = Actor(address, number, 0, rng.choice([0, 1, 3]), environment)
            actors.append(fresh)
            fresh.ask("ready")
            fate = Fate(rng.randrange(len(steps)), rng.random() * 0.01) if rng.random() < 0.3 else None
            dies_after = rng.random() * 0.02 if rng.random() < 0.3 else None
            fresh.tell("join_late", steps, fate, rng.random() ** 2 * 0.04, dies_after)
        for actor in members:
            actor.tell("follow", steps, fates.get(actor.number))
        logs = {actor.number: actor.answer() for actor in members}
        for fresh in actors[count:]:
            if not fresh.waits_in_connect():  # who was admitted before the end has said so before it
                logs[fresh.number] = fresh.answer()
        logs = {number: log for number, log in logs.items() if log is not None}
        if logs:
            check_agreement(logs)
            check_numbers(logs)
        for actor in members:  # in their own good time, so that nobody is lost while another still reads its answer
            actor.tell("close")


def check_numbers(logs: dict[int, list]) -> None:
    """Who is gone never comes back in a later step, and a loss costs a program at most one round of errors."""
    for log in logs.values():
        gone, before = 0, 0
        for _, entries in itertools.groupby(log, key=lambda entry: entry[0]):
            seen = [who for entry in entries for who in contributors_of(entry)]  # at once in flight: in no order
            if not seen:
                continue
            some, all_of_them = functools.reduce(operator.or_, seen), functools.reduce(operator.and_, seen)
            assert not some & gone, f"{gone & some} came back: {log}"
            gone |= (before | some) & ~all_of_them
            before = all_of_them
        assert len(losses(log)) <= 7


def contributors_of(entry: tuple) -> list[int]:
    if entry[1] == "multi":
        return [who for who, _ in entry[3]]
    if entry[2:3] == ("done",):
        return [entry[3][0]]
    if entry[2:3] == ("resumed",):
        return [who for _, _, who, _ in entry[3]]
    return []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", range(FIRST, FIRST + TRIALS, BATCH))
def test_trials(first):
    for seed in range(first, min(first + BATCH, FIRST + TRIALS)):
        begin = time.monotonic()
        try:
            play(seed)
        except BaseException:
            print(f"replay with CHAOS_SEED={seed}")
            raise
        assert time.monotonic() - begin < PATIENCE, f"seed {seed} hung somewhere"
