"""Collectives over groups of members, before they are launched (`Call`) and in flight (`CollectiveOp`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from pccl._core.calls import INVALID_USAGE, SUCCESS, TIMED_OUT, UNBOUNDED, ClosedError, Deadline
from pccl._core.enums import DataType, DeviceType, ReduceOp
from pccl._core.errors import PeerLostError, error_for
from pccl._core.groups import Group, members_of, name_lost
from pccl._core.library import _C, _ffi
from pccl._core.results import CollectiveInfo
from pccl._core.tensors import InputDigest, RoomPool, overlap, storages_of
from pccl._exports import publish
from pccl._ops.operations import OpTicket
from pccl._ops.parts import Buffer

_COLLECTIVE = _ffi.typeof("pcclCollective_t *")
_COUNTS = _ffi.typeof("size_t[]")
_VOID = _ffi.typeof("void *")
_SIZE = _ffi.sizeof("pcclCollective_t")
_TAGGED, _NUMBERED, _NUMBERED_OF_ALL = range(3)


class Collective(Enum):
    """What a collective does (`pcclCollectiveKind_t`)."""

    ALL_REDUCE = _C.pcclCollectiveAllReduce
    BROADCAST = _C.pcclCollectiveBroadcast
    REDUCE = _C.pcclCollectiveReduce
    ALL_GATHER = _C.pcclCollectiveAllGather
    REDUCE_SCATTER = _C.pcclCollectiveReduceScatter
    GATHER = _C.pcclCollectiveGather
    SCATTER = _C.pcclCollectiveScatter
    ALL_TO_ALL = _C.pcclCollectiveAllToAll
    ALL_TO_ALL_V = _C.pcclCollectiveAllToAllV
    BARRIER = _C.pcclCollectiveBarrier
    SEND = _C.pcclCollectiveSend


_TEXTS = {kind: kind.name.lower().replace("_", "-") for kind in Collective}


class CollectiveOp(OpTicket):
    """A collective in flight. What it was given as `keep` is held until it has ended."""

    __slots__ = ("_call", "_handle", "_members", "_pool")

    def __init__(
        self,
        comm: Any,
        kind: Collective,
        group: Group,
        tag: int,
        *,
        send: int = 0,
        recv: int = 0,
        dtype: DataType = DataType.UINT8,
        count: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        survivors: bool = False,
        stream: int = 0,
        background: bool = False,
        keep: object = None,
        call: Call | None = None,
    ) -> None:
        """The arguments are those of `Communicator.launch`. `call` is what it is made of, if that is to have its result."""
        sends, receives = (_ffi.NULL if some is None else _ffi.new(_COUNTS, some) for some in (send_counts, recv_counts))
        c_send, c_recv, c_stream = _ffi.cast(_VOID, send), _ffi.cast(_VOID, recv), _ffi.cast(_VOID, stream)
        first = _SIZE, kind._value_, dtype._value_, op._value_, root, group._pointer, tag
        everyone = call is not None and survivors and call.of_everyone
        rest = c_send, c_recv, count, sends, receives, survivors, c_stream, background, everyone
        what = _ffi.new(_COLLECTIVE, (*first, *rest))
        kept = call, keep, storages_of(keep), sends, receives, group
        sequence = _TAGGED if call is None else call.sequence()
        arguments = what, comm._pointer, sequence
        super().__init__(_TEXTS[kind], "pccl_begin_collective", *arguments, elastic=survivors, live=comm._live_ops, keep=kept)
        self._handle = comm._handle
        self._pool = comm._pool
        self._call = call
        self._members = group.members
        if kind is Collective.SEND and call is not None and call.loads is None:
            self.name = "recv"  # C has one op for both ends

    @property
    def begun(self) -> bool:
        return bool(self.c.kind)

    def launch(self) -> None:
        """Begins it, unless it was begun; the errors of a launch."""
        if not self._claim.run(self._launch, UNBOUNDED):
            raise error_for(INVALID_USAGE, self.name, "this thread makes the same call, below a signal handler")

    def _launch(self) -> None:
        if self.begun:
            return
        if self._call is not None and self._call.loads is not None:
            self._call.loads.load()
        self._live.add(self)
        result = self.begin(self._handle)
        if result != SUCCESS:
            self._live.discard(self)
            raise error_for(result, self.name, self.detail)

    def wait(self, timeout: float | None = None) -> CollectiveInfo:  # type: ignore[override]
        """Waits for its end; on success its result is in place, and the same on all members that have it.

        PeerLostError: a member was lost, `ranks` tells who is not there any more. UsageError: the members' arguments differ.
        PCCLTimeoutError: `timeout` seconds have passed, the op goes on, and is to be waited for again.
        """
        result = super().wait(self._handle, UNBOUNDED if timeout is None else Deadline(timeout))
        if result != SUCCESS:
            raise self._error(result)
        info = self.c.info
        return CollectiveInfo(info.local_world_size, info.tx_bytes, info.rx_bytes, self._contributors)

    def done(self) -> bool:
        """Whether it has ended, well or badly: then `wait` returns at once."""
        if self.c.result == TIMED_OUT:
            with contextlib.suppress(ClosedError), self._handle:
                _C.pccl_ticket_wait(self.c, 0)
        return bool(self.c.result != TIMED_OUT) or self._handle.closed

    @property
    def _asks_who(self) -> bool:
        return self._elastic and self.c.result == SUCCESS and self.c.info.local_world_size < len(self._members)

    def _store(self, *, success: bool) -> None:
        if success and self._call is not None and self._call.stores is not None:
            self._call.stores.store(self._call.kind.name.lower())

    def _let_go(self, *, success: bool) -> None:
        super()._let_go(success=success)
        if self._call is not None:
            self._call.end(self._pool)

    def _error(self, result: int) -> Exception:
        error = error_for(result, self.name, self.detail)
        if isinstance(error, PeerLostError):
            living = members_of(self._handle)
            name_lost(error, self._handle, self._members, living)  # as C has named them; then as the caller does
            if self._call is not None and self._call.caller_group is not None:
                name_lost(error, self._handle, self._call.caller_group.members, living)
        return error


COUNTED_TAGS = 1024
"""Messages are counted for tags below this. A larger tag is that of one message of a pair at a time, so that no table grows."""


class Everyone(Group):
    """All members of the peer group, in the snapshot that this program has adopted."""


@dataclass
class Call:
    """A collective that is not launched yet."""

    kind: Collective
    group: Group
    arguments: dict[str, Any]
    loads: Buffer | None
    stores: Buffer | None
    tag: int | None = None
    numbered: str = "group"  # what calls are numbered as, among the same members
    survivors: bool = False  # goes on without members that are lost
    caller_group: Group | None = None  # that errors tell ranks of, if it is not `group`

    @property
    def of_everyone(self) -> bool:
        return isinstance(self.group, Everyone)

    def make_private(self, pool: RoomPool) -> None:
        """Moves the collective to private memory: the program may get its tensors back before the collective has ended."""
        if self._is_refused():
            return
        for name, buffer in (("send", self.loads), ("recv", self.stores)):
            if buffer is not None:
                buffer.make_private(pool)
                self.arguments[name] = buffer.pointer

    def end(self, pool: RoomPool) -> None:
        for buffer in (self.loads, self.stores):
            if buffer is not None:
                buffer.end(pool)

    def _is_refused(self) -> bool:
        """Whether the tensors overlap as the library does not allow it. It would see nothing of that in private memory."""
        send, recv = self.loads, self.stores
        if send is None or recv is None or send is recv or send.is_private or recv.is_private:
            return False
        if self.kind in (Collective.REDUCE, Collective.ALL_REDUCE) and send.range == recv.range:
            return False
        if self.kind is Collective.ALL_GATHER:
            rank, counts = self.group.rank, self.arguments.get("recv_counts")
            before = sum(counts[:rank]) if counts else self.arguments["count"] * rank
            if send.pointer == recv.pointer + before * recv.dtype.itemsize:
                return False
        return overlap(send.range, recv.range)

    def input_digest(self) -> InputDigest | None:
        """Digest of the input; None: there is none, or the collective may write to it."""
        loads, stores = self.loads, self.stores
        if loads is None or loads.device is not DeviceType.CPU or (loads is stores and not loads.is_private):
            return None
        return InputDigest(loads.ranges)

    @property
    def name(self) -> int:
        """Its tag for the library, but for its number, if it has one: what all members make of the same call."""
        return tag_of(self.numbered, () if self.survivors and self.of_everyone else self.group.members, self.tag)

    def sequence(self) -> int:
        """How it is numbered (`pccl_begin_collective`); not if its tag is that of no other call."""
        if self.tag is not None and (self.numbered == "group" or not 0 <= self.tag < COUNTED_TAGS):
            return _TAGGED
        return _NUMBERED_OF_ALL if self.of_everyone else _NUMBERED

    def key(self) -> tuple[Any, ...]:
        """What names a call that was cut short and is made again."""
        buffers = [tuple(b.ranges) for b in (self.loads, self.stores) if b is not None]
        rest = sorted((name, str(value)) for name, value in self.arguments.items() if name not in ("send", "recv", "stream"))
        members = () if self.of_everyone else self.group.members  # which may have changed since
        return self.kind, members, self.tag, self.survivors, tuple(buffers), tuple(rest)


NUMBER_BITS = 16
"""Of a tag, for the number of the call."""


def tag_of(numbered: str, members: Sequence[UUID], tag: int | None = None) -> int:
    """The tag of calls in the library, made of the members and of the tag that the caller gave, so that groups do not meet.

    Calls that are given no tag are numbered in C, in the lower bits: members make the same calls in the same order.
    """
    from hashlib import blake2b

    text = f"{numbered} {tag}".encode() + b"".join(member.bytes for member in members)
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "little") << NUMBER_BITS


publish(globals())
