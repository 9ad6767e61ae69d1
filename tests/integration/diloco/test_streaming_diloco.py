"""StreamingDiLoCo against the simulation, bit for bit: fragments in flight, joins, deaths, weights, and rounded averages."""

from __future__ import annotations

import numpy as np
import pytest
from diloco_peers import Peer, run
from diloco_reference import flat, make_model, simulate_streaming
from test_diloco import agree, train

EVERY = 5
KIND = "StreamingDiLoCo"
FRAGMENTS = [slice(0, 40), slice(40, 49)]
"""The two layers of the model."""

SETTINGS = {"sync_every": EVERY, "fragments": 2, "overlap": 2, "mixing": 0.5}
PLAN = {"every": EVERY, "fragments": FRAGMENTS, "launches": [1, 3], "overlap": 2, "mixing": 0.5}


def contributing(told: dict, peers: list[Peer]) -> list[list[int]]:
    """The workers of each fragment of a round, in the order of `peers`."""
    assert [(start, stop) for start, stop, _ in told["ranges"]] == [(one.start, one.stop) for one in FRAGMENTS]
    return [[peer.worker for peer in peers if peer.name in names] for _, _, names in told["ranges"]]


@pytest.mark.parametrize(
    ("count", "overlap", "mixing", "launches"),
    [(1, 2, 0.5, [1, 3]), (2, 2, 0.5, [1, 3]), (2, 4, 0.25, [1, 1]), (2, 0, 0.0, [2, 5]), (3, 1, 0.7, [2, 4])],
)
def test_it_follows_the_simulation(count, overlap, mixing, launches):
    with run(count, KIND, **SETTINGS | {"overlap": overlap, "mixing": mixing}) as (_, peers):
        rounds = agree(train(peers, 4))
        assert [one["step"] for one in rounds] == [1, 2, 3, 4]
        present = [contributing(one, peers) for one in rounds]
        assert present == [[[peer.worker for peer in peers]] * 2] * 4
        plan = PLAN | {"overlap": overlap, "mixing": mixing, "launches": launches}
        *_, (outer, inner) = simulate_streaming(present, **plan)
        for peer in peers:
            np.testing.assert_array_equal(peer.ask("parameters"), outer)
            np.testing.assert_array_equal(peer.ask("inner_parameters"), inner[peer.worker])


@pytest.mark.parametrize("weights", [None, [4.0, 1.0, 2.0]])
def test_churn_follows_the_simulation_with_the_same_contributors(weights):
    """A join, the master's death, a death between the averages of two fragments, and one that is left alone."""
    settings = SETTINGS | {"weights": weights}
    with run(2, KIND, **settings) as (master, peers):
        first, second = peers
        told = agree(train(peers))
        joiner = Peer(master.address, 2, KIND, seed=9, **settings).tell("enter")
        while not told[-1]["admitted"]:
            told += agree(train(peers))
        assert joiner.entered() == len(told)
        everyone = [first, second, joiner]
        for key in ("parameters", "inner_parameters"):
            assert joiner.ask(key).tolist() == first.ask("parameters").tolist()
        told += agree(train(everyone))

        master.kill()
        for peer in everyone:
            peer.tell("train", 1)
        master.start()
        told += agree([peer.answer() for peer in everyone])

        for peer in (first, joiner):
            peer.tell("train", 1)
        second.ask("inner", 3 if weights else 2)  # one launch is made; with three steps both, and one average is applied
        second.kill()
        told += agree([peer.answer() for peer in (first, joiner)])
        with_second, without = [first.worker, second.worker, 2], [first.worker, 2]
        present = [contributing(one, everyone) for one in told]
        assert all(one in (with_second, without) for one in present[-1])
        assert present[-2] == [with_second] * 2
        if weights:
            assert present[-1][0] == with_second
        else:
            assert present[-1][1] == without

        first.kill()
        told += joiner.ask("train", 2)
        present = [contributing(one, everyone) for one in told]
        assert present[-2:] == [[[2], [2]]] * 2
        *_, (outer, inner) = simulate_streaming(present, weight=weights and weights.__getitem__, **PLAN)
        np.testing.assert_array_equal(joiner.ask("parameters"), outer)
        np.testing.assert_array_equal(joiner.ask("inner_parameters"), inner[2])
        joiner.kill()


@pytest.mark.parametrize("compression", ["int8", "int4"])
def test_rounded_averages_are_the_same_on_all_members(compression):
    settings = SETTINGS | {"compression": compression, "overlap": 4}  # both fragments are in flight at once
    with run(2, KIND, **settings) as (master, peers):
        agree(train(peers, 3))
        joiner = Peer(master.address, 2, KIND, seed=9, **settings).tell("enter")
        while not agree(train(peers))[0]["admitted"]:
            pass
        joiner.entered()
        everyone = [*peers, joiner]
        agree(train(everyone, 2))
        assert len({peer.ask("parameters").tobytes() for peer in everyone}) == 1
        peers[0].kill()
        agree(train([peers[1], joiner], 2))
        joiner.kill()


def test_members_end_with_the_same_model_also_in_the_middle_of_a_round():
    with run(2, KIND, **SETTINGS) as (_, peers):
        agree(train(peers))
        for peer in peers:
            peer.tell("inner", 3)  # the average of the second fragment is in flight
        for peer in peers:
            peer.answer()
        for peer in peers:
            peer.tell("leave")
        for peer in peers:
            peer.answer()
        outer = peers[0].ask("parameters")
        assert not np.array_equal(outer, flat(make_model()))
        for peer in peers:
            np.testing.assert_array_equal(peer.ask("inner_parameters"), outer)
