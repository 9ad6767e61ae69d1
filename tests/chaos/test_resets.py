"""Connections between living peers break: ops go on, and nobody sees an error."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import socket
import time

import pytest
from actors import Ops, Reduce, Vote, all_follow, cast, check_agreement, contributors, losses

PIDFD_GETFD = 438
SOURCES = [Reduce(10), Reduce(400_000, "float32"), Reduce(400_000, "float32", in_place=False), Reduce(30_000)]


def borrowed_sockets(pid: int, master_port: int) -> list[socket.socket]:
    """The connections of a process to other peers, as ours too: what we do to them, it sees."""
    found = []
    process = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
            except FileNotFoundError:  # closed since it was listed
                continue
            descriptor = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, int(name), 0)
            if descriptor < 0 and ctypes.get_errno() == errno.EBADF:
                continue
            if descriptor < 0:
                pytest.skip(f"no right to borrow descriptors: {os.strerror(ctypes.get_errno())}")
            one = socket.socket(fileno=descriptor)
            try:
                if one.family == socket.AF_INET and one.getpeername()[1] != master_port:
                    found.append(one)
                    continue
            except OSError:
                pass  # listening
            one.close()
    finally:
        os.close(process)
    return found


def disconnect(one: socket.socket) -> None:
    """Drops the connection at once, as an RST from the network would."""
    address = (ctypes.c_ubyte * 16)()  # AF_UNSPEC
    assert ctypes.CDLL(None).connect(one.fileno(), address, 16) == 0


def shut_down(one: socket.socket) -> None:
    one.shutdown(socket.SHUT_RDWR)


def half_shut_down(one: socket.socket) -> None:
    one.shutdown(socket.SHUT_WR)


BREAKS = [disconnect, shut_down, half_shut_down]


def break_some(actor, address, how, rng, every=False):
    sockets = borrowed_sockets(actor.pid, int(address.rsplit(":", 1)[1]))
    assert sockets
    for one in sockets if every else [rng.choice(sockets)]:
        with contextlib.suppress(OSError):  # gone on its own already
            how(one)
    for one in sockets:
        one.close()


@pytest.mark.parametrize("same_host", ["0", "1"])
@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
def test_during_ops(how, same_host, every):
    rng = random.Random(1)
    with cast(3, lanes=3, environment={"PCCL_SAME_HOST_MEMORY": same_host}) as (address, actors):
        for actor in actors:
            actor.tell("reduce_on", SOURCES)
        for _ in range(4):
            # The repair is over then: a pair that fails again and again is broken up.
            actors[0].await_round()
            time.sleep(rng.random() * 0.02)  # somewhere in a round
            break_some(rng.choice(actors), address, how, rng, every)
        actors[0].await_round()
        actors[0].tell("enough")
        outcomes = [actor.answer() for actor in actors]
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert outcomes[0][1] == [7]


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("wait", [0.0, 0.002, 0.1])
def test_between_ops_and_votes(how, every, wait):
    """The next op comes before, during or after the repair."""
    rng = random.Random(2)
    script = [Ops("plain", tuple(SOURCES)), Vote("update_topology"), Ops("async", tuple(SOURCES)), Ops("multi", tuple(SOURCES))]
    with cast(3) as (address, actors):
        for turn in range(4):
            break_some(actors[turn % 3], address, how, rng, every)
            time.sleep(wait)
            logs = all_follow(actors, script)
            check_agreement(logs)
            assert len(logs) == 3
            assert not losses(logs[0])
            assert set(contributors(logs[0])) == {7}


def test_a_reset_and_a_death():
    """The links are being made again when a peer dies: one error, and no more."""
    rng = random.Random(3)
    steps = [Ops("plain", (Reduce(1000), Reduce(400_000)) * 3)]
    for wait in (0.0, 0.002, 0.01, 0.04):
        with cast(4) as (address, actors):
            for actor in actors:
                actor.tell("follow", steps)
            break_some(actors[0], address, disconnect, rng, every=True)
            time.sleep(wait)
            actors[3].kill()
            logs = {actor.number: actor.answer() for actor in actors[:3]}
            check_agreement(logs)
            assert len(losses(logs[0])) <= 1
            again = all_follow(actors[:3], [Ops("plain", (Reduce(10),))])
            check_agreement(again)
            assert len(losses(logs[0])) + len(losses(again[0])) == 1
            assert contributors(again[0]) == [7]
