"""Processes that make collectives and check what they get: each knows what all others put in."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from performers import PATIENCE, Performer, preload

from pccl import Communicator, DataType, MasterNode, PCCLError, PCCLTimeoutError, PeerLostError, ReduceOp
from pccl._core.groups import Group

preload(__name__)

KINDS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "barrier", "send")
SURVIVING = ("broadcast", "reduce", "barrier")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
DIVIDED = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


@dataclasses.dataclass(frozen=True)
class Wish:
    """One collective of `count` elements: of all, or of each part of a divided one."""

    kind: str
    count: int = 5
    dtype: DataType = DataType.FLOAT
    members: tuple[int, ...] = ()  # of a sub-group, by their ranks in the run; empty: all
    root: int = 0
    op: ReduceOp = ReduceOp.SUM
    unequal: bool = False  # parts of different sizes
    lists: bool = False  # parts are tensors of their own
    in_place: bool = False
    torch: bool = False
    launched: bool = False  # by the method that returns at once
    options: tuple[tuple[str, Any], ...] = ()

    def sizes(self, size: int) -> list[int]:
        """Elements of each member's part."""
        return [self.count * (rank % 3) + rank % 2 for rank in range(size)] if self.unequal else [self.count] * size

    def pairs(self, size: int) -> list[list[int]]:
        """Elements that each member sends to each."""
        if not self.unequal:
            return [[self.count] * size for _ in range(size)]
        return [[self.count * ((giver + 2 * taker) % 3) + giver % 2 for taker in range(size)] for giver in range(size)]


WHOLE = slice(None)


def content(kind: DataType, count: int, rank: int, where: slice = WHOLE) -> np.ndarray:
    """What a member puts in: small whole numbers, so that results are exact in every type.

    Cheap, because the others wait for whoever computes this last, on busy machines too.
    """
    numbers = np.random.default_rng([count, rank]).integers(0, 2 if kind is DataType.BOOL else 5, count, dtype=np.uint8)
    return numbers[where].astype(kind.to_numpy_dtype())


def reduced(wish: Wish, count: int, ranks: Sequence[int], where: slice = WHOLE) -> np.ndarray:
    """The result of a reduce of these members."""
    inputs = [content(wish.dtype, count, rank, where) for rank in ranks]
    return functools.reduce(lambda a, b: COMBINE[wish.op](a, b).astype(a.dtype), inputs)


def part(whole: np.ndarray, sizes: list[int], rank: int) -> np.ndarray:
    """A view of one member's part."""
    begin = sum(sizes[:rank])
    return whole[begin : begin + sizes[rank]]


