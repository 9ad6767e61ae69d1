"""Members of a run, and groups of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from uuid import UUID

from pccl._core.calls import NativeHandle, call
from pccl._core.errors import LossReason, PCCLError, PeerLostError
from pccl._core.library import _C, _ffi
from pccl._core.names import name_of, rank_label, short, text_of, uuid_in, with_names
from pccl._exports import publish

_UUIDS = _ffi.typeof("pcclRankUuid_t[]")
_LOST_MOST = 64
"""Of members that are gone, as many as C keeps."""


class Group:
    """Some members of the run's peer group, this one among them; ranks are places in `members`.

    `Communicator.group` makes one, without communication. All members make theirs with the same list. A member that is lost
    stays in it.
    """

    __slots__ = ("_pointer", "members", "rank")

    def __init__(self, handle: NativeHandle, members: Sequence[UUID]) -> None:
        self.members = tuple(members)
        for member in self.members:
            if not isinstance(member, UUID):
                raise TypeError(f"members must be UUIDs, such as those of Communicator.members, not {member!r}")
        uuids = _ffi.new(_UUIDS, [(list(member.bytes),) for member in self.members])
        out = _ffi.new("pcclGroup_t **")
        call(handle, "pcclCreateGroup", uuids, len(self.members), out)
        self._pointer = _ffi.gc(out[0], _C.pcclDestroyGroup)
        self.rank = self.members.index(uuid_of(handle))

    @property
    def size(self) -> int:
        """How many members it has, the lost ones too."""
        return len(self.members)

    def __repr__(self) -> str:
        return f"<pccl.Group of {self.size}, rank {self.rank}>"


def uuid_of(handle: NativeHandle) -> UUID:
    """Returns the uuid of a communicator; all 0 before it is connected for the first time."""
    out = _ffi.new("pcclRankUuid_t *")
    call(handle, "pccl_ext_comm_uuid", out)
    return UUID(bytes=bytes(out.data))


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


def _recently_lost(handle: NativeHandle) -> dict[UUID, tuple[LossReason, str]]:
    """Returns who was lost not long ago and why, oldest first; nobody after `close`."""
    lost, count = _ffi.new("struct pccl_ext_lost[]", _LOST_MOST), _ffi.new("size_t *")
    with contextlib.suppress(PCCLError):
        call(handle, "pccl_ext_comm_lost", lost, _LOST_MOST, count)
    return {uuid_in(lost[i].uuid): (LossReason(lost[i].reason), text_of(lost[i].why)) for i in range(count[0])}


def reason_lost(handle: NativeHandle, uuid: UUID) -> tuple[LossReason, str]:
    """Returns why a member is gone, and what the master says. UNKNOWN and "" if it was lost long ago, and after `close`."""
    return _recently_lost(handle).get(uuid, (LossReason.UNKNOWN, ""))


def why_gone(reason: LossReason, why: str) -> str:
    """Returns the reason for texts; of a decision with whose it was."""
    decided = why and reason in (LossReason.EXPELLED, LossReason.DRAINED)
    return f"{reason.name.lower()}: {why}" if decided else reason.name.lower()


def name_lost(error: PeerLostError, handle: NativeHandle, members: Sequence[UUID], living: Collection[UUID]) -> None:
    """Tells an error which of the members of its call are lost."""
    lost = [(rank, member) for rank, member in enumerate(members) if member not in living]
    error.ranks = tuple(rank for rank, _ in lost)
    _tell(error, handle, [member for _, member in lost])
    whys = map(why_gone, error.reasons, error.causes)
    labels = {
        rank: f"{rank_label(rank, name, member)}, {why}"
        for (rank, member), name, why in zip(lost, error.names, whys, strict=True)
    }
    for rank, member in lost:  # an op of two members has named them by their places in it
        error.detail = re.sub(rf"\brank \d+(?= \([^()]*{short(member)}\))", f"rank {rank}", error.detail)
    error.detail = with_names(error.detail, labels)


def name_told(error: PeerLostError, handle: NativeHandle) -> None:
    """Tells an error of an op of all members what is known of those whom its text names. Ranks may have changed."""
    gone = _recently_lost(handle)
    _tell(error, handle, [member for member in gone if short(member) in error.detail])


def _tell(error: PeerLostError, handle: NativeHandle, lost: Sequence[UUID]) -> None:
    known = _recently_lost(handle)
    told = [known.get(member, (LossReason.UNKNOWN, "")) for member in lost]
    error.names = tuple(name_of(handle, member) for member in lost)
    error.reasons, error.causes = tuple(reason for reason, _ in told), tuple(why for _, why in told)


publish(globals())
