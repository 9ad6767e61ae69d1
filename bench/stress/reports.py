"""What a peer's process is told, and what it tells: JSON lines on a socket of its own; and a board that shows where it is.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from stress.content import CODES
from stress.lab import reports
from stress.workload import MIXED


@dataclass(frozen=True, kw_only=True)
class Task(reports.Record):
    """One process's part in the run."""

    serial: int  # of the process, from 0
    slot: int  # the place of a peer, which several processes take one after another
    code: int  # by which its contributions are known
    masters: str  # host:port, or several of them
    seed: int
    elements: int  # the largest op's
    beat: float  # the heartbeat limit in seconds
    backend: str = "pccl"
    workload: str = MIXED
    plant: str = ""  # a deliberate fault, for tests of the harness
    board: int = -1  # the descriptor of the Board


@dataclass(frozen=True)
class Range:
    """Elements of a result that have the same contributors: from where the range before ends."""

    stop: int
    who: int  # the codes in it by its content, a bit each
    peers: list[str] = field(default_factory=list)  # by the library's word; empty: it does not say


@dataclass(frozen=True, kw_only=True)
class OpDone(reports.Record):
    """One reduce that succeeded, as one peer saw it."""

    ranges: list[Range]  # one, if not in retry mode
    world: int  # contributors by the library's word, in retry mode at the end; 0: it does not say, op by op
    check: int  # a checksum of the result
    tries: int  # the failed ones, and the one that succeeded
    size: int  # bytes of the tensor
    at: float  # when it had succeeded

    @property
    def reduced(self) -> int:
        """Bytes of the tensors in it, those of all contributors."""
        begins = [0, *(one.stop for one in self.ranges)]
        parts = sum((one.stop - begin) * one.who.bit_count() for begin, one in zip(begins, self.ranges, strict=False))
        return self.size * parts // begins[-1]

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**given, "ranges": [Range(**one) for one in given["ranges"]]})


@dataclass(frozen=True, kw_only=True)
class Report(reports.Report):
    """What a peer tells."""

    at: float


@dataclass(frozen=True, kw_only=True)
class Accepted(Report):
    """The process is a member of the run."""

    world: int
    seconds: float  # that connecting took
    life: int  # how often it has been accepted before
    uuid: str = ""  # what the library calls this membership
    # where it begins to train: the state of the others after this step
    line: int = -1
    step: int = -1
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Stepped(Report):
    """A step is done. `line` and `step` name it; a new line begins where nobody is left that knew the one before."""

    line: int
    step: int
    work: str  # the kind of the step
    world: int  # after it
    ops: list[OpDone] = field(default_factory=list)
    state: str = ""  # the hash of the shared state after a sync
    received: int = 0  # bytes, by a sync or an outer step
    sent: int = 0  # bytes, by an outer step
    seconds: float = 0.0  # that an outer step took
    lost: int = 0  # losses seen in it
    caught_up: bool = False  # the sync was for newcomers

    def __post_init__(self) -> None:
        told = [op if isinstance(op, OpDone) else OpDone.from_fields(op) for op in self.ops]  # from JSON
        object.__setattr__(self, "ops", told)


@dataclass(frozen=True, kw_only=True)
class Alone(Report):
    """No other member is left; the process waits for newcomers."""

    line: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Expelled(Report):
    """The library says that this process is no longer a member; it comes back as a new one."""

    detail: str


@dataclass(frozen=True, kw_only=True)
class Waiting(Report):
    """The process is in no group and waits for the orchestrator to make one; pccl's peers need none."""


@dataclass(frozen=True, kw_only=True)
class Flaw(Report):
    """The process saw what must not happen."""

    claim: str  # which one it breaks: a key of judge.CLAIMS
    detail: str


@dataclass(frozen=True, kw_only=True)
class Ended(Report):
    """The process has left the run, as it was told to."""

    line: int
    step: int
    state: str  # the hash of its shared state


# ---- where each process is ----


CALLS = ("", "connect", "pending", "update", "meet", "reduce", "retry", "resume", "sync", "order", "work", "close", "outer")

_RECORD = struct.Struct("=QdII")  # calls made, when the one that runs began (0: none runs), its place in CALLS, step


@dataclass(frozen=True)
class Place:
    """Where a process is."""

    calls: int
    since: float  # seconds of the monotonic clock; 0 between two calls
    call: str
    step: int


class Board:
    """Where each process is, in memory that the orchestrator reads without the process's help: a record per code.

    In the memory of the descriptor `fd`, which processes that inherit it share; a new one, unless given. A record is written
    without a lock: a torn read is put right by the next one.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd if fd >= 0 else os.memfd_create("pccl-stress", 0)
        if fd < 0:
            os.ftruncate(self.fd, _RECORD.size * CODES)
        self._memory = mmap.mmap(self.fd, _RECORD.size * CODES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, code: int) -> Place:
        """Where the process with this code is."""
        calls, since, call, step = _RECORD.unpack_from(self._memory, code * _RECORD.size)
        return Place(calls, since, CALLS[call] if call < len(CALLS) else "", step)

    def clear(self, code: int) -> None:
        """Before a process gets the code."""
        _RECORD.pack_into(self._memory, code * _RECORD.size, 0, 0.0, 0, 0)

    def writer(self, code: int) -> Writer:
        """For the process itself."""
        return Writer(self._memory, code)


class Writer:
    """One process's record."""

    def __init__(self, memory: mmap.mmap, code: int) -> None:
        self._memory = memory
        self._at = code * _RECORD.size
        self._calls = 0
        self.step = 0

    @contextmanager
    def during(self, call: str, now: float) -> Iterator[None]:
        """The block is this call."""
        self._calls += 1
        self._write(now, CALLS.index(call))
        try:
            yield
        finally:
            self._calls += 1
            self._write(0.0, 0)

    def _write(self, since: float, call: int) -> None:
        _RECORD.pack_into(self._memory, self._at, self._calls, since, call, self.step)