class Buffers:
    """The tensors of one member's call, and what it expects to find in them afterwards."""

    def __init__(self, wish: Wish, size: int, rank: int) -> None:
        self.wish, self.size, self.rank = wish, size, rank
        self.expected: list[tuple[np.ndarray, np.ndarray]] = []
        self.options: dict[str, Any] = dict(wish.options)
        if wish.kind in ROOTED:
            self.options["root"] = wish.root
        if wish.kind in ("all_reduce", "reduce", "reduce_scatter"):
            self.options["op"] = wish.op
        self.tensors = getattr(self, "_" + wish.kind)()

    def own(self, count: int) -> np.ndarray:
        return content(self.wish.dtype, count, self.rank)

    def room(self, count: int) -> np.ndarray:
        return np.zeros(count, self.wish.dtype.to_numpy_dtype())

    def tensor(self, array: np.ndarray) -> Any:
        return torch_of(array) if self.wish.torch else array

    def parts(self, whole: np.ndarray, sizes: list[int], expected: np.ndarray | None = None) -> Any:
        """The whole as the wish has it: one tensor, or one of its own for each member."""
        if not self.wish.lists:
            if expected is not None:
                self.expected.append((whole, expected))
            return self.tensor(whole)
        arrays = [part(whole, sizes, rank).copy() for rank in range(len(sizes))]
        if expected is not None:
            self.expected += [(array, part(expected, sizes, rank)) for rank, array in enumerate(arrays)]
        return [self.tensor(array) for array in arrays]

    def check(self) -> None:
        for found, expected in self.expected:
            assert found.tobytes() == expected.tobytes(), (self.wish, self.rank, found[:9], expected[:9])

    def check_reduced(self, lost: int) -> None:
        """Of each element everybody is in it, or everybody but the lost one."""
        found = self.expected[0][0]
        everybody = reduced(self.wish, self.wish.count, range(self.size))
        survivors = reduced(self.wish, self.wish.count, [rank for rank in range(self.size) if rank != lost])
        assert ((found == everybody) | (found == survivors)).all(), (self.wish, found[:9], everybody[:9], survivors[:9])

    def _broadcast(self) -> list[Any]:
        array = self.own(self.wish.count)
        self.expected = [(array, content(self.wish.dtype, self.wish.count, self.wish.root))]
        return [self.tensor(array)]

    def _all_reduce(self) -> list[Any]:
        send, recv = self.own(self.wish.count), self.room(self.wish.count)
        result = reduced(self.wish, self.wish.count, range(self.size))
        self.expected = [(send, result)] if self.wish.in_place else [(send, send.copy()), (recv, result)]
        return [self.tensor(array) for array in (send, recv)[: 2 - self.wish.in_place]]

    def _reduce(self) -> list[Any]:
        send, recv = self.own(self.wish.count), self.room(self.wish.count)
        at_root = self.rank == self.wish.root
        if at_root:
            self.expected = [(send if self.wish.in_place else recv, reduced(self.wish, self.wish.count, range(self.size)))]
        if not (at_root and self.wish.in_place):
            self.expected.append((send, send.copy()))
        return [self.tensor(send)] + ([self.tensor(recv)] if at_root and not self.wish.in_place else [])

    def _all_gather(self) -> list[Any]:
        sizes = self.wish.sizes(self.size)
        expected = np.concatenate([content(self.wish.dtype, count, rank) for rank, count in enumerate(sizes)])
        whole, send = self.room(sum(sizes)), self.own(sizes[self.rank])
        if self.wish.in_place:
            part(whole, sizes, self.rank)[:] = send
            send = part(whole, sizes, self.rank)
        self._counts(sizes)
        return [self.tensor(send), self.parts(whole, sizes, expected)]

    def _reduce_scatter(self) -> list[Any]:
        sizes = self.wish.sizes(self.size)
        recv = self.room(sizes[self.rank])
        begin = sum(sizes[: self.rank])
        own = slice(begin, begin + sizes[self.rank])
        self.expected = [(recv, reduced(self.wish, sum(sizes), range(self.size), own))]
        self._counts(sizes)
        return [self.parts(self.own(sum(sizes)), sizes), self.tensor(recv)]

    def _gather(self) -> list[Any]:
        sizes = self.wish.sizes(self.size)
        self._counts(sizes, always=True)
        send = self.tensor(self.own(sizes[self.rank]))
        if self.rank != self.wish.root:
            return [send]
        expected = np.concatenate([content(self.wish.dtype, count, rank) for rank, count in enumerate(sizes)])
        return [send, self.parts(self.room(sum(sizes)), sizes, expected)]

    def _scatter(self) -> list[Any]:
        sizes = self.wish.sizes(self.size)
        self._counts(sizes, always=True)
        recv = self.room(sizes[self.rank])
        whole = content(self.wish.dtype, sum(sizes), self.wish.root)
        self.expected = [(recv, part(whole, sizes, self.rank))]
        return [self.parts(whole, sizes) if self.rank == self.wish.root else None, self.tensor(recv)]

    def _all_to_all(self) -> list[Any]:
        pairs = self.wish.pairs(self.size)
        given, taken = pairs[self.rank], [row[self.rank] for row in pairs]
        wholes = [content(self.wish.dtype, sum(row), rank) for rank, row in enumerate(pairs)]
        expected = np.concatenate([part(whole, pairs[rank], self.rank) for rank, whole in enumerate(wholes)])
        if self.wish.unequal and not self.wish.lists:
            self.options |= {"send_counts": given, "recv_counts": taken}
        return [self.parts(wholes[self.rank], given), self.parts(self.room(sum(taken)), taken, expected)]

    def _barrier(self) -> list[Any]:
        return []

    def _send(self) -> list[Any]:
        """To the next member, and from the one before."""
        recv = self.room(self.wish.count)
        self.expected = [(recv, content(self.wish.dtype, self.wish.count, (self.rank - 1) % self.size))]
        return [self.tensor(self.own(self.wish.count)), self.tensor(recv)]

    def _counts(self, sizes: list[int], always: bool = False) -> None:
        if self.wish.unequal and (always or not self.wish.lists):
            self.options["counts"] = sizes


