"""A master of the list that does not answer is told before it is needed."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from performers import PATIENCE, MasterProcess, Performer
from standby_peers import StandbyPeer

from pccl import Communicator
from pccl._peer import standby
from pccl.lab.ports import free_ports


def until(look: Callable[[], Any], expected: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


def test_a_standby_that_is_missing_comes_and_takes_over():
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    masters = f"{first},{second}"
    with MasterProcess(first, masters=masters) as active:
        two = [Performer(StandbyPeer, number, (masters,)) for number in range(2)]
        try:
            for one in two:
                one.tell("join", 2)
            assert [one.answer() for one in two] == [None] * 2
            two.sort(key=lambda one: one.ask("rank"))
            until(lambda: two[0].ask("numbers"), [1.0, None])
            (told,) = two[0].ask("told")
            assert second in told
            assert first not in told
            with MasterProcess(second, masters=masters):
                until(lambda: two[0].ask("numbers"), [0.0, None])
                active.kill()
                until(lambda: two[0].ask("told")[1:2] != [], True)
                assert first in two[0].ask("told")[1]
                until(lambda: two[1].ask("numbers"), [1.0, None])
                two[0].kill()  # the next rank 0 tells it
                two[1].ask("hear_of_losses", 1)
                until(lambda: two[1].ask("numbers"), [1.0])
                assert [first in one for one in two[1].ask("told")] == [True]
        finally:
            for one in two:
                one.kill()


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pccl:standby"]


def test_a_close_does_not_wait_for_a_master_that_says_nothing(monkeypatch):
    monkeypatch.setattr(standby, "FIRST_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        address = f"127.0.0.1:{free_ports(1)[0]}"
        with MasterProcess(address, masters=f"{address},{mute}"):
            comm = Communicator(f"{address},{mute}")
            comm.connect(timeout=PATIENCE)
            assert silent.accept()[0]  # it is asked now
            joins: list[float | None] = []
            join = threading.Thread.join

            def count(thread: threading.Thread, timeout: float | None = None) -> None:
                if thread.name == "pccl:standby":
                    joins.append(timeout)
                join(thread, timeout)

            monkeypatch.setattr(threading.Thread, "join", count)
            comm.close()
            assert joins == [standby.JOIN_SECONDS]


def test_a_communicator_that_nobody_closes_is_not_kept_alive(monkeypatch):
    monkeypatch.setattr(standby, "FIRST_SECONDS", 0.0)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    with MasterProcess(first, masters=f"{first},{second}"):
        comm = Communicator(f"{first},{second}")
        comm.connect(timeout=PATIENCE)
        kept = weakref.ref(comm)
        assert watchers()
        del comm
        until(lambda: (gc.collect(), kept() is None, watchers())[1:], (True, []))


@pytest.mark.parametrize("run", ["", "/bert"])
def test_one_address_is_not_watched(run):
    with MasterProcess() as master, Communicator(master.address + run) as comm:
        comm.connect(timeout=PATIENCE)
        assert not watchers()


def test_a_fork_leaves_the_watcher_to_the_parent(monkeypatch):
    """The child has no such thread, and what it drops disturbs nothing."""
    monkeypatch.setattr(standby, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(standby, "PAUSE_SECONDS", 0.01)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    with MasterProcess(first, masters=f"{first},{second}"), Communicator(f"{first},{second}") as comm:
        comm.connect(timeout=PATIENCE)
        until(lambda: comm._missing, {"standby"})
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    comm._standby.join()  # as the garbage collector may
                    status = len(watchers())
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(watchers()) == 1
        assert comm.alive
    assert not watchers()
