"""Processes that share state: each holds some members of a group, or the master, or both, and dies when it is told to.

What a member holds is made from a few numbers, so the test and every process can say what bytes must lie where.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from actors import PATIENCE, form

from pccl import Attribute, Communicator, MasterNode, PCCLError, ReduceOp, SharedState, SharedStateSyncStrategy, TensorInfo
from pccl._core.library import _C, _ffi
from pccl._peer.shared_state import sync_report

LEAF = 256 << 10
PERIOD = 200_003
"""Of the bytes of a content: no multiple of it is near a leaf's end, so that a leaf in a wrong place is a wrong leaf."""


@dataclasses.dataclass(frozen=True)
class Content:
    """All bytes of a state: a pattern, a few leaves that differ from it, and how often 1 was added to everything since."""

    pattern: int
    drift: int = 0
    steps: int = 0

    def entry(self, at: int, size: int) -> np.ndarray:
        """Not to be written to."""
        made, added = _made(self.pattern, self.drift, at, size), self.steps % 256
        return made + np.uint8(added) if added else made

    def step(self) -> Content:
        return dataclasses.replace(self, steps=self.steps + 1)


@functools.lru_cache(maxsize=20)
def _made(pattern: int, drift: int, at: int, size: int) -> np.ndarray:
    period = np.random.default_rng([pattern, at]).integers(0, 256, PERIOD, np.uint8)
    made = np.resize(period, size)
    if drift:
        rng = random.Random(f"{drift} {at}")
        for leaf in range(0, size, LEAF):
            if rng.random() < 0.3:
                made[rng.randrange(leaf, min(leaf + LEAF, size))] ^= rng.randrange(1, 256)
    made.setflags(write=False)
    return made


@dataclasses.dataclass(frozen=True)
class Blow:
    """What one process does to another (or itself) while it syncs.

    `when`: "delay": so many seconds after it has begun; "part": when this part of what it has to receive is there;
    "done": when everything is there, and so many seconds after that.
    """

    pid: int
    signal: signal.Signals
    when: str
    value: float


class Member:
    """One communicator, and what it holds, at an odd address."""

    def __init__(self, address: str, lanes: int, sizes: Sequence[int]) -> None:
        self.lanes = lanes
        self.comm = Communicator(address, 0, lanes)
        self.arrays = [np.empty(size + 1 + at % 3, np.uint8)[1 + at % 3 :] for at, size in enumerate(sizes)]
        infos = [TensorInfo.from_numpy(array, f"entry {at}") for at, array in enumerate(self.arrays)]
        self.state = SharedState(infos)

    def join(self, world: int) -> None:
        self.comm.connect(1, timeout=PATIENCE)
        if self.comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < world:
            self.form(world)

    def form(self, world: int) -> None:
        form(self.comm, world)

    def holds(self, contents: Iterable[Content]) -> Content | None:
        """Which of these, byte for byte."""
        smallest_first = sorted(enumerate(self.arrays), key=lambda one: one[1].size)  # most others differ there
        for content in contents:
            if all(np.array_equal(array, content.entry(at, array.size)) for at, array in smallest_first):
                return content
        return None

    def sync(self, known: Iterable[Content], strategy: str) -> Outcome:
        try:
            info = self.comm.sync_shared_state(self.state, SharedStateSyncStrategy[strategy], timeout=PATIENCE)
        except PCCLError as error:
            return Outcome(error.result.name, self.state.revision, self.holds(known), detail=error.detail)
        return Outcome("SUCCESS", self.state.revision, self.holds(known), info.tx_bytes, info.rx_bytes)

    def train(self, steps: int, world: int) -> Training:
        received, reduced = [], 0
        while True:
            received.append(self.comm.sync_shared_state(self.state, timeout=PATIENCE).rx_bytes)
            steps -= self.comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) >= world
            if steps < 0:
                return Training(self.state.revision, received, reduced, self.holds([Content(1, steps=self.state.revision)]))
            for array in self.arrays:
                array += 1
            self.state.push_revision()
            # in the background, while the others are asked whether somebody waits
            sums = [np.ones(count, np.int64) for count in (10, 50_000, 300_000)]
            ops = [self.comm.all_reduce_async(one, one, op=ReduceOp.SUM, tag=tag) for tag, one in enumerate(sums)]
            pending = self.comm.are_peers_pending(timeout=PATIENCE)
            assert all(op.wait(timeout=PATIENCE)[0] for op in ops)
            assert all((one == self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)).all() for one in sums)
            reduced += len(ops)
            if pending:
                self.comm.update_topology(timeout=PATIENCE)


