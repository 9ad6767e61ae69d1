"""DiLoCo against the simulation, bit for bit: joins, deaths, the loss of the master, weights, and what a joiner gets."""

from __future__ import annotations

import numpy as np
import pytest
from diloco_peers import Peer, contributing, run
from diloco_reference import flat, make_model, simulate

EVERY = 5


def train(peers: list[Peer], rounds: int = 1) -> list[list[dict]]:
    """The rounds of each peer, all at once."""
    for peer in peers:
        peer.tell("train", rounds)
    return [peer.answer() for peer in peers]


def agree(told: list[list[dict]]) -> list[dict]:
    """What the rounds of all peers have in common, which is all that the outer state depends on."""
    assert not any(isinstance(one, str) for one in told), told
    for ours in zip(*told, strict=True):
        for key in ("step", "parity", "ranges", "world", "admitted"):
            assert len({str(one[key]) for one in ours}) == 1, key
        assert all(one["repaired"] == 0 for one in ours)
    return told[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_follows_the_simulation(count):
    with run(count, sync_every=EVERY) as (_, peers):
        rounds = agree(train(peers, 4))
        assert [one["step"] for one in rounds] == [1, 2, 3, 4]
        workers = [peer.worker for peer in peers]
        *_, expected = simulate([workers] * 4, every=EVERY)
        for peer in peers:
            np.testing.assert_array_equal(peer.ask("parameters"), expected)
            np.testing.assert_array_equal(peer.ask("inner_parameters"), expected)


def test_weights_count_in_the_average():
    weights = [1.0, 300.0, 17.5]
    with run(3, sync_every=EVERY, weights=weights) as (_, peers):
        agree(train(peers, 3))
        *_, expected = simulate([[peer.worker for peer in peers]] * 3, every=EVERY, weight=weights.__getitem__)
        np.testing.assert_array_equal(peers[0].ask("parameters"), expected)


def test_a_large_model_goes_around_the_ring():
    with run(3, sync_every=2, width=40_000) as (_, peers):
        agree(train(peers, 2))
        *_, expected = simulate([[peer.worker for peer in peers]] * 2, every=2, width=40_000)
        np.testing.assert_allclose(peers[1].ask("parameters"), expected, rtol=0, atol=1e-6)  # the ring has another order


@pytest.mark.parametrize("weights", [None, [4.0, 1.0, 2.0]])
def test_churn_follows_the_simulation_with_the_same_contributors(weights):
    """A join, a death between outer steps and one while others wait, the master's death, and one that is left alone."""
    settings = {"sync_every": EVERY, "weights": weights}
    with run(2, **settings) as (master, peers):
        first, second = peers
        present = []
        told = agree(train(peers))
        joiner = Peer(master.address, 2, seed=9, **settings)
        joiner.tell("enter")
        while not told[-1]["admitted"]:
            told += agree(train(peers))
        assert joiner.entered() == len(told)
        everyone = [first, second, joiner]
        assert joiner.ask("parameters").tolist() == first.ask("parameters").tolist()
        assert joiner.ask("inner_parameters").tolist() == first.ask("parameters").tolist()
        told += agree(train(everyone))
        assert told[-1]["world"] == 3

        master.kill()
        for peer in everyone:
            peer.tell("train", 1)
        master.start()
        told += agree([peer.answer() for peer in everyone])

        for peer in (first, joiner):
            peer.tell("train", 1)
        second.ask("inner")
        second.kill()
        told += agree([peer.answer() for peer in (first, joiner)])

        first.kill()
        told += joiner.ask("train", 2)
        assert told[-1]["world"] == 1
        present = [contributing(one, everyone) for one in told]
        assert present[-4:] == [[first.worker, second.worker, 2], [first.worker, 2], [2], [2]]
        *_, expected = simulate(present, every=EVERY, weight=weights and weights.__getitem__)
        np.testing.assert_array_equal(joiner.ask("parameters"), expected)
        joiner.kill()


def test_settings_and_numbers_of_the_run_reach_a_joiner():
    with run(2, sync_every=1, outer_lr=0.5, state={"tokens": 3, "rate": 0.25}) as (master, peers):
        joiner = Peer(master.address, 2, sync_every=7, outer_lr=0.7, peers=5, state={"tokens": 0, "rate": 0.0})
        joiner.tell("enter")
        while not train(peers)[0][0]["admitted"]:
            pass
        joiner.entered()
        assert joiner.ask("state") == {"tokens": 3, "rate": 0.25}
        everyone = [*peers, joiner]
        assert [one["inner"] for one in train(everyone)[2]] == [1]
        joiner.kill()


def test_another_model_is_refused_and_the_others_go_on():
    with run(2, sync_every=1) as (master, peers):
        other = Peer(master.address, 2, sync_every=1, width=9)
        other.tell("enter")
        while not train(peers)[0][0]["admitted"]:
            pass
        assert other.answer() == "INVALID_USAGE"
        agree(train(peers, 2))
        other.kill()


def test_the_first_begins_with_its_own_model():
    with run(1, sync_every=3, seed=4) as (_, peers):
        np.testing.assert_array_equal(peers[0].ask("parameters"), flat(make_model(seed=4)))
