"""Processes that fork: a death shows though children live, and children harm nobody (docs/fork.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from peers import PATIENCE, Background, address_of, form

import pccl
from pccl import Communicator, MasterNode, ReduceOp

TESTS = Path(__file__).parents[1]

SILENCE = 60.0
"""The heartbeat limit, in seconds: what is noticed far sooner is not noticed by silence."""

AT_ONCE = 10.0
"""Seconds; it takes milliseconds on a machine that has nothing else to do."""


class Program:
    """A program of forking.py."""

    def __init__(self, *arguments: str) -> None:
        self.children: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", Path(__file__).with_name("forking.py"), *arguments],
            env={**os.environ, "PYTHONPATH": f"{Path(pccl.__file__).parents[1]}{os.pathsep}{TESTS}"},  # the package under test
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_line(self, wanted: str, children: int = 0) -> None:
        """Until it has said this and named so many children, which may speak for themselves."""
        assert self._process.stdout is not None
        said = False
        while not said or len(self.children) < children:
            line = self._process.stdout.readline()
            assert line, f"it has ended with {self._process.wait()} and not said {wanted}"
            if line.startswith("pid "):
                self.children.append(int(line.split()[1]))
            said |= line.strip() == wanted

    def end(self) -> None:
        assert self._process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def living(self) -> list[int]:
        """Those of the children that live; one that has ended and nobody has waited for does not."""
        return [pid for pid in self.children if state_of(pid) not in "ZX"]


def state_of(pid: int) -> str:
    """The letter that ps shows; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[Program]:
    """A program; nothing of it is left at the end, and it is ended if it hangs."""
    started = Program(*arguments)
    limit = threading.Timer(4 * PATIENCE - 10, started.kill)
    limit.start()
    try:
        yield started
    finally:
        limit.cancel()
        started.kill()
        for pid in started.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def reduce_until_lost(comm: Communicator) -> float:
    """When it heard of the loss."""
    values = np.ones(1024, np.float32)
    try:
        while True:
            comm.all_reduce(values, values, op=ReduceOp.MAX)
    except pccl.PeerLostError:
        return time.monotonic()


CHILDREN = [
    ("none", 0),
    ("loader fork", 2),
    ("loader spawn", 2),
    ("process fork", 1),
    ("process spawn", 1),
    ("process forkserver", 1),
    ("subprocess", 1),
    ("subprocess inherits", 1),
    ("fork 1", 1),
    ("fork 2", 2),
]


@pytest.mark.parametrize(("children", "count"), CHILDREN, ids=[name.replace(" ", "-") for name, _ in CHILDREN])
def test_a_death_shows_though_children_live(children, count, record_property):
    with MasterNode("127.0.0.1:0", heartbeat_limit=SILENCE) as master, Communicator(address_of(master)) as comm:
        comm.connect(1)
        with program("train", address_of(master), *children.split()) as victim:
            form(comm, 2)
            losing = Background(reduce_until_lost, comm)
            victim.await_line("ready", count)
            killed = time.monotonic()
            victim.kill()
            heard = losing.result(2 * PATIENCE) - killed
            assert len(victim.living()) == count, "the test has shown nothing: the children are gone"
        assert heard < AT_ONCE
        record_property("milliseconds", heard * 1e3)


@pytest.mark.parametrize("kind", ["small", "large", "retry"])
def test_forks_in_the_middle_of_ops(kind):
    with program("ops", kind) as peers:
        peers.await_line("fine")
        peers.end()


def test_a_master_in_a_process_that_forks():
    with program("master") as master:
        master.await_line("fine")
        assert len(master.living()) == 1
        master.end()


def test_no_child_of_a_storm_of_forks_has_a_descriptor():
    with program("storm") as process:
        process.await_line("fine")
        process.end()
