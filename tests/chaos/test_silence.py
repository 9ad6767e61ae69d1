"""Peers that live and are silent: the one who does not speak is expelled, the others go on, and it may come back by one call."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Actor, Ops, Pause, Reduce, all_follow, cast, check_agreement, contributors, losses
from namespaces import Namespaces, join, laid_out, master_in, run

LIMIT = 1.0
PEERS = 3
SOON = 10 * LIMIT
"""A silent peer is out within about one and a half limits; the rest is for a busy machine."""
MIXED = (Reduce(10), Reduce(400_000), Reduce(10))

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, PTRACE_CONT, WALL = 0x4206, 0x4207, 17, 7, 0x40000000
WAITS = {"x86_64": {"232", "281"}, "aarch64": {"22"}}
"""The numbers of epoll_wait and epoll_pwait."""
_libc = ctypes.CDLL(None, use_errno=True)


# ---- a thread that hangs ----


def ptrace(request: int, thread: int) -> None:
    if _libc.ptrace(request, thread, None, None) != 0:
        pytest.skip(f"no right to stop a thread: {os.strerror(ctypes.get_errno())}")


def stop_where_it_waits(pid: int, thread: int) -> None:
    """Stop a thread in its epoll_wait. Stopped while it holds a lock it would stop the whole process, which is another fault."""
    ptrace(PTRACE_SEIZE, thread)
    while True:
        ptrace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WALL)
        if Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0] in WAITS[platform.machine()]:
            return
        ptrace(PTRACE_CONT, thread)
        time.sleep(0.001)


@contextlib.contextmanager
def hung(pid: int, name: str) -> Iterator[None]:
    """The thread of this name hangs, all others of the process go on."""
    threads = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text() == f"{name}\n":
                threads.append(int(task.name))
    assert threads, f"no thread {name}"
    for thread in threads:
        stop_where_it_waits(pid, thread)
    try:
        yield
    finally:
        for thread in threads:
            _libc.ptrace(PTRACE_DETACH, thread, None, None)


@pytest.mark.parametrize("same_host", ["0", "1"])
def test_a_peer_whose_lanes_hang(same_host):
    """Its control thread says heartbeats all the while, so only its neighbours can know."""
    with cast(3, heartbeat_limit=LIMIT, environment={"PCCL_SAME_HOST_MEMORY": same_host}) as (_, actors):
        with hung(actors[1].pid, "pccl:data"):
            begin = time.monotonic()
            logs = all_follow([actors[0], actors[2]], [Ops("plain", MIXED)])
            assert time.monotonic() - begin < SOON
            check_agreement(logs)
            assert len(losses(logs[0])) == 1
            assert contributors(logs[0])[-1] == 5
            assert actors[1].ask("call", "update_topology") == "MASTER_CONNECTION_FAILED"
        actors[1].tell("reconnect", 3)
        for actor in (actors[0], actors[2]):
            actor.tell("form", 3)
        assert [actor.answer() for actor in actors] == [None] * 3
        assert contributors(all_follow(actors, [Ops("plain", MIXED)])[0]) == [7, 7, 7]


def test_a_pause_that_is_no_death():
    with cast(3, heartbeat_limit=LIMIT) as (_, actors):
        for actor in actors:
            actor.tell("follow", [Ops("plain", MIXED), Pause(LIMIT), Ops("plain", MIXED)])
        for _ in range(2):
            with hung(actors[2].pid, "pccl:data"):
                time.sleep(0.3 * LIMIT)
            time.sleep(0.2 * LIMIT)
        logs = {actor.number: actor.answer() for actor in actors}
        check_agreement(logs)
        assert contributors(logs[0]) == [7] * 6


# ---- networks that swallow ----


class Network(Namespaces):
    """Namespaces joined by a bridge in the hub, which has the address of the master."""

    def lay_out(self) -> None:
        self._hub("link add hub type bridge")
        self._hub(f"addr add {self.address(0)}/24 dev hub")
        self._hub("link set hub up")
        self.places = [self._place(index) for index in range(1, PEERS + 1)]

    def address(self, index: int) -> str:
        return f"10.214.0.{index + 1}"

    def cut(self, index: int) -> None:
        """Nothing that this place sends or that is sent to it arrives, and nobody is told."""
        self._hub(f"link set p{index + 1} nomaster")

    def mend(self, index: int) -> None:
        self._hub(f"link set p{index + 1} master hub")

    def swallow(self, index: int, towards: int) -> None:
        """What one place sends to one other does not arrive."""
        run(f"ip -n {self.places[index]} route add blackhole {self.address(towards + 1)}/32")

    def _hub(self, command: str) -> None:
        run(f"ip -n {self.hub} {command}")

    def _place(self, index: int) -> str:
        name = self.make(str(index))
        run(f"ip -n {name} link add eth type veth peer name p{index} netns {self.hub}")
        self._hub(f"link set p{index} master hub up")
        run(f"ip -n {name} addr add {self.address(index)}/24 dev eth")
        run(f"ip -n {name} link set eth up")
        return name


@pytest.fixture
def stage() -> Iterator[tuple[Network, list[Actor]]]:
    """Three accepted peers, each in a place of its own."""
    with contextlib.ExitStack() as undo:
        network = undo.enter_context(laid_out(Network))
        master = undo.enter_context(master_in(network.hub, LIMIT, network.address(0)))
        yield network, join(undo, f"{network.address(0)}:{master.port}", network.places)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_black_hole_round_one_peer(stage, busy):
    network, actors = stage
    steps = [Ops("plain", MIXED), Pause(0.2), Ops("plain", MIXED)]
    begin = time.monotonic()
    if busy:
        for actor in actors:
            actor.tell("follow", [Ops("plain", MIXED * 10)])
        time.sleep(0.05)
    network.cut(1)
    if not busy:
        for actor in (actors[0], actors[2]):
            actor.tell("follow", steps)
    logs = {actor.number: actor.answer() for actor in (actors[0], actors[2])}
    assert time.monotonic() - begin < SOON
    check_agreement(logs)
    assert len(losses(logs[0])) <= 1
    assert contributors(logs[0])[-1] in (5, 7)  # 7: all was over before the cut
    assert contributors(all_follow([actors[0], actors[2]], steps)[0])[-1] == 5
    network.mend(1)
    if busy:
        with contextlib.suppress(AssertionError):  # how its script ended is its own affair
            actors[1].answer()
    actors[1].tell("reconnect", 3)
    for actor in (actors[0], actors[2]):
        actor.tell("form", 3)
    assert [actor.answer() for actor in actors] == [None] * 3
    assert contributors(all_follow(actors, [Ops("plain", MIXED)])[0]) == [7, 7, 7]


@pytest.mark.parametrize("towards", [0, 2])
def test_one_direction_between_two_peers(stage, towards):
    """Both reach the master, which sees them report each other: one of the two goes, and only one."""
    network, actors = stage
    network.swallow(1, towards)
    begin = time.monotonic()
    for actor in actors:
        actor.tell("follow", [Ops("plain", MIXED)])
    logs, expelled = {}, []
    for actor in actors:
        try:
            logs[actor.number] = actor.answer()
        except AssertionError:
            expelled.append(actor.number)
    assert time.monotonic() - begin < SOON
    assert expelled in ([1], [towards])
    check_agreement(logs)
    assert len(losses(logs[max(logs)])) == 1
    assert contributors(logs[max(logs)])[-1] == 7 - (1 << expelled[0])