@dataclasses.dataclass(frozen=True)
class Training:
    """What a member has seen of it."""

    revision: int
    received: list[int]
    """Bytes, by sync."""
    reduced: int
    content: Content | None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of a member's sync; `content` is what lies in its memory afterwards, if that is a known one."""

    result: str
    revision: int
    content: Content | None
    tx_bytes: int = 0
    rx_bytes: int = 0
    detail: str = ""


class Holder:
    """The role of a process in `actors.Performer`: a master, members, or both."""

    def __init__(self, _pipe: Connection) -> None:
        self.log: list[Any] = []
        self._master: MasterNode | None = None
        self._members: list[Member] = []

    def serve(self, heartbeat_limit: float) -> str:
        """Runs a master here; its address."""
        self._master = MasterNode("127.0.0.1:0", heartbeat_limit=heartbeat_limit)
        self._master.run()
        return f"127.0.0.1:{self._master.port}"

    def join(self, address: str, lanes: Sequence[int], sizes: Sequence[int], world: int) -> None:
        """As so many new members as there are numbers of lanes."""
        self._members = [Member(address, number, sizes) for number in lanes]
        self._on_all(lambda member, _: member.join(world))

    def rejoin(self, address: str, world: int) -> None:
        """With new communicators and the same states."""
        for member in self._members:
            member.comm.close()
            member.comm = Communicator(address, 0, member.lanes)
        self._on_all(lambda member, _: member.join(world))

    def form(self, world: int) -> None:
        self._on_all(lambda member, _: member.form(world))

    def hold(self, contents: Sequence[Content], revisions: Sequence[int]) -> None:
        for member, content, revision in zip(self._members, contents, revisions, strict=True):
            for at, array in enumerate(member.arrays):
                array[:] = content.entry(at, array.size)
            member.state.revision = revision

    def step(self) -> None:
        for member in self._members:
            for array in member.arrays:
                array += 1
            member.state.push_revision()

    def sync(self, known: Sequence[Content], blows: Sequence[Blow] = (), strategy: str = "ENFORCE_POPULAR") -> list[Outcome]:
        """All members here at once. The blows are dealt by who receives here first."""
        struck = [_Striker(self._members, blow) for blow in blows]
        outcomes = self._on_all(lambda member, _: member.sync(known, strategy))
        for one in struck:
            one.stop()
        return outcomes

    def votes(self) -> list[str]:
        """What a vote gives here: "SUCCESS", or the name of the result."""

        def vote(member: Member, _: int) -> str:
            try:
                member.comm.update_topology(timeout=PATIENCE)
            except PCCLError as error:
                return error.result.name
            return "SUCCESS"

        return self._on_all(vote)

    def train(self, steps: int, world: int) -> list[Training]:
        """A program that lets newcomers in while it reduces; all start or join here. So many steps in a world that large."""
        return self._on_all(lambda member, at: member.train(steps, world))

    def level(self) -> str:
        """The kernels in use."""
        name = _ffi.new("char **")
        _C.pccl_ext_cpu_level(name)
        return _ffi.string(name[0]).decode()

    def hashes(self) -> list[str]:
        return [member.state.hash() for member in self._members]

    def close(self) -> None:
        self._on_all(lambda member, _: member.comm.close())

    def _on_all(self, call: Callable[[Member, int], Any]) -> list[Any]:
        """Calls for all members at once, since they may wait for each other."""
        answers: list[Any] = [None] * len(self._members)
        failures: list[BaseException] = []

        def run(at: int) -> None:
            try:
                answers[at] = call(self._members[at], at)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(at,)) for at in range(len(self._members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return answers


class _Striker:
    """Watches the syncs of some members, and harms a process when one of them is as far as the blow says."""

    def __init__(self, members: Sequence[Member], blow: Blow) -> None:
        self._blow = blow
        self._handles = [member.comm._handle for member in members]
        self._before = [sync_report(handle).seconds for handle in self._handles]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        blow = self._blow
        if blow.when == "delay":
            if self._over.wait(blow.value):
                return
        else:
            while not self._reached():
                if self._over.wait(0.0001):
                    return
            if blow.when == "done":
                time.sleep(blow.value)
        with contextlib.suppress(ProcessLookupError):
            os.kill(blow.pid, blow.signal)

    def _reached(self) -> bool:
        for handle, before in zip(self._handles, self._before, strict=True):
            report = sync_report(handle)
            if report.seconds == before or report.hashing or report.rx_bytes == 0:
                continue  # of the sync before, or nothing has come
            if self._blow.when == "done" and report.missing_bytes == 0:
                return True
            if self._blow.when == "part" and report.rx_bytes >= self._blow.value * (report.rx_bytes + report.missing_bytes):
                return True
        return False
