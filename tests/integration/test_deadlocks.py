"""Members that wait for each other: an error on all of them, which names their calls, and none where a member is only slow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from peers import address_of, form
from performers import PATIENCE, Performer, preload

from pccl import Communicator, MasterNode, SharedState, TensorInfo, UsageError

preload(__name__)

LIMIT = 1
LARGE = 1 << 20
"""Elements of a tensor that takes the ring."""


class Caller:
    """A member that is told what to call."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, world: int) -> None:
        self.log: list[Any] = []
        self.comm = Communicator(address)
        self.comm.connect(timeout=PATIENCE)
        form(self.comm, world)

    def rank(self) -> int:
        return self.comm.rank

    def call(self, *what: Any) -> str:
        """The text of the error; "" without one."""
        try:
            getattr(self, what[0])(*what[1:])
        except UsageError as error:
            return str(error)
        return ""

    def reduce(self, tag: int = 0, count: int = 4) -> None:
        self.comm.all_reduce(np.ones(count, np.float32), op="sum", tag=tag)

    def beside(self, tag: int, then: int) -> None:
        """Computes while an operation is in flight, and ends it after another one."""
        handle = self.comm.all_reduce_async(np.ones(4, np.float32), op="sum", tag=tag)
        time.sleep(4 * LIMIT)
        self.reduce(then)
        handle.result()

    def update(self) -> None:
        self.comm.update_topology()

    def pending(self) -> None:
        self.comm.are_peers_pending()

    def optimize(self) -> None:
        self.comm.optimize_topology()

    def sync(self) -> None:
        self.comm.sync_shared_state(SharedState([TensorInfo.from_numpy(np.zeros(4, np.float32), "a")]))

    def barrier(self, *members: int, tag: int | None = None) -> None:
        self.comm.barrier(group=self.comm.group([self.comm.members[at] for at in members]) if members else None, tag=tag)

    def receive(self, source: int, tag: int = 5) -> None:
        self.comm.recv(np.zeros(4, np.float32), source, tag=tag)

    def parity(self) -> None:
        self.comm.check_parity({"a": np.zeros(4, np.float32)})

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def background(self) -> None:
        """Computes while a thread waits, and then makes its own first call, for which the other member waits."""
        thread = threading.Thread(target=self.reduce, args=(2,))
        thread.start()
        time.sleep(4 * LIMIT)
        self.reduce(1)
        thread.join(PATIENCE)

    def apart(self) -> str:
        """Waits while another thread of the program computes, which then calls what the other member waits for."""
        began = threading.Event()

        def compute() -> None:
            self.reduce(8)
            began.set()
            time.sleep(4 * LIMIT)
            self.reduce(1)

        thread = threading.Thread(target=compute)
        thread.start()
        began.wait(PATIENCE)
        error = self.call("reduce", 2)
        thread.join(PATIENCE)
        return error


@contextlib.contextmanager
def callers(monkeypatch: pytest.MonkeyPatch, world: int) -> Iterator[list[Performer]]:
    """By rank."""
    monkeypatch.setenv("PCCL_DEADLOCK_TIMEOUT_S", str(LIMIT))
    with MasterNode("127.0.0.1:0") as master:
        members = [Performer(Caller, at, (address_of(master), world)) for at in range(world)]
        try:
            yield sorted(members, key=lambda member: member.ask("rank"))
        finally:
            for member in members:
                member.kill()


PAIRS = [
    (("update",), ("reduce",), ("update_topology", "all_reduce with tag 0")),
    (("sync",), ("reduce", 3, LARGE), ("sync_shared_state", "all_reduce with tag 3")),
    (("pending",), ("reduce",), ("are_peers_pending", "all_reduce with tag 0")),
    (("update",), ("optimize",), ("update_topology", "optimize_topology")),
    (("sync",), ("pending",), ("sync_shared_state", "are_peers_pending")),
    (("reduce", 1), ("reduce", 2), ("all_reduce with tag 1", "all_reduce with tag 2")),
    (("barrier",), ("reduce",), ("barrier", "all_reduce with tag 0")),
    (("receive", 1), ("receive", 0, 6), ("send or recv",)),
    (("parity",), ("update",), ("all_reduce", "update_topology")),
]


@pytest.mark.parametrize(("one", "other", "named"), PAIRS, ids=lambda value: "-".join(map(str, value)))
def test_both_are_told(monkeypatch, one, other, named):
    with callers(monkeypatch, 2) as members:
        for member, what in zip(members, (one, other), strict=True):
            member.tell("call", *what)
        errors = [member.answer() for member in members]
        for error in errors:
            assert "wait for each other" in error, errors
            assert all(name in error for name in ("rank 0", "rank 1", *named)), error
        for what in (("reduce", 1), ("reduce", 2), ("update",), ("reduce",)):  # nothing is left of it
            for member in members:
                member.tell("call", *what)
            assert [member.answer() for member in members] == ["", ""], what


@pytest.mark.parametrize("count", [4, LARGE], ids=["small", "large"])
def test_of_three_the_one_that_differs_and_the_others(monkeypatch, count):
    with callers(monkeypatch, 3) as members:
        for member, what in zip(members, (("reduce", 0, count), ("reduce", 0, count), ("update",)), strict=True):
            member.tell("call", *what)
        errors = [member.answer() for member in members]
        assert all("wait for each other" in error for error in errors), errors


def test_crossed_groups(monkeypatch):
    """A circle of three, of which each waits for the next."""
    with callers(monkeypatch, 3) as members:
        for at, pair in enumerate(((0, 1), (1, 2), (0, 2))):
            members[at].tell("call", "barrier", *pair)
        errors = [member.answer() for member in members]
        assert all(f"rank {at}" in error for error in errors for at in range(3)), errors


@pytest.mark.parametrize("what", [("update",), ("sync",), ("reduce", 0, LARGE), ("reduce", 1)], ids=lambda what: what[0])
def test_a_slow_member_is_waited_for(monkeypatch, what):
    """Also by a member in another call that is not a circle, and while one operation is in flight at the slow member."""
    with callers(monkeypatch, 3) as members:
        for member in members[:2]:
            member.tell("call", *what)
        members[2].tell("sleep", 4 * LIMIT)
        members[2].answer()
        members[2].tell("call", *what)
        assert [member.answer() for member in members] == [""] * 3


def test_a_call_in_flight_beside_a_computation_is_no_wait(monkeypatch):
    """It waits for the other member, which waits for what this one is to call."""
    with callers(monkeypatch, 2) as members:
        members[0].tell("call", "reduce", 1)
        members[0].tell("call", "reduce", 2)
        members[1].tell("call", "beside", 2, 1)
        assert [members[0].answer(), members[0].answer(), members[1].answer()] == [""] * 3


def test_another_thread_may_make_the_call(monkeypatch):
    with callers(monkeypatch, 2) as members:
        members[0].tell("apart")
        for tag in (8, 1, 2):
            members[1].tell("call", "reduce", tag)
        assert [members[1].answer() for _ in range(3)] == [""] * 3
        assert members[0].answer() == ""


def test_the_thread_that_has_connected_may_make_the_call(monkeypatch):
    with callers(monkeypatch, 2) as members:
        members[0].tell("background")
        for tag in (1, 2):
            members[1].tell("call", "reduce", tag)
        assert [members[1].answer() for _ in range(2)] == ["", ""]
        members[0].answer()
