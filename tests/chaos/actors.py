"""Peers as real processes that follow a script, check what they see, and die where the script says.

Peer i contributes (1 << i) times a known pattern, so a result tells who is in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import operator
import os
import random
import signal
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from performers import PATIENCE as PATIENCE
from performers import Performer, preload

import pccl
from pccl import (
    Attribute,
    Communicator,
    DataType,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
)

SMALL = 256 * 1024
"""Bytes up to which an op may end without the master."""


Ranges = tuple[tuple[int, int, int, tuple[str, ...]], ...]
"""Of a result: start, stop, who is in it, and what they are called."""


preload(__name__)

# ---- scripts ----


@dataclasses.dataclass(frozen=True)
class Reduce:
    """One sum, or average; quantised, it is of a constant, for which quantisation is exact."""

    count: int
    dtype: str = "int64"
    in_place: bool = True
    quantized: QuantizationAlgorithm | None = None
    op: ReduceOp = ReduceOp.SUM

    def input(self, value: int) -> np.ndarray:
        dtype = np.dtype(self.dtype)
        return np.full(self.count, value, dtype) if self.quantized else self.pattern() * dtype.type(value)

    def pattern(self) -> np.ndarray:
        return _pattern(self.count, self.dtype, self.quantized is None)

    def options(self) -> QuantizationOptions | None:
        return QuantizationOptions(DataType.UINT8, self.quantized) if self.quantized else None


@dataclasses.dataclass(frozen=True)
class Ops:
    """Reduces by `way`: "plain", one after another; "async", all in flight at once; "multi", all_reduce_multiple_with_retry.

    "retry" and "retry_async" are the first two in retry mode; "mixed" is "plain" for peer 0 and "retry" for the others.
    """

    way: str
    reduces: tuple[Reduce, ...]
    in_flight: int = 4


@dataclasses.dataclass(frozen=True)
class Vote:
    """A call that all peers must make: "update_topology", "are_peers_pending" or "optimize_topology"."""

    call: str
    stagger: float = 0.0


@dataclasses.dataclass(frozen=True)
class Meet:
    """Admits whoever waits, and tells those newcomers where the script is."""

    stagger: float = 0.0


@dataclasses.dataclass(frozen=True)
class Pause:
    """Nothing for a while."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class Sync:
    """Shared state of `bytes`; of the peers, those in `drifted` (bits) have other content before it."""

    bytes: int
    drifted: int = 0


Step = Ops | Vote | Meet | Pause | Sync


@dataclasses.dataclass(frozen=True)
class Fate:
    """A peer's death: `delay` seconds, and `fraction` of the duration of the op before, after it has begun a step."""

    step: int
    delay: float = 0.0
    fraction: float = 0.0
    signal: int = signal.SIGKILL


class AloneError(Exception):
    """No other member is left: the script ends."""


# ---- in the process of a peer ----


@functools.lru_cache(maxsize=32)
def _pattern(count: int, dtype: str, varied: bool) -> np.ndarray:
    return np.resize(np.arange(1, 62 if varied else 2).astype(dtype), count)


def form(comm: Communicator, world: int) -> None:
    """Votes, at least once (what was read before may count the dead), until the run has `world` peers."""
    comm.update_topology(timeout=PATIENCE)
    comm.wait_for_peers(world, timeout=PATIENCE)


