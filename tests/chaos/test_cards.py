"""Peers with two network cards each: connections use both, and a card that fails costs no member."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from actors import Actor, Ops, Pause, Reduce, all_follow, check_agreement, contributors, losses
from namespaces import Namespaces, join, laid_out, master_in, run

LIMIT = 1.0
PEERS = 3
CARDS = 2
STEPS = [Ops("plain", (Reduce(10), Reduce(400_000)))]


class Rails(Namespaces):
    """Namespaces with two cards each. Cards of one number are on one bridge, in a network of their own."""

    def lay_out(self) -> None:
        for rail in range(CARDS):
            run(f"ip -n {self.hub} link add hub{rail} type bridge")
            run(f"ip -n {self.hub} addr add {self.address(0, rail)}/24 dev hub{rail}")
            run(f"ip -n {self.hub} link set hub{rail} up")
        self.places = [self._place(number) for number in range(1, PEERS + 1)]

    def address(self, number: int, rail: int) -> str:
        return f"10.214.{rail}.{number + 1}"

    def masters(self, port: int) -> str:
        return ",".join(f"{self.address(0, rail)}:{port}" for rail in range(CARDS))

    def unplug(self, number: int, rail: int) -> None:
        """Nothing passes this card of this peer, and nobody is told."""
        run(f"ip -n {self.hub} link set p{number}.{rail} nomaster")

    def plug_in(self, number: int, rail: int) -> None:
        run(f"ip -n {self.hub} link set p{number}.{rail} master hub{rail}")

    def _place(self, number: int) -> str:
        name = self.make(str(number))
        for rail in range(CARDS):
            run(f"ip -n {name} link add eth{rail} type veth peer name p{number}.{rail} netns {self.hub}")
            run(f"ip -n {self.hub} link set p{number}.{rail} master hub{rail} up")
            run(f"ip -n {name} addr add {self.address(number, rail)}/24 dev eth{rail}")
            run(f"ip -n {name} link set eth{rail} up")
        return name


@pytest.fixture
def stage() -> Iterator[tuple[Rails, list[Actor]]]:
    """Three accepted peers, each with two cards; the master has both networks."""
    with contextlib.ExitStack() as undo:
        rails = undo.enter_context(laid_out(Rails))
        master = undo.enter_context(master_in(rails.hub, LIMIT))
        actors = join(
            undo,
            f"{rails.address(0, 0)}:{master.port}",
            rails.places,
            PCCL_INTERFACE="eth0,eth1",
            PCCL_MASTERS=rails.masters(master.port),
            PCCL_LOG_LEVEL=os.environ.get("PCCL_LOG_LEVEL", "ERROR"),
        )
        yield rails, actors


@pytest.mark.plain("the namespaces have networks of their own, which need no keys here")
@pytest.mark.parametrize("rail", [0, 1])
def test_a_card_that_fails_costs_no_member(stage, rail):
    """Rail 0 carries the connections to the master, too."""
    rails, actors = stage
    for actor in actors:
        actor.tell("follow", STEPS * 5 + [Pause(LIMIT), *STEPS * 5])
    time.sleep(0.05)
    rails.unplug(2, rail)
    logs = {actor.number: actor.answer() for actor in actors}
    check_agreement(logs)
    assert losses(logs[0]) == []
    assert contributors(logs[0])[-1] == 7
    rails.plug_in(2, rail)
    rails.unplug(2, 1 - rail)
    logs = all_follow(actors, [*STEPS * 5, Pause(LIMIT), *STEPS])
    check_agreement(logs)
    assert losses(logs[0]) == []
    assert contributors(logs[0])[-1] == 7
