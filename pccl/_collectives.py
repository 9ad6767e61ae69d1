"""Collectives over groups of members: the part under the named methods of `Communicator`, and under `pccl.distributed`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pccl._calls import SUCCESS, TIMED_OUT, UNBOUNDED, ClosedError, Deadline, NativeHandle, OpTicket, call
from pccl._enums import DataType, ReduceOp
from pccl._errors import PeerLostError, TooFewPeersError, error_for
from pccl._exports import publish
from pccl._loader import load_native_module
from pccl._names import name_of, rank_label, with_names
from pccl._ops import contributors, told
from pccl._tensors import storages_of
from pccl._types import Contributors

if TYPE_CHECKING:
    from pccl._communicator import Communicator

_ffi, _C = load_native_module()

_COLLECTIVE = _ffi.typeof("pcclCollective_t *")
_COUNTS = _ffi.typeof("size_t[]")
_UUIDS = _ffi.typeof("pcclRankUuid_t[]")
_VOID = _ffi.typeof("void *")
_SIZE = _ffi.sizeof("pcclCollective_t")


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


class CollectiveInfo(NamedTuple):
    """What a collective did.

    `world_size` is how many members took part, as in `ReduceInfo`. `ranges` tells who is in which elements of a result, where
    members were lost on the way of a collective that goes on without them, and is empty otherwise.
    """

    world_size: int
    tx_bytes: int
    rx_bytes: int
    ranges: tuple[Contributors, ...] = ()

    @property
    def contributors(self) -> int:
        """The former name of `world_size`. Elsewhere `contributors` are the members in each range of a result."""
        warnings.warn("CollectiveInfo.contributors is now called world_size", DeprecationWarning, stacklevel=2)
        return self.world_size


def roll(comm: Communicator, value: Any, tag: int, timeout: float | None = None) -> frozenset[UUID]:
    """The members of the peer group who live, the same on all of them: those that one reduce has among its contributors.

    What a peer has heard of epochs may differ from that where members were lost together with a master. The reduce adopts the
    losses. `value` is a tensor of one element, which it overwrites. PCCLTimeoutError: call again with the same arguments.
    """
    try:
        found = comm.all_reduce(value, op=ReduceOp.SUM, tag=tag, retry=True, timeout=timeout).contributors
    except TooFewPeersError:
        found = ()
    return found[0].peers if found else frozenset([comm.uuid])


class Group:
    """Some members of the run's peer group, this one among them; ranks are places in `members`.

    Made without communication. All members make theirs with the same list. A member that is lost stays in it.
    """

    __slots__ = ("_pointer", "members", "rank")

    def __init__(self, comm: Communicator, members: Sequence[UUID]) -> None:
        self.members = tuple(members)
        uuids = _ffi.new(_UUIDS, [(list(member.bytes),) for member in self.members])
        out = _ffi.new("pcclGroup_t **")
        call(comm._handle, "pcclCreateGroup", uuids, len(self.members), out)
        self._pointer = _ffi.gc(out[0], _C.pcclDestroyGroup)
        self.rank = self.members.index(comm.uuid)

    @property
    def size(self) -> int:
        """How many members it has, the lost ones too."""
        return len(self.members)

    def __repr__(self) -> str:
        return f"<pccl.Group of {self.size}, rank {self.rank}>"


class CollectiveOp(OpTicket):
    """A collective in flight. What it was given as `keep` is held until it has ended."""

    __slots__ = ("_comm", "_handle", "_live", "_members", "_ranges", "_survivors", "dropped", "tag")

    def __init__(
        self,
        comm: Communicator,
        handle: NativeHandle,
        live: set[Any],
        pointer: Any,
        kind: Collective,
        *,
        group: Group,
        tag: int,
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
        keep: object = None,
    ) -> None:
        sends = _ffi.NULL if send_counts is None else _ffi.new(_COUNTS, send_counts)
        receives = _ffi.NULL if recv_counts is None else _ffi.new(_COUNTS, recv_counts)
        what = _ffi.new(
            _COLLECTIVE,
            (
                _SIZE,
                kind._value_,
                dtype._value_,
                op._value_,
                root,
                group._pointer,
                tag,
                _ffi.cast(_VOID, send),
                _ffi.cast(_VOID, recv),
                count,
                sends,
                receives,
                survivors,
                _ffi.cast(_VOID, stream),
            ),
        )
        super().__init__(
            _TEXTS[kind],
            "pccl_begin_collective",
            what,
            pointer,
            keep=(keep, storages_of(keep), sends, receives, group),
        )
        self.tag = tag
        self._comm = comm
        self._handle = handle
        self._live = live  # of the communicator: keeps it, and thus the tensors, as long as C may touch them
        self._members = group.members
        self._survivors = survivors
        self._ranges: tuple[Contributors, ...] = ()
        self.dropped = None  # no handle of its own that could be

    @property
    def begun(self) -> bool:
        """Whether it was launched."""
        return bool(self.c.kind)

    @property
    def ended(self) -> bool:
        """Whether its end is known here."""
        return bool(self.c.result != TIMED_OUT)

    def launch(self) -> None:
        """Begins it; the errors of a launch."""
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
        if result != TIMED_OUT and not self.in_flight:
            self._live.discard(self)
            self.keep = None
        if result != SUCCESS:
            raise self._error(result)
        info = self.c.info
        lost = self._survivors and info.local_world_size < len(self._members)
        ranges = self._ranges or contributors(self._handle, self.tag) if lost else ()
        return CollectiveInfo(info.local_world_size, info.tx_bytes, info.rx_bytes, ranges)

    def _poll(self, milliseconds: int) -> None:
        with self.one_caller:  # several threads may wait, and ask `done`
            _C.pccl_ticket_wait(self.c, milliseconds)  # which gives a result again that it has given

    def settle(self) -> None:
        """As that of every op; one with `survivors` tells its contributors."""
        super().settle()
        if self._survivors and self._last is not None and self._last.result == SUCCESS:
            self._ranges = told(self._arguments[1], self.tag)

    def done(self) -> bool:
        """Whether it has ended, well or badly: then `wait` returns at once."""
        if self.c.result == TIMED_OUT and self.one_caller.acquire(blocking=False):  # else another thread waits, and sees the end
            try:
                with contextlib.suppress(ClosedError), self._handle:
                    super()._poll(0)
            finally:
                self.one_caller.release()
        return bool(self.c.result != TIMED_OUT) or self._handle.closed

    def _error(self, result: int) -> Exception:
        error = error_for(result, self.name, self.detail)
        if isinstance(error, PeerLostError):
            living = set(self._comm.members)
            name_lost(error, self._handle, self._members, living)
        return error


def name_lost(error: PeerLostError, handle: NativeHandle, members: Sequence[UUID], living: Collection[UUID]) -> None:
    """Tells an error which of the members of its call are lost."""
    lost = [(rank, member) for rank, member in enumerate(members) if member not in living]
    error.ranks = tuple(rank for rank, _ in lost)
    error.names = tuple(name_of(handle, member) for _, member in lost)
    labels = {rank: rank_label(rank, name, member) for (rank, member), name in zip(lost, error.names, strict=True)}
    error.detail = with_names(error.detail, labels)


def members_of(handle: NativeHandle, *, snapshot: bool = False) -> tuple[UUID, ...]:
    """Who is in the peer group, by joining: now, or in the snapshot that this program has adopted."""
    function = "pccl_ext_snapshot_members" if snapshot else "pcclGetMembers"
    count = _ffi.new("size_t *", 64)
    while True:
        room = count[0]
        uuids = _ffi.new(_UUIDS, room)
        call(handle, function, uuids, room, count)
        if count[0] <= room:
            return tuple(UUID(bytes=bytes(uuids[i].data)) for i in range(count[0]))


def has_posted(handle: NativeHandle, tag: int, member: UUID) -> bool:
    """Whether this member has launched an op of this tag that was not launched here."""
    uuid = _ffi.new("pcclRankUuid_t *", (list(member.bytes),))
    out = _ffi.new("bool *")
    call(handle, "pccl_ext_posted", tag, uuid, out)
    return bool(out[0])


publish(globals())
