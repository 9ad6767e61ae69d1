"""Workers that come and go all the time, and a master that dies: after every outer step all that are there hold the same bits."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from diloco_peers import Peer, contributing, run
from diloco_reference import simulate

WORKERS = 4
ROUNDS = 18
EVERY = 4


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0] * 4])
def test_churn_with_a_loss_of_the_master(weights):
    """Every third outer step a worker is killed at any moment, or one joins; in the middle the master dies and comes back."""
    chance = random.Random(7)
    settings = {"sync_every": EVERY, "weights": weights}
    with run(WORKERS, **settings) as (master, peers):
        members = list(peers)
        everyone = {peer.name: peer for peer in peers}
        joining: Peer | None = None
        parities: dict[int, str] = {}
        told: dict[int, dict] = {}
        worker = WORKERS

        def heard(peer: Peer) -> bool:
            [one] = peer.answer() or [None]
            if one is None:
                return False
            assert one["repaired"] == 0
            assert parities.setdefault(one["step"], one["parity"]) == one["parity"]
            assert told.setdefault(one["step"], one)["ranges"] == one["ranges"]
            return True

        for number in range(ROUNDS):
            victim = None
            if number % 3 == 1 and joining is None:
                if len(members) > 2 and chance.random() < 0.6:
                    victim = chance.choice(members)
                elif len(members) < WORKERS + 1:
                    joining = Peer(master.address, worker, seed=9, **settings).tell("enter")
                    worker += 1
            for peer in members:
                peer.tell("train", 1)
            if victim is not None:
                threading.Timer(chance.random() * 0.03, victim.kill).start()
            if number == ROUNDS // 2:
                master.kill()
                master.start()
            members = [peer for peer in members if heard(peer)]
            if victim in members:  # it was killed too late for this round
                members.remove(victim)
                victim.kill()
            last = told[max(told)]
            if joining is not None and last["admitted"]:
                assert joining.entered() == last["step"]
                everyone[joining.name] = joining
                members.append(joining)
                joining = None
        assert max(told) == ROUNDS
        assert worker > WORKERS
        assert len(members) < worker
        by_rank = sorted(everyone.values(), key=lambda peer: peer.worker >= WORKERS)  # who joined later comes later
        present = [contributing(told[step], by_rank) for step in sorted(told)]
        *_, expected = simulate(present, every=EVERY, weight=weights and weights.__getitem__)
        assert len({peer.ask("parameters").tobytes() for peer in members}) == 1
        np.testing.assert_array_equal(members[0].ask("parameters"), expected)
        for peer in [*members, *([joining] if joining else [])]:
            peer.kill()
