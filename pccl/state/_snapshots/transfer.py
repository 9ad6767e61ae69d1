"""Sends the redundancy of a snapshot: each member's changes to the keepers of its parity."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from pccl._core.errors import PCCLTimeoutError, PeerLostError
from pccl.state._snapshots.boxes import ALIGN
from pccl.state._snapshots.code import add, factors
from pccl.state._snapshots.images import BLOCK_BYTES, Memory, Sum, changed_blocks
from pccl.state._snapshots.snapshot import SHARED_FAILURES, Job, PieceName, Snapshot, SpoiledError
from pccl.state._snapshots.talk import CHUNK_BYTES, IN_FLIGHT, GarbledError, Window


class _Message(NamedTuple):
    stripe: int
    column: int
    row: int
    sender: int
    receiver: int

    @property
    def name(self) -> str:
        return f"{self.stripe}.{self.column}.{self.row}"


_STATUS, _BLOCKS, _LOW, _HIGH, _NUMBERS = range(5)


class Transfer:
    """Sends the own units to those who keep their parity, and keeps that of others.

    A message tells which blocks of a unit have changed since the base, and their XOR with it (without a base: with zeros). The
    receiver adds them, times the factor of the code, to a copy of the parity of the base. All messages have one order, in which
    each member sends and receives; the first that is not through has its sender and its receiver at it, so nothing waits in a
    circle. A member that has failed before goes on with empty messages, so nobody waits for it; one that fails in the middle of a
    message leaves the run.
    """

    def __init__(
        self,
        job: Job,
        snapshot: Snapshot,
        base: Snapshot | None,
        memory: Callable[[int], Memory],
        failure: BaseException | None,
    ) -> None:
        self._job = job
        self._talk = job.talk
        self._snapshot = snapshot
        self._layout = layout = snapshot.layout
        self._base = base
        self._new_memory = memory
        stripes = layout.placement.stripes
        self._messages = [
            _Message(number, column, row, member, keeper)
            for number, stripe in enumerate(stripes)
            for column, (member, _) in enumerate(stripe.data)
            for row, keeper in enumerate(stripe.parity)
        ]
        self._failure = failure
        self._lock = threading.Lock()

    def run(self) -> None:
        """Returns when all that concerns this member is through, and its parity is in the snapshot. Raises what failed."""
        receiver = threading.Thread(target=self._guarded, args=(self._receive_all,), name="pccl snapshot receiver", daemon=True)
        self._guarded(receiver.start)
        self._guarded(self._send_all)
        if receiver.ident is not None:
            receiver.join()
        if self._failure is not None:
            raise self._failure

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, SHARED_FAILURES):
                self._talk.abandon()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._failure is None or isinstance(self._failure, PeerLostError):
                self._failure = error

    # ---- sending ----

    def _send_all(self) -> None:
        lost: set[int] = set()
        window = Window(self._talk)
        for message in self._messages:
            if message.sender != self._job.own or message.receiver in lost:
                continue
            try:
                self._send(message, window)
                window.drain()
            except (PeerLostError, GarbledError) as error:
                window.forget()
                lost.add(message.receiver)
                self._fail(error)
            except PCCLTimeoutError:
                window.forget(gives_up=True)
                raise

    def _send(self, message: _Message, window: Window) -> None:
        new, old = self._unit(self._snapshot, message), self._unit(self._base, message)
        failed = self._failure is not None and not isinstance(self._failure, PeerLostError)
        blocks = torch.ones(_blocks(new.numel()), dtype=torch.bool, device="cpu") if old is None else changed_blocks(new, old)
        if failed:
            blocks = torch.zeros_like(blocks)
        low, high = self._snapshot.sums.get(self._job.own, Sum(0, 0)).signed()
        head = torch.tensor([int(failed), int(blocks.sum()), low, high], dtype=torch.int64, device="cpu")
        packed = torch.cat([head.view(torch.uint8), blocks.view(torch.uint8)])
        window.add(self._talk.send(message.receiver, message.name, packed))
        for number, runs in enumerate(_chunks(blocks, new.numel())):
            total = sum(end - begin for begin, end in runs)
            content = torch.empty(total, dtype=torch.uint8, device="cpu")
            at = 0
            for begin, end in runs:
                part = content[at : at + end - begin]
                if old is None:
                    part.copy_(new[begin:end])
                else:
                    torch.bitwise_xor(new[begin:end], old[begin:end], out=part)
                at += end - begin
            window.add(self._talk.send(message.receiver, f"{message.name}.{number}", content))
            self._job.report.sent_bytes += total
        self._job.report.sent_bytes += packed.numel()

    def _unit(self, snapshot: Snapshot | None, message: _Message) -> Any:
        if snapshot is None:
            return None
        begin, end = self._layout.range_of(message.stripe, message.column)
        return snapshot.pieces[PieceName("image", self._job.own)].bytes[begin:end]

    # ---- receiving ----

    def _receive_all(self) -> None:
        lost: set[int] = set()
        spoiled: set[tuple[int, int]] = set()
        memories: dict[tuple[int, int], Memory] = {}
        window = Window(self._talk)
        scratch = torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cpu")
        for message in self._messages:
            if message.receiver != self._job.own:
                continue
            key = message.stripe, message.row
            if message.sender in lost:
                spoiled.add(key)
                continue
            try:
                target = self._parity(key, memories, spoiled)
                if not self._receive(message, target if key not in spoiled else None, window, scratch):
                    spoiled.add(key)
            except (PeerLostError, GarbledError) as error:
                window.forget()
                lost.add(message.sender)
                spoiled.add(key)
                self._fail(error)
            except PCCLTimeoutError:
                window.forget(gives_up=True)
                raise
        for (stripe, row), memory in memories.items():
            if (stripe, row) not in spoiled:
                self._snapshot.pieces[PieceName("parity", stripe, row)] = memory
        if spoiled and self._failure is None:
            self._fail(SpoiledError("another member could not send its part: see its log"))

    def _parity(
        self, key: tuple[int, int], memories: dict[tuple[int, int], Memory], spoiled: set[tuple[int, int]]
    ) -> torch.Tensor | None:
        """The parity of a row; at first as in the base, or zeros. None: there is no memory for it."""
        if key not in memories and key not in spoiled:
            try:
                memories[key] = memory = self._new_memory(self._layout.unit(key[0]))
            except MemoryError as error:
                spoiled.add(key)
                self._fail(error)
                return None
            if self._base is None:
                memory.bytes.zero_()
            else:
                memory.bytes.copy_(self._base.pieces[PieceName("parity", *key)].bytes)
        return memories[key].bytes if key in memories else None

    def _receive(self, message: _Message, target: torch.Tensor | None, window: Window, scratch: torch.Tensor) -> bool:
        """Whether the unit came whole."""
        begin, end = self._layout.range_of(message.stripe, message.column)
        size = end - begin
        numbers = _NUMBERS * 8
        packed = torch.zeros(numbers + _blocks(size), dtype=torch.uint8, device="cpu")
        window.add(self._talk.recv(message.sender, message.name, packed))
        window.drain()
        head = packed[:numbers].view(torch.int64).tolist()
        blocks = packed[numbers:].bool()
        if head[_STATUS] == 0:  # else it has no sum, and sends zeros
            self._snapshot.sums[message.sender] = Sum.of_signed(head[_LOW], head[_HIGH])
        rows = len(self._layout.placement.stripes[message.stripe].parity)
        columns = len(self._layout.placement.stripes[message.stripe].data)
        factor = factors(rows, columns)[message.row][message.column]
        chunks = list(_chunks(blocks, size))
        buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cpu") for _ in chunks[: IN_FLIGHT + 1]]
        for number, runs in enumerate(chunks):
            total = sum(stop - start for start, stop in runs)
            content = buffers[number % len(buffers)][:total]
            op = self._talk.recv(message.sender, f"{message.name}.{number}", content)
            window.add(op, functools.partial(self._add, content, runs, target, factor, scratch))
            self._job.report.received_bytes += total
        window.drain()
        return bool(head[_STATUS] == 0)

    def _add(
        self,
        content: torch.Tensor,
        runs: list[tuple[int, int]],
        target: torch.Tensor | None,
        factor: int,
        scratch: torch.Tensor,
    ) -> None:
        """Adds what has come to the parity, if there is memory for that."""
        if target is None:
            return
        at = 0
        for begin, end in runs:
            padded = -(-(end - begin) // ALIGN) * ALIGN
            part = content[at : at + end - begin]
            if padded != end - begin:
                scratch[end - begin : padded].zero_()
                scratch[: end - begin].copy_(part)
                part = scratch[:padded]
            add(target[begin : begin + padded], part, factor)
            at += end - begin


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _chunks(blocks: torch.Tensor, size: int) -> Iterator[list[tuple[int, int]]]:
    """The changed blocks in messages of at most CHUNK_BYTES: each a list of ranges of the unit's bytes."""
    runs: list[tuple[int, int]] = []
    total = 0
    for number in torch.nonzero(blocks).flatten().tolist():
        begin, end = number * BLOCK_BYTES, min(size, (number + 1) * BLOCK_BYTES)
        if total + end - begin > CHUNK_BYTES:
            yield runs
            runs, total = [], 0
        if runs and runs[-1][1] == begin:
            runs[-1] = runs[-1][0], end
        else:
            runs.append((begin, end))
        total += end - begin
    if runs:
        yield runs
