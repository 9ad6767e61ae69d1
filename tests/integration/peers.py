"""Runs made of threads, and peers as processes that are told what to do and may be killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from performers import PATIENCE as PATIENCE
from performers import Performer, preload

import pccl
from pccl import Attribute, Communicator, MasterNode, PCCLError, ReduceOp
from pccl.lab.ports import free_ports

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1])}
"""In which a process finds the package under test."""

One = TypeVar("One")

preload(__name__)


def address_of(master: MasterNode) -> str:
    return f"127.0.0.1:{master.port}"


def worlds(comm: Communicator) -> list[int]:
    """Global world, own group, groups, largest group."""
    return [comm.get_attribute(attribute) for attribute in Attribute]


def form(comm: Communicator, world: int) -> None:
    """Votes for newcomers until the run has `world` peers."""
    comm.wait_for_peers(world, timeout=PATIENCE)


def until(condition: Callable[[], object], otherwise: str = "") -> None:
    """Returns once the condition holds, of which nothing tells. `otherwise`: the text of the error if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


class MasterProcess:
    """`pccl master` as a process, which may be killed, and started again at its address."""

    def __init__(self, heartbeat_limit: float = 5.0, log: Path | None = None) -> None:
        self._log = Path(os.devnull) if log is None else log
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._heartbeat_limit = heartbeat_limit
        self.start()

    def start(self) -> None:
        """Returns once it listens."""
        options = ["--listen", self.address, "--heartbeat-limit", str(self._heartbeat_limit)]
        command = [sys.executable, "-m", "pccl", "master", *options]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert "listening" in self.process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> MasterProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class Background:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._outcome: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._done: tuple[bool, Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            self._outcome.put((True, function(*arguments)))
        except BaseException as error:
            self._outcome.put((False, error))

    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float = PATIENCE) -> Any:
        """What it returned; what it raised is raised here."""
        if self._done is None:
            try:
                self._done = self._outcome.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"a call did not end within {timeout} s") from None
            self._thread.join()
        succeeded, value = self._done
        if not succeeded:
            raise value
        return value

    def error(self, timeout: float = PATIENCE) -> PCCLError:
        """The error it must have raised."""
        try:
            value = self.result(timeout)
        except PCCLError as error:
            return error
        raise AssertionError(f"the call should have failed, but gave {value!r}")


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Makes all calls at once and gives what they return."""
    running = [Background(call) for call in calls]
    return [one.result() for one in running]


@contextlib.contextmanager
def team(groups: list[int], *, lanes: int = 0, heartbeat_limit: float | None = None) -> Iterator[list[Communicator]]:
    """A master, and a connected communicator in each of these groups, in the order in which they joined."""
    with MasterNode("127.0.0.1:0", heartbeat_limit=heartbeat_limit) as master, contextlib.ExitStack() as stack:
        comms: list[Communicator] = []
        for group in groups:
            fresh = stack.enter_context(Communicator(address_of(master), group, lanes))
            admit(comms, fresh)
            comms.append(fresh)
        yield comms


def admit(comms: list[Communicator], fresh: Communicator) -> None:
    """Connects `fresh`, while all others vote for it; all of them end in the epoch that it is in."""
    joining = Background(fresh.connect, 1)
    if comms:
        world = comms[0].get_attribute(Attribute.GLOBAL_WORLD_SIZE) + 1
        on_all(comms, lambda comm, rank: form(comm, world))
    joining.result()


def on_all(comms: Sequence[One], call: Callable[[One, int], Any]) -> list[Any]:
    """Makes `call(comm, rank)` on all peers at once."""
    return together(*(lambda comm=comm, rank=rank: call(comm, rank) for rank, comm in enumerate(comms)))


class PeerProcess(Performer):
    """A peer as a process. Its value in sums is `value`, so that a sum tells who is in it."""

    def __init__(self, address: str, group: int = 0, value: int = 1) -> None:
        super().__init__(Commands, value, (address, group, value))
        self.address = address
        self.value = value

    def await_begin(self, method: str) -> None:
        """Until it is about to make the call that it was told last; from then on it survives a SIGINT."""
        while True:
            assert self._pipe.poll(PATIENCE), f"{method} has not begun"
            if self._pipe.recv() == ("begun", method):
                return

    def _died(self) -> Any:
        raise AssertionError("a peer process is gone")


@contextlib.contextmanager
def processes(count: int, groups: list[int] | None = None, heartbeat_limit: float | None = None) -> Iterator[list[PeerProcess]]:
    """A master and this many accepted peer processes, whose values are 1, 2, 4, ..."""
    with MasterNode("127.0.0.1:0", heartbeat_limit=heartbeat_limit) as master:
        peers = [PeerProcess(address_of(master), (groups or [0] * count)[rank], 1 << rank) for rank in range(count)]
        try:
            for peer in peers:
                peer.tell("join", count)
            for peer in peers:
                assert peer.answer() == count
            yield peers
        finally:
            for peer in peers:
                peer.kill()


class Commands:
    """What a peer process can be asked."""

    ANNOUNCES = True
    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, group: int, value: int) -> None:
        self.comm = Communicator(address, group)
        self.value = value

    def join(self, world: int) -> int:
        self.comm.connect()
        form(self.comm, world)
        return self.comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)

    def connect(self, attempts: int) -> None:
        self.comm.connect(attempts)

    def uuid(self) -> UUID:
        return self.comm.uuid

    def reduce_for(self, count: int, seconds: float) -> None:
        """One op after the other, of `count` elements."""
        array = np.ones(count, np.float32)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.comm.all_reduce(array, op=ReduceOp.MAX)

    def worlds(self) -> list[int]:
        return worlds(self.comm)

    def update(self) -> list[int]:
        self.comm.update_topology()
        return worlds(self.comm)

    def pending(self) -> bool:
        return self.comm.are_peers_pending()

    def sum(self, count: int, tag: int = 0) -> int:
        """Reduces `count` elements in place and checks the input after an error; gives the one value they all have."""
        array = np.full(count, self.value, np.int64)
        try:
            self.comm.all_reduce(array, array, op=ReduceOp.SUM, tag=tag)
        except PCCLError:
            assert (array == self.value).all(), "the input has changed"
            raise
        assert (array == array[0]).all(), "the result is torn"
        return int(array[0])

    def sums(self, count: int, ops: int) -> list[int]:
        """The loop that programs have: launch all, wait for each, relaunch what failed; gives the value of each."""
        arrays = [np.full(count, self.value, np.int64) for _ in range(ops)]
        left = set(range(ops))
        while left and self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE) > 1:
            handles = {}
            for tag in sorted(left):
                try:
                    handles[tag] = self.comm.all_reduce_async(arrays[tag], arrays[tag], op=ReduceOp.SUM, tag=tag)
                except pccl.TooFewPeersError:
                    break
            left -= {tag for tag, handle in handles.items() if handle.wait()[0]}
        assert all((array == array[0]).all() for array in arrays), "a result is torn"
        return [int(array[0]) for array in arrays]

    def state(self, megabytes: int, seed: int, revision: int) -> str:
        """Makes a shared state of several entries with the contents of `seed`; gives its hash."""
        random = np.random.default_rng(seed)
        sizes = [megabytes << 20, 1, 300_001, 0, 77]
        self.arrays = [random.integers(0, 256, size, np.uint8) for size in sizes]
        infos = [pccl.TensorInfo.from_numpy(array, f"entry {at}") for at, array in enumerate(self.arrays)]
        self.shared = pccl.SharedState(infos)
        self.shared.revision = revision
        return self.shared.hash()

    def sync(self, strategy: str = "ENFORCE_POPULAR") -> dict[str, Any]:
        info = self.comm.sync_shared_state(self.shared, pccl.SharedStateSyncStrategy[strategy])
        return {**dataclasses.asdict(info), "hash": self.shared.hash(), "revision": self.shared.revision}

    def step(self) -> None:
        """What a training step does: the same change everywhere, and the next revision."""
        for array in self.arrays:
            array += 1
        self.shared.push_revision()

    def hash(self) -> str:
        return self.shared.hash()

    def world_size(self) -> int:
        return self.comm.world_size

    def rank(self) -> int:
        return self.comm.rank

    def alive(self) -> bool:
        return self.comm.alive

    def close(self) -> None:
        self.comm.close()
