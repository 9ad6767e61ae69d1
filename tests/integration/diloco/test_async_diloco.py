"""AsyncDiLoCo against the simulation, bit for bit: the average that is under way, joiners, deaths, and the end."""

from __future__ import annotations

import numpy as np
import pytest
from diloco_peers import Peer, run
from diloco_reference import simulate_async
from test_diloco import agree, train

EVERY = 5
KIND = "AsyncDiLoCo"


@pytest.mark.parametrize(("count", "eager"), [(1, 1.0), (2, 1.0), (3, 1.0), (2, 0.0)])
def test_it_follows_the_simulation(count, eager):
    with run(count, KIND, sync_every=EVERY, eager=eager) as (_, peers):
        told = agree(train(peers, 4))
        assert [bool(one["ranges"]) for one in told] == [False, True, True, True]
        workers = [peer.worker for peer in peers]
        *_, before, after = simulate_async([workers] * 4, every=EVERY, eager=eager, finishes=True)
        for peer in peers:
            np.testing.assert_array_equal(peer.ask("parameters"), before)
        for peer in peers:
            peer.tell("finish")
        assert len({peer.answer()["parity"] for peer in peers}) == 1
        for peer in peers:
            np.testing.assert_array_equal(peer.ask("inner_parameters"), after)


def test_the_result_under_way_reaches_a_joiner_and_a_death_costs_one_part_of_it():
    with run(2, KIND, sync_every=EVERY) as (master, peers):
        first, second = peers
        told = agree(train(peers, 2))
        present = [[first.worker, second.worker]] * 2
        joiner = Peer(master.address, 2, KIND, seed=9, sync_every=EVERY)
        joiner.tell("enter")
        while not told[-1]["admitted"]:
            told += agree(train(peers))
            present.append([first.worker, second.worker])
        assert joiner.entered() == len(told)
        everyone = [first, second, joiner]
        assert len({peer.ask("parameters").tobytes() for peer in everyone}) == 1
        told += agree(train(everyone, 2))
        present += [[first.worker, second.worker, 2]] * 2

        master.kill()
        for peer in everyone:
            peer.tell("train", 1)
        master.start()
        told += agree([peer.answer() for peer in everyone])
        present.append([first.worker, second.worker, 2])

        first.kill()  # its part of what is under way has arrived, or has not: the contributors tell
        told += agree(train([second, joiner], 2))
        under_way = [first.worker, second.worker, 2] if first.name in told[-2]["ranges"][0][2] else [second.worker, 2]
        assert under_way == present[-1], "small reduces are done at once"
        present += [[second.worker, 2]] * 2
        *_, expected = simulate_async(present, every=EVERY)
        np.testing.assert_array_equal(joiner.ask("parameters"), expected)

        second.kill()
        told += joiner.ask("train", 3)
        assert told[-1]["ranges"][0][2] == [joiner.name]
        joiner.kill()


def test_members_leave_together_while_somebody_waits():
    with run(2, KIND, sync_every=EVERY) as (master, peers):
        agree(train(peers, 2))
        late = Peer(master.address, 2, KIND, sync_every=EVERY)
        late.tell("enter")
        for peer in peers:
            peer.tell("leave")
        for peer in peers:
            peer.answer()
        assert late.entered() in (0, 3)  # a new run, unless it came before the last meeting
        late.kill()


def test_a_joiner_goes_on_where_all_others_have_died():
    with run(1, KIND, sync_every=EVERY) as (master, [first]):
        first.ask("train", 2)
        joiner = Peer(master.address, 2, KIND, seed=9, sync_every=EVERY)
        joiner.tell("enter")
        while not first.ask("train", 1)[0]["admitted"]:
            pass
        before = joiner.entered()
        first.kill()
        [told] = joiner.ask("train", 1)
        assert told["step"] == before + 1
        joiner.kill()
