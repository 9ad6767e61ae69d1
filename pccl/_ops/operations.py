"""Operations in flight: how they end, and who took part in them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pccl._core.calls import (
    INVALID_USAGE,
    SUCCESS,
    TIMED_OUT,
    UNBOUNDED,
    Claim,
    ClosedError,
    Deadline,
    NativeHandle,
    Ticket,
    call,
)
from pccl._core.errors import UsageError
from pccl._core.library import _C, _ffi
from pccl._core.results import Contributors

_TICKET = _ffi.typeof("struct pccl_ticket *")
_RANGE = _ffi.typeof("pcclReduceRange_t *")
_UUIDS = _ffi.typeof("pcclRankUuid_t[]")

UUID_BYTES = 16

_CANCELLED = frozenset((TIMED_OUT, _C.pcclRankConnectionLost, _C.pcclMasterConnectionFailed, _C.pcclInvalidUsage))
"""Results of an operation that had not ended when its communicator was closed."""


class OpTicket(Ticket):
    """An operation: how it has ended is known after its communicator was closed, too.

    `live` is that of the communicator, and has what C may touch: it keeps the operation and thus its tensors. With `elastic` the
    operation goes on without members that are lost, and tells who took part.
    """

    __slots__ = ("_claim", "_contributors", "_elastic", "_last", "_live", "dropped", "left_alone", "lost")

    def __init__(self, name: str, begin: str, *arguments: Any, elastic: bool, live: set[Any], keep: object = None) -> None:
        super().__init__(name, begin, *arguments, keep=keep)
        self.lost = ""  # why the result is not in the program's tensor
        self.dropped: Any = None  # of a handle that may be dropped, see Reaper
        self.left_alone = False  # by the reaper, while another thread waits
        self._elastic = elastic
        self._live = live
        self._claim = Claim()  # to launch it, and to give the program its tensors back
        self._last: Any = None
        self._contributors: tuple[Contributors, ...] = ()

    @property
    def tag(self) -> int:
        """Its tag in C, of one that was begun."""
        return int(self.c.number)

    @property
    def ended(self) -> bool:
        return bool(self.c.result != TIMED_OUT)

    @property
    def is_live(self) -> bool:
        """Whether C may touch its tensors."""
        return self in self._live and self.in_flight

    def settle(self, comm: Any) -> None:
        """By `close`, between `pccl_ext_comm_stop` and the end: asks how it has ended, beside a waiter that has yet to tell."""
        if self.in_flight:
            if self._last is None:
                self._last = _ffi.new(_TICKET, self.c[0])
                self._last.inside = False
            _C.pccl_ticket_wait(self._last, 0)
        if self._elastic and self._last is not None:
            self._contributors = told(comm, self.tag)

    def wait(self, handle: NativeHandle, deadline: Deadline = UNBOUNDED, watch: Callable[[], None] | None = None) -> int:
        """As that of every ticket; at its end the tensors are released.

        While the communicator is being closed, it waits for that: then C touches nothing any more. `close` releases the tensors
        of an operation that was cancelled with its communicator.
        """
        handle = self._home or handle
        result = super().wait(handle, deadline, watch)
        if result == TIMED_OUT:
            return result
        if self.in_flight and handle.closed and not handle.inherited:
            if not handle.await_closed(deadline):
                return self._timed_out(handle)
            if self._last is not None and self._last.result not in _CANCELLED:
                self.c = self._last
                result = super().wait(handle)
        if not self.in_flight and not handle.inherited and not self._claim.run(functools.partial(self._finish, handle), deadline):
            return self._timed_out(handle)
        return self._ended(INVALID_USAGE, self.lost) if self.lost else result

    def fail(self, result: int) -> None:
        """Raises the error for the result that a wait has given, whatever another thread that waits is told meanwhile."""
        self._ended(result, self.lost or self._text())
        self.check()

    def _finish(self, handle: NativeHandle) -> None:
        if self.keep is None:  # it has been; a repeated call has put it there again
            self._live.discard(self)
            return
        success = self.c.result == SUCCESS
        if self._asks_who and not self._contributors and not handle.closed:  # else they are known
            self._contributors = contributors(handle, self.tag)
        try:
            self._store(success=success)
        except UsageError as error:
            self.lost = error.detail
        self._let_go(success=success)
        self.keep = self.dropped = None  # last: a signal before it has all of it done again

    @property
    def _asks_who(self) -> bool:
        """Whether it is asked at its end who took part in it."""
        return self._elastic

    def _store(self, *, success: bool) -> None:
        """Copies the result from memory of the operation's own to the program's tensor. UsageError: that has lost its memory."""

    def _let_go(self, *, success: bool) -> None:
        self._live.discard(self)


def contributors(handle: NativeHandle, tag: int) -> tuple[Contributors, ...]:
    """Who is in the op of this tag that has ended last; empty when nothing is known of it."""
    with contextlib.suppress(ClosedError), handle as comm:
        return told(comm, tag)
    return ()


def told(comm: Any, tag: int) -> tuple[Contributors, ...]:
    """As `contributors`, of a communicator that the caller keeps."""
    found: list[Contributors] = []
    c_range = _ffi.new(_RANGE)
    while _C.pcclGetReduceContributors(comm, tag, len(found), c_range, _ffi.NULL, 0) == SUCCESS:
        uuids = _ffi.new(_UUIDS, c_range.contributors)
        _C.pcclGetReduceContributors(comm, tag, len(found), c_range, uuids, len(uuids))
        peers = _peers(bytes(_ffi.buffer(uuids)))
        found.append(Contributors(c_range.begin, c_range.end, peers))
        if len(found) == c_range.ranges:
            break
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _peers(uuids: bytes) -> frozenset[UUID]:
    return frozenset(UUID(bytes=uuids[start : start + UUID_BYTES]) for start in range(0, len(uuids), UUID_BYTES))


def request_cancel(handle: NativeHandle, op: OpTicket) -> None:
    """Asks to cancel an operation on all members. Its wait tells how it ended. Nothing happens to one that has ended."""
    if op.in_flight:
        with contextlib.suppress(UsageError):  # it ended meanwhile
            call(handle, "pcclCancel", op.tag)


def stop(live: set[Any], comm: Any) -> None:
    """Before a communicator is destroyed: ends its ops, and finds out how these have ended."""
    _C.pccl_ext_comm_stop(comm)
    for op in list(live):
        op.settle(comm)
