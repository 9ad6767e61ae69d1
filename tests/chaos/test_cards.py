"""Peers with two network cards each: connections use both, and a card that fails costs no member."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from actors import Actor, Ops, Pause, Reduce, all_follow, check_agreement, contributors, losses
from performers import enter_network

from pccl import MasterNode

LIMIT = 1.0
PEERS = 3
CARDS = 2
STEPS = [Ops("plain", (Reduce(10), Reduce(400_000)))]


def run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True)


class Rails:
    """Namespaces with two cards each. Cards of one number are on one bridge, in a network of their own."""

    def __init__(self) -> None:
        self._mark = f"{os.getpid():x}{secrets.token_hex(2)}"
        self._made: list[str] = []
        self.hub = self._namespace("hub")
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

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def _namespace(self, name: str) -> str:
        full = f"pccl-{self._mark}-{name}"
        run(f"ip netns add {full}")
        self._made.append(full)
        run(f"ip -n {full} link set lo up")
        return full

    def _place(self, number: int) -> str:
        name = self._namespace(str(number))
        for rail in range(CARDS):
            run(f"ip -n {name} link add eth{rail} type veth peer name p{number}.{rail} netns {self.hub}")
            run(f"ip -n {self.hub} link set p{number}.{rail} master hub{rail} up")
            run(f"ip -n {name} addr add {self.address(number, rail)}/24 dev eth{rail}")
            run(f"ip -n {name} link set eth{rail} up")
        return name


@contextlib.contextmanager
def master_in(namespace: str) -> Iterator[MasterNode]:
    """A master that listens everywhere in a namespace; threads that it starts are born there."""
    master = MasterNode("0.0.0.0:0", heartbeat_limit=LIMIT, insecure=True)

    def enter() -> None:
        enter_network(namespace)
        master.run()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    try:
        yield master
    finally:
        master.close()


@pytest.fixture
def stage() -> Iterator[tuple[Rails, list[Actor]]]:
    """Three accepted peers, each with two cards; the master has both networks."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with contextlib.ExitStack() as undo:
        try:
            rails = Rails()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        undo.callback(rails.close)
        master = undo.enter_context(master_in(rails.hub))
        actors = []
        for number, place in enumerate(rails.places):
            environment = {
                "NETNS": place,
                "PCCL_INSECURE": "1",
                "PCCL_INTERFACE": "eth0,eth1",
                "PCCL_MASTERS": rails.masters(master.port),
                "PCCL_LOG_LEVEL": os.environ.get("PCCL_LOG_LEVEL", "ERROR"),
            }
            actor = Actor(f"{rails.address(0, 0)}:{master.port}", number, environment=environment)
            undo.callback(actor.kill)
            actors.append(actor)
            actor.tell("join", PEERS)
        assert [actor.answer() for actor in actors] == [None] * PEERS
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
