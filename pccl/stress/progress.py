"""Where each process is, in memory that the orchestrator reads without the process's help.

One record per code. A record is written without a lock: a torn read is put right by the next one.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from pccl.stress.content import CODES

CALLS = ("", "connect", "pending", "update", "meet", "reduce", "retry", "resume", "sync", "order", "work", "close")

_RECORD = struct.Struct("=QdII")  # calls made, when the one that runs began (0: none runs), its place in CALLS, step


@dataclass(frozen=True)
class Place:
    """Where a process is."""

    calls: int
    since: float  # seconds of the monotonic clock; 0 between two calls
    call: str
    step: int


class Board:
    """All records, in the memory of the descriptor `fd`, which processes that inherit it share; a new one, unless given."""

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
