"""Peers that are killed while they move a large average: the survivors go on, and hold what the simulation has."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from diloco_peers import Peer, contributing, run
from diloco_reference import Nesterov, Worker, flat, make_model

WIDTH = 1_500_000
"""36 MB of parameters: their reduce is divided into segments, each with contributors of its own."""


@pytest.mark.parametrize(("delay", "weights"), [(0.02, None), (0.1, [3.0, 1.0, 2.0])])
def test_each_range_is_the_average_of_exactly_its_contributors(delay, weights):
    settings = {"sync_every": 1, "width": WIDTH, "weights": weights}
    with run(3, **settings) as (_, peers):
        victim, *others = peers
        victim.ask("die_in", delay)
        for peer in peers:
            peer.tell("train", 1)
        told = [peer.answer() for peer in others]
        assert all(not isinstance(one, str) for one in told), told
        [[first], [second]] = told
        assert {key: first[key] for key in ("parity", "ranges")} == {key: second[key] for key in ("parity", "ranges")}
        assert first["repaired"] == second["repaired"] == 0

        expected = after_one_step(peers, first["ranges"], weights)
        np.testing.assert_allclose(others[0].ask("parameters"), expected, rtol=0, atol=1e-6)
        for peer in others:
            peer.tell("train", 1)
        assert len({peer.answer()[0]["parity"] for peer in others}) == 1


def after_one_step(peers: list[Peer], ranges: list[tuple[int, int, list[str]]], weights: list[float] | None) -> np.ndarray:
    start = flat(make_model(WIDTH))
    gradients = {peer.name: Worker(peer.worker, WIDTH).train(start, 0, 1) for peer in peers}
    weight = {peer.name: weights[peer.worker] if weights else 1.0 for peer in peers}
    mean = np.empty_like(start)
    for begin, end, names in ranges:
        total = sum(weight[name] for name in names)
        mean[begin:end] = sum(gradients[name][begin:end] * np.float32(weight[name]) for name in names) / np.float32(total)
    return Nesterov(0.7, 0.9).step(start, mean)


def test_an_average_under_way_goes_on_without_those_who_die():
    with run(3, "AsyncDiLoCo", sync_every=1, width=WIDTH) as (_, peers):
        victim, *others = peers
        for peer in peers:
            peer.tell("train", 1)
        for peer in peers:
            peer.answer()
        victim.kill()
        for peer in others:
            peer.tell("train", 1)
        [first], [second] = [peer.answer() for peer in others]
        assert {key: first[key] for key in ("parity", "ranges")} == {key: second[key] for key in ("parity", "ranges")}
        expected = after_one_step(peers, first["ranges"], None)
        np.testing.assert_allclose(others[0].ask("parameters"), expected, rtol=0, atol=1e-6)


def test_fragments_under_way_go_on_without_those_who_die():
    settings = {"sync_every": 4, "width": 300_000, "fragments": 2, "overlap": 3, "compression": "int8"}
    with run(3, "StreamingDiLoCo", **settings) as (_, peers):
        victim, *others = peers
        victim.ask("inner", 1)  # both fragments are launched
        for peer in others:
            peer.tell("train", 1)
        victim.kill()
        for _ in range(2):
            [first], [second] = [peer.answer() for peer in others]
            assert {key: first[key] for key in ("parity", "ranges")} == {key: second[key] for key in ("parity", "ranges")}
            assert first["repaired"] == second["repaired"] == 0
            for peer in others:
                peer.tell("train", 1)
        assert {name for _, _, names in first["ranges"] for name in names} == {peer.name for peer in others}


def all_answer(peers: list[Peer], method: str) -> list:
    """What all of them answer, which are told at once."""
    for peer in peers:
        peer.tell(method)
    return [peer.answer() for peer in peers]


def test_a_newcomer_copies_before_the_outer_step_and_takes_part_in_it():
    """The members' average is what it is without it, to the bit, and its first sync brings less than a leaf."""
    settings = {"width": 12_000, "sync_every": 2}
    parities = []
    for joins in (False, True):
        with run(2, **settings) as (master, peers):
            newcomer = Peer(master.address, 2, seed=7, **settings)
            try:
                if joins:
                    newcomer.tell("enter")
                    while 1 not in all_answer(peers, "pending"):
                        pass
                first = all_answer(peers, "round")
                assert [one["admitted"] for one in first] == [joins] * 2
                assert all(contributing(one, peers) == [peer.worker for peer in peers] for one in first)
                parities += [one["parity"] for one in first]
                if joins:
                    assert newcomer.entered() == 1
                    assert newcomer.ask("received") < 256 << 10 < newcomer.ask("parameters").nbytes
                    second = all_answer([*peers, newcomer], "round")
                    assert len({one["parity"] for one in second}) == 1
                    assert all(sorted(contributing(one, [*peers, newcomer])) == [0, 1, 2] for one in second)
            finally:
                newcomer.kill()
    assert len(set(parities)) == 1


@pytest.mark.parametrize("kind", ["DiLoCo", "AsyncDiLoCo", "StreamingDiLoCo"])
def test_newcomers_and_those_who_bring_them_up_to_date_die(kind):
    settings = {"sync_every": 2, "width": 300_000}
    if kind == "StreamingDiLoCo":
        settings |= {"fragments": 2, "overlap": 1}
    with run(2, kind, **settings) as (master, peers):
        first, second = peers

        def join() -> Peer:
            joiner = Peer(master.address, 2, kind, seed=9, **settings)
            joiner.ask("parameters")  # it has started
            return joiner.tell("enter")

        for delay in (0.02, 0.1):
            joiner = join()
            timer = threading.Timer(delay, joiner.kill)
            timer.start()
            for peer in peers:
                peer.tell("train", 2)
            told = [peer.answer() for peer in peers]
            timer.join()
            assert [one["parity"] for one in told[0]] == [one["parity"] for one in told[1]]

        joiner = join()
        first.ask("die_in", 0.03)
        admitted = False
        while not admitted:
            for peer in peers:
                peer.tell("train", 1)
            first.answer()
            admitted = second.answer()[0]["admitted"]
        joiner.entered()
        first.kill()
        for peer in (second, joiner):
            peer.tell("train", 1)
        assert len({peer.answer()[0]["parity"] for peer in (second, joiner)}) == 1
        joiner.kill()


@pytest.mark.parametrize("kind", ["DiLoCo", "AsyncDiLoCo", "StreamingDiLoCo"])
def test_an_outer_step_without_enough_members_is_made_once(kind, monkeypatch):
    """Its meeting is an error; repeated, it waits for the newcomer and goes on with the state that it has made."""
    monkeypatch.setenv("PCCL_MIN_MEMBERS", "2")
    monkeypatch.setenv("PCCL_MIN_MEMBERS_TIMEOUT_S", "1")
    with run(2, kind, sync_every=2) as (master, peers):
        for peer in peers:
            peer.tell("round")
        assert [peer.answer()["step"] for peer in peers] == [1, 1]
        peers.pop().kill()
        assert peers[0].ask("round") == "TOO_FEW_PEERS"
        made = peers[0].ask("parameters")
        peers.append(Peer(master.address, 7, kind, sync_every=2))
        try:
            peers[1].tell("enter")
            while (told := peers[0].ask("again")) == "TOO_FEW_PEERS":
                pass
            assert peers[1].entered() == told["step"] == 2
            for peer in peers:
                np.testing.assert_array_equal(peer.ask("parameters"), made)
                peer.tell("round")
            assert len({peer.answer()["parity"] for peer in peers}) == 1
        finally:
            peers[1].kill()