def torch_of(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


class Member:
    """What such a process can be asked."""

    def __init__(self, pipe: Connection, address: str) -> None:
        self.comm = Communicator(address)

    def join(self, world: int) -> None:
        self.comm.connect()
        self.let_in(world)

    def let_in(self, world: int) -> None:
        self.comm.wait_for_peers(world, timeout=PATIENCE)
        self.admitted = self.comm.members

    def load_torch(self) -> None:
        """Where it is there: so that no call waits for that."""
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")

    def world_size(self) -> int:
        return len(self.comm.members)

    def make(self, wish: Wish) -> int:
        """Makes it, and checks the result; gives the number of contributors."""
        buffers, end = self._launch(wish)
        contributors: int = end()
        buffers.check()
        return contributors

    def make_all(self, wishes: list[Wish]) -> bool:
        """All in flight at once."""
        launched = [self._launch(dataclasses.replace(wish, launched=True)) for wish in wishes]
        for _, end in launched:
            end()
        for buffers, _ in launched:
            buffers.check()
        return True

    def make_bit_by_bit(self, wish: Wish) -> int:
        """By one call after another, each of which gives up waiting; gives how many did."""
        group = self._group(wish)
        buffers = Buffers(wish, group.size, group.rank)
        gave_up = 0
        while True:
            try:
                getattr(self.comm, wish.kind)(*buffers.tensors, timeout=0.02, **buffers.options)
            except PCCLTimeoutError:
                gave_up += 1
            else:
                buffers.check()
                return gave_up

    def fail(self, wish: Wish) -> tuple[str, str]:
        """Makes it, and gives the class and the text of the error."""
        try:
            self._launch(wish)[1]()
        except (PCCLError, ValueError, AssertionError) as error:
            return type(error).__name__, str(error)
        return "", ""

    def die_in(self, wish: Wish, delay: float) -> None:
        """Launches it, and is gone a moment later."""
        self._launch(dataclasses.replace(wish, launched=True))
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def outlive(self, wish: Wish, lost: int) -> tuple[str, tuple[int, ...]]:
        """Makes it while the member of rank `lost` dies, and checks what it gets; gives the error's class and ranks."""
        buffers, end = self._launch(wish)
        try:
            contributors = end()
        except PeerLostError as error:
            return "PeerLostError", error.ranks
        if wish.kind == "reduce" and buffers.rank == wish.root and contributors < buffers.size:
            buffers.check_reduced(lost)
        else:
            buffers.check()
        return "", ()

    def receive_from_any(self, count: int) -> tuple[int, float]:
        """Gives the sender's rank, and what it sent; or -1 and the number of the lost."""
        array = np.zeros(count, np.float32)
        try:
            return self.comm.recv(array, timeout=PATIENCE), float(array[-1])
        except PeerLostError as error:
            return -1, len(error.ranks)

    def send_value(self, to: int, count: int, value: float) -> int:
        return self.comm.send(np.full(count, value, np.float32), to, timeout=PATIENCE).world_size

    def _group(self, wish: Wish) -> Group:
        if wish.members:  # the same for all, whoever has heard of a loss meanwhile
            return self.comm.group([self.admitted[rank] for rank in wish.members])
        return self.comm.group(self.comm._snapshot)  # likewise, between two calls

    def _launch(self, wish: Wish) -> tuple[Buffers, Callable[[], Any]]:
        group = self._group(wish)
        buffers = Buffers(wish, group.size, group.rank)
        options = buffers.options | ({"group": group} if wish.members else {})
        if wish.kind == "send":
            sent = self.comm.send_async(buffers.tensors[0], (group.rank + 1) % group.size, **options)
            before = (group.rank - 1) % group.size
            if wish.launched:
                received = self.comm.recv_async(buffers.tensors[1], before, **options)
                return buffers, lambda: [received.wait(PATIENCE), sent.wait(PATIENCE)] and 2

            def receive() -> int:
                assert self.comm.recv(buffers.tensors[1], before, timeout=PATIENCE, **options) == before
                sent.wait(PATIENCE)
                return 2

            return buffers, receive
        if wish.launched:
            handle = getattr(self.comm, wish.kind + "_async")(*buffers.tensors, **options)
            return buffers, lambda: handle.wait(PATIENCE).world_size
        method = getattr(self.comm, wish.kind)

        def call() -> int:
            info = method(*buffers.tensors, timeout=PATIENCE, **options)
            contributors: int = info.world_size
            return contributors

        return buffers, call

    def close(self) -> None:
        self.comm.close()


@contextlib.contextmanager
def connected(count: int) -> Iterator[list[Performer]]:
    """A master and this many members."""
    with MasterNode("127.0.0.1:0") as master:
        members = [Performer(Member, number, (f"127.0.0.1:{master.port}",)) for number in range(count)]
        try:
            # one after another, so that ranks are known
            for number, one in enumerate(members):
                for other in members[: number + 1]:
                    other.tell("join" if other is one else "let_in", number + 1)
                for other in members[: number + 1]:
                    other.answer()
            yield members
        finally:
            for one in members:
                one.kill()


def on_all(members: Sequence[Performer], method: str, *arguments: Any) -> list[Any]:
    """Tells all of them the same, and gives what they answer."""
    for one in members:
        one.tell(method, *arguments)
    return [one.answer() for one in members]