class Peer:
    """Follows scripts and writes down what it sees."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, number: int, group: int, lanes: int) -> None:
        self._pipe = pipe
        self._number = number
        self._value = 1 << number
        self._random = random.Random(number)
        self.comm = Communicator(address, group, lanes)
        self.log: list[tuple[Any, ...]] = []
        self._ends: list[float] = []
        self._last_op = 0.0
        self._state: np.ndarray | None = None
        self._revision = 0

    def worlds(self) -> list[int]:
        return [self.comm.get_attribute(attribute) for attribute in Attribute]

    def world(self) -> int:
        return self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)

    def alive(self) -> bool:
        return self.comm.alive

    def join(self, world: int) -> None:
        self.comm.connect(1, timeout=PATIENCE)
        self._meet(world)

    def _meet(self, world: int) -> None:
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def form(self, world: int) -> None:
        form(self.comm, world)

    def reconnect(self, world: int) -> None:
        """As any user after being expelled."""
        self.comm.reconnect(timeout=PATIENCE)
        self._meet(world)

    def insist(self, world: int) -> int:
        """Joins, and again whenever it is expelled, until the run has `world` peers. How often it had to."""
        for times in itertools.count(1):
            try:
                if times == 1:
                    self.comm.connect(timeout=PATIENCE)
                else:
                    self.comm.reconnect(timeout=PATIENCE)
                self._pipe.send(("accepted", None))
                self._meet(world)
                return times
            except PCCLError:
                continue
        raise AssertionError

    def call(self, method: str) -> Any:
        return getattr(self.comm, method)(timeout=PATIENCE)

    def ends(self) -> list[float]:
        """When the calls ended that need a master, votes, rounds of shared state and large ops; time.monotonic()."""
        return self._ends

    def ready(self) -> None:
        """Nothing: whoever gets the answer knows that the process has started."""

    def connect(self) -> None:
        self.comm.connect(1, timeout=PATIENCE)

    def connect_and_die(self, after: float) -> None:
        _die_after(after, signal.SIGKILL)
        self.connect()
        time.sleep(PATIENCE)

    def close(self) -> None:
        self.comm.close()

    def follow(self, steps: list[Step], fate: Fate | None = None) -> list[tuple[Any, ...]]:
        self.log = []
        with contextlib.suppress(AloneError):
            for number, step in enumerate(steps):
                self._follow_one(number, step, fate)
            if fate is not None:
                time.sleep(PATIENCE)  # it comes
        return self.log

    def join_late(self, steps: list[Step], fate: Fate | None, delay: float, dies_after: float | None) -> list[tuple[Any, ...]]:
        """A newcomer: connects after `delay`, learns where the others are, and goes on with them."""
        self.log = []
        time.sleep(delay)
        if dies_after is not None:
            _die_after(dies_after, signal.SIGKILL)
        self.comm.connect(1000, timeout=PATIENCE)
        self._pipe.send(("accepted", None))
        with contextlib.suppress(AloneError):
            for step in range(self._agree(-1) + 1, len(steps)):
                self._follow_one(step, steps[step], fate)
        return self.log

    def reduce_on(self, reduces: list[Reduce]) -> tuple[int, list[int]]:
        """Sums over and over until one of them is told "enough"; nothing may fail. How often, and who was in.

        Told "tell", it says when a round has ended that began after that.
        """
        rounds, seen = 0, set()
        while True:
            told = self._pipe.recv()[0] if self._pipe.poll() else None
            for tag, reduce in enumerate(reduces):
                send = reduce.input(self._value)
                recv = send if reduce.in_place else np.empty_like(send)
                self.comm.all_reduce(
                    send, recv, op=ReduceOp.SUM, tag=tag, timeout=PATIENCE, quantization_options=reduce.options()
                )
                seen.add(_who(reduce, recv))
            flag = np.array([told != "enough"], np.int64)
            self.comm.all_reduce(flag, flag, op=ReduceOp.MIN, timeout=PATIENCE)
            rounds += 1
            if told == "tell":
                self._pipe.send(("round", None))
            if not flag[0]:
                return rounds, sorted(seen)

    # ---- steps ----

    def _follow_one(self, number: int, step: Step, fate: Fate | None) -> None:
        if fate is not None and fate.step == number:
            _die_after(fate.delay + fate.fraction * self._last_op, fate.signal)
        match step:
            case Pause():
                time.sleep(step.seconds)
            case Vote():
                time.sleep(self._random.random() * step.stagger)
                answer = self._vote(step.call)
                self._ended()
                # who waits changes with time, what a lone peer may do with the world: the rest is the same on all
                self.log.append((number, step.call, answer, self.world()))
            case Meet():
                time.sleep(self._random.random() * step.stagger)
                self.comm.update_topology(timeout=PATIENCE)
                self._ended()
                assert self._agree(number) == number, "peers are at different steps"
            case Sync():
                self._sync(number, step)
            case Ops():
                getattr(self, f"_{step.way}")(number, step)

    def _sync(self, number: int, step: Sync) -> None:
        if self._state is None or self._state.nbytes != step.bytes:
            self._state = np.zeros(step.bytes, np.uint8)
        if step.drifted & self._value:
            self._state[self._random.randrange(step.bytes) :] += np.uint8(self._value % 251 + 1)
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(self._state, "state")])
        state.revision = self._revision
        self.comm.sync_shared_state(state, timeout=PATIENCE)
        self._ended()
        self.log.append((number, "synced", state.revision, zlib.crc32(self._state.tobytes())))
        self._revision = state.revision + 1

    def _ended(self) -> None:
        """A call has that needed the master."""
        self._ends.append(time.monotonic())

    def _ended_ops(self, reduces: Iterable[Reduce]) -> None:
        if any(one.count * np.dtype(one.dtype).itemsize > SMALL for one in reduces):
            self._ended()

    def _vote(self, call: str) -> Any:
        try:
            return getattr(self.comm, call)(timeout=PATIENCE)
        except pccl.UsageError:
            if call != "optimize_topology" or self.comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) > 1:
                raise
            raise AloneError from None  # nothing to optimise

    def _agree(self, number: int) -> int:
        while True:
            array = np.array([number], np.int64)
            world = self.world()
            try:
                self.comm.all_reduce(array, array, op=ReduceOp.MAX, timeout=PATIENCE)
            except pccl.PeerLostError:
                assert array[0] == number, "the input has changed"
                assert self.world() < world, "a loss without a loss"
                continue
            except pccl.TooFewPeersError:
                self.log.append((number, "alone"))
                raise AloneError from None
            self.log.append((int(array[0]), "met", self.world()))
            return int(array[0])

    def _plain(self, number: int, step: Ops) -> None:
        for index, reduce in enumerate(step.reduces):
            done = False
            while not done:
                handle = _Launched(self, reduce, index)
                begin = time.monotonic()
                try:
                    info = self.comm.all_reduce(
                        handle.send,
                        handle.recv,
                        op=ReduceOp.SUM,
                        tag=index,
                        quantization_options=reduce.options(),
                        timeout=PATIENCE,
                    )
                except pccl.PeerLostError:
                    self._lost(number, index, [handle])
                except pccl.TooFewPeersError:
                    self.log.append((number, index, "alone"))
                    handle.check_input()
                    raise AloneError from None
                else:
                    self._last_op = time.monotonic() - begin
                    self._ended_ops([reduce])
                    self.log.append((number, index, "done", handle.result(info.world_size)))
                    done = True

    def _async(self, number: int, step: Ops) -> None:
        left = set(range(len(step.reduces)))
        while left:
            order = self._random.sample(sorted(left), len(left))
            launched = {tag: _Launched(self, step.reduces[tag], tag) for tag in order}
            handles = {}
            try:
                for tag, one in launched.items():
                    handles[tag] = self.comm.all_reduce_async(
                        one.send, one.recv, op=ReduceOp.SUM, tag=tag, quantization_options=one.reduce.options()
                    )
            except pccl.TooFewPeersError:
                assert not handles, "alone in the middle of a round"
                self.log.append((number, sorted(left), "alone"))
                raise AloneError from None
            outcomes = {tag: handles[tag].wait(timeout=PATIENCE) for tag in self._random.sample(order, len(order))}
            self._ended_ops(launched[tag].reduce for tag in order if outcomes[tag][0])
            failed = sorted(tag for tag, (success, _, _) in outcomes.items() if not success)
            assert all(outcomes[tag][1] == pccl.Result.RANK_CONNECTION_LOST.value for tag in failed), outcomes
            for tag in sorted(left.difference(failed)):
                self.log.append((number, tag, "done", launched[tag].result(outcomes[tag][2].world_size)))
            if failed:
                self._lost(number, failed, [launched[tag] for tag in failed])
            left = set(failed)

    def _multi(self, number: int, step: Ops) -> None:
        launched = [_Launched(self, reduce, tag) for tag, reduce in enumerate(step.reduces)]
        wanted = [ReduceOpDescriptor.from_numpy(one.send, one.recv, one.descriptor()) for one in launched]
        try:
            info = self.comm.all_reduce_multiple_with_retry(wanted, max_in_flight=step.in_flight, timeout=PATIENCE)
        except pccl.TooFewPeersError:
            self.log.append((number, "alone"))
            raise AloneError from None
        self._ended_ops(step.reduces)
        assert info.world_size == self.world()
        ranges = [one.ranges(self.comm.get_contributors(one.tag)) for one in launched]
        summary = [(_in_all(found), zlib.crc32(one.recv.tobytes())) for one, found in zip(launched, ranges, strict=True)]
        self.log.append((number, "multi", info.world_size, summary, ranges))

    def _retry(self, number: int, step: Ops) -> None:
        for index, reduce in enumerate(step.reduces):
            one = _Launched(self, reduce, index)
            begin = time.monotonic()
            try:
                info = self.comm.all_reduce(
                    one.send,
                    one.recv,
                    op=reduce.op,
                    tag=index,
                    quantization_options=reduce.options(),
                    retry=True,
                    timeout=PATIENCE,
                )
            except pccl.TooFewPeersError as error:
                self.log.append((number, index, "alone", one.ranges(error.contributors)))
                raise AloneError from None
            self._last_op = time.monotonic() - begin
            self._resumed(number, one, info)

    def _retry_async(self, number: int, step: Ops) -> None:
        launched = [_Launched(self, reduce, tag) for tag, reduce in enumerate(step.reduces)]
        handles = {}
        for one in self._random.sample(launched, len(launched)):
            try:
                handles[one.tag] = self.comm.all_reduce_async(
                    one.send, one.recv, op=one.reduce.op, tag=one.tag, quantization_options=one.reduce.options(), retry=True
                )
            except pccl.TooFewPeersError:
                self.log.append((number, "alone"))
                raise AloneError from None
        outcomes = {tag: handles[tag].wait(timeout=PATIENCE) for tag in self._random.sample(list(handles), len(handles))}
        for one in launched:
            success, status, info = outcomes[one.tag]
            if success:
                self._resumed(number, one, info)
            else:
                assert status == pccl.Result.TOO_FEW_PEERS.value, outcomes
                self.log.append((number, one.tag, "alone", one.ranges(info.contributors)))
        if not all(success for success, _, _ in outcomes.values()):
            raise AloneError

    def _mixed(self, number: int, step: Ops) -> None:
        if self._number == 0:
            self._plain(number, step)
        else:
            self._retry(number, step)

    def _resumed(self, number: int, one: _Launched, info: pccl.ReduceInfo) -> None:
        ranges = one.ranges(info.contributors)
        assert info.world_size in (len(uuids) for *_, uuids in ranges)
        self.log.append((number, one.tag, "resumed", ranges, info.world_size, zlib.crc32(one.recv.tobytes()), self.world()))

    def _lost(self, number: int, index: Any, launched: list[_Launched]) -> None:
        for one in launched:
            one.check_input()
        assert self.world() < launched[0].world, "a loss without a loss"
        self.log.append((number, index, "lost", self.worlds()))


class _Launched:
    """The buffers of an op, and the checks on them."""

    def __init__(self, peer: Peer, reduce: Reduce, tag: int) -> None:
        self.reduce = reduce
        self.tag = tag
        self.uuid = peer.comm.uuid
        self.world = peer.world()
        self._value = peer._value
        self.send = reduce.input(self._value)
        self.recv = self.send if reduce.in_place else np.zeros_like(self.send)

    def descriptor(self) -> ReduceDescriptor:
        kind = DataType.from_numpy_dtype(self.send.dtype)
        options = self.reduce.options() or QuantizationOptions(kind, QuantizationAlgorithm.NONE)
        return ReduceDescriptor(
            count=self.send.size,
            op=ReduceOp.SUM,
            tag=self.tag,
            operand_descriptor=ReduceOperandDescriptor(kind),
            quantization_options=options,
        )

    def check_input(self) -> None:
        assert np.array_equal(self.send, self.reduce.input(self._value)), f"the input of {self.reduce} has changed"

    def result(self, world: int | None) -> tuple[int, int]:
        """Who is in it, and a checksum; it is whole, and if `world` is given, over just the members adopted at launch."""
        if not self.reduce.in_place:
            self.check_input()
        who = _who(self.reduce, self.recv)
        assert who & self._value, f"own value {self._value} missing in {who}"
        assert world is None or who.bit_count() == world == self.world, (
            f"{who:b} are in it, {world} are told, {self.world} adopted"
        )
        return who, zlib.crc32(self.recv.tobytes())

    def ranges(self, contributors: tuple[pccl.Contributors, ...]) -> Ranges:
        """Who is in which range, and what they are called; each is exactly the reduction of those, or, with nobody, the input."""
        if not self.reduce.in_place:
            self.check_input()
        assert contributors[0].start == 0
        assert contributors[-1].stop == self.send.size
        assert all(one.stop == next_one.start for one, next_one in itertools.pairwise(contributors))
        found: list[tuple[int, int, int, tuple[str, ...]]] = []
        for start, stop, peers in contributors:
            if not peers:
                kept = np.array_equal(self.recv[start:stop], self.reduce.input(self._value)[start:stop])
                assert kept or not self.reduce.in_place, f"the input from {start} to {stop} has changed"
                found.append((start, stop, 0, ()))
                continue
            who = _who(self.reduce, self.recv[start:stop], start, len(peers))
            assert who.bit_count() == len(peers), f"{who:b} are in it, not {peers}"
            assert who & self._value, f"own value {self._value} missing in {who:b}"
            assert self.uuid in peers
            found.append((start, stop, who, tuple(sorted(str(uuid) for uuid in peers))))
        return tuple(found)


def _in_all(ranges: Ranges) -> int:
    return functools.reduce(operator.and_, (who for _, _, who, _ in ranges))


def _who(reduce: Reduce, result: np.ndarray, start: int = 0, peers: int = 1) -> int:
    pattern = reduce.pattern()[start : start + result.size]
    divisor = result.dtype.type(peers if reduce.op is ReduceOp.AVG else 1)
    who = np.round(result[0] * float(divisor) / pattern[0])
    expected = pattern * result.dtype.type(who)
    whole = np.array_equal(result, expected if divisor == 1 else expected / divisor)
    assert whole, f"the result of {reduce} is torn: {np.unique(result / pattern)}"
    return int(who)


def _die_after(seconds: float, number: int) -> None:
    if seconds <= 0:
        os.kill(os.getpid(), number)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


# ---- in the test's process ----


class Actor(Performer):
    """A peer process."""

    def __init__(
        self,
        address: str,
        number: int,
        group: int = 0,
        lanes: int = 0,
        environment: dict[str, str] | None = None,
        stderr: Path | None = None,
    ) -> None:
        super().__init__(Peer, number, (address, number, group, lanes), environment, stderr)
        self.accepted = False

    def _heard(self, kind: str) -> None:
        self.accepted |= kind == "accepted"

    def await_round(self) -> None:
        """In `reduce_on`: until a round has ended, on all, that begins from now on."""
        self.tell("tell")
        assert self._pipe.poll(PATIENCE), "no round ends"
        kind, value = self._pipe.recv()
        assert kind == "round", value

    def waits_in_connect(self) -> bool:
        """Whether a newcomer has neither been accepted nor died."""
        while not self.accepted and self._pipe.poll(0):
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                return False
            assert kind == "accepted", value
            self.accepted = True
        return not self.accepted and self._process.is_alive()


@contextlib.contextmanager
def cast(
    count: int,
    *,
    groups: list[int] | None = None,
    lanes: int = 0,
    heartbeat_limit: float | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[tuple[str, list[Actor]]]:
    """The address of a master, and this many accepted peers; more may be appended, and all are killed at the end."""
    with MasterNode("127.0.0.1:0", heartbeat_limit=heartbeat_limit) as master:
        address = f"127.0.0.1:{master.port}"
        with troupe(address, count, groups=groups, lanes=lanes, environment=environment) as actors:
            yield address, actors


@contextlib.contextmanager
def troupe(
    address: str,
    count: int,
    *,
    groups: list[int] | None = None,
    lanes: int = 0,
    environment: dict[str, str] | None = None,
) -> Iterator[list[Actor]]:
    """This many accepted peers of the master at `address`."""
    actors = [Actor(address, i, (groups or [0] * count)[i], lanes, environment) for i in range(count)]
    try:
        for actor in actors:
            actor.tell("join", count)
        for actor in actors:
            assert actor.answer() is None
        yield actors
    finally:
        for actor in actors:
            actor.kill()


def all_follow(actors: list[Actor], steps: list[Step], fates: dict[int, Fate] | None = None) -> dict[int, list[tuple[Any, ...]]]:
    """All follow the script; the logs of those that have lived to its end, by number."""
    for actor in actors:
        actor.tell("follow", steps, (fates or {}).get(actor.number))
    logs = {actor.number: actor.answer() for actor in actors}
    return {number: log for number, log in logs.items() if log is not None}


def check_agreement(logs: dict[int, list[tuple[Any, ...]]]) -> None:
    """The same outcome of the same op on all that have lived; who joined late has seen the end of it."""
    longest = max(logs.values(), key=len)
    for number, log in logs.items():
        assert log == longest[len(longest) - len(log) :], f"peer {number} saw another run:\n{log}\nthan\n{longest}"


def losses(log: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [entry for entry in log if "lost" in entry]


def contributors(log: list[tuple[Any, ...]]) -> list[int]:
    """Who was in each sum, in order."""
    return [entry[3][0] for entry in log if len(entry) > 3 and entry[2] == "done"]
