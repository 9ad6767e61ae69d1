"""Tensors as collectives take them: one, or a list of them as one piece of memory, divided among the members of a group.

Lists of tensors that do not lie one behind the other in memory go through memory of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pccl._core.calls import whole_number
from pccl._core.enums import DataType, DeviceType
from pccl._core.errors import ArgumentError
from pccl._core.gpu import common_stream
from pccl._core.groups import Group
from pccl._core.tensors import Room, RoomPool, bring_back, copy_memory, memory_of, new_memory, require


@dataclass
class Buffer:
    """A tensor, or a list of tensors as one piece of memory."""

    pointer: int
    numel: int
    dtype: DataType
    counts: list[int] | None  # elements of each tensor of a list
    owner: Any  # the tensor, or those of a list that have elements
    device: DeviceType
    parts: list[tuple[int, int]] = field(default_factory=list)  # address and bytes, where the memory is not theirs
    adjacent: list[tuple[int, int]] = field(default_factory=list)  # the same, of a list whose memory is theirs
    stream: int | None = None  # of a GPU, after whose work so far it may be used; None: at once
    memory: Any = None  # what keeps memory of its own alive
    room: Room | None = None  # that `make_private` took

    def load(self) -> Buffer:
        """Fills memory of its own from the tensors."""
        at = self.pointer
        for address, size in self.parts:
            copy_memory(at, address, size)
            at += size
        return self

    def store(self, name: str) -> None:
        """Fills the tensors from memory of its own. UsageError, in the name of this call: a tensor has lost its memory."""
        at = self.pointer
        owners = self.owner if isinstance(self.owner, list) else [self.owner]
        for owner, (address, size) in zip(owners, self.parts, strict=bool(self.parts)):
            bring_back(owner, address, at, size, name)
            at += size

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Addresses and sizes in bytes of the program's tensors."""
        return self.parts or self.adjacent or [self.range]

    @property
    def range(self) -> tuple[int, int]:
        """Address and size in bytes of the memory that the operation uses."""
        return self.pointer, self.numel * self.dtype.itemsize

    @property
    def is_private(self) -> bool:
        """Whether the operation works on memory of this object, and the program's tensors are copied."""
        return bool(self.parts)

    def make_private(self, pool: RoomPool) -> None:
        """Moves the operation to memory of this object, so that it never touches the program's tensors.

        `load` and `store` copy. Tensors on a GPU stay as they are.
        """
        if self.parts or self.device is not DeviceType.CPU or self.numel == 0:
            return
        ranges = self.ranges
        self.room = pool.take(self.range[1])
        self.pointer = self.room.address
        self.parts = ranges

    def end(self, pool: RoomPool) -> None:
        room, self.room = self.room, None
        if room is not None:
            self.parts = []  # nothing is copied out of it any more
            pool.give(room)


def buffer_of(value: Any, role: str, *, written: bool = False) -> Buffer:
    if not isinstance(value, (list, tuple)):
        memory = memory_of(value, role, written=written)
        return Buffer(memory.pointer, memory.numel, memory.dtype, None, value, memory.device, stream=memory.stream)
    require(len(value) > 0, f"{role} is an empty list; pass a tensor for each member of the group")
    memories = [memory_of(tensor, f"{role}[{at}]", written=written) for at, tensor in enumerate(value)]
    dtype = memories[0].dtype
    device = memories[0].device
    for at, memory in enumerate(memories):
        require(
            memory.device is device,
            f"{role}[0] is on {device.name} and {role}[{at}] on {memory.device.name}; all must be on one device",
        )
        require(memory.dtype is dtype, f"{role}[0] is {dtype.name} and {role}[{at}] {memory.dtype.name}; all must have one type")
    sizes = [memory.numel * dtype.itemsize for memory in memories]
    filled = [(memory.pointer, size) for memory, size in zip(memories, sizes, strict=True) if size > 0]
    owners = [tensor for tensor, size in zip(value, sizes, strict=True) if size > 0]
    counts = [memory.numel for memory in memories]
    made = Buffer(filled[0][0] if filled else 0, sum(counts), dtype, counts, owners, device)
    if device is not DeviceType.CPU:
        made.stream = common_stream((f"{role}[{at}]", memory.stream) for at, memory in enumerate(memories))
    gaps = [after for before, after in itertools.pairwise(filled) if before[0] + before[1] != after[0]]
    if gaps and device is not DeviceType.CPU:
        raise ArgumentError(
            f"the tensors of {role} are on a GPU; they must follow each other in memory, as the parts of one tensor do"
        )
    made.adjacent = filled
    if gaps:
        room, made.pointer = new_memory(sum(sizes))
        made.memory = room
        made.parts = filled
    return made


def check_alike(send: Buffer, recv: Buffer) -> None:
    require(send.dtype is recv.dtype, f"send is {send.dtype.name} and recv {recv.dtype.name}; the types must be equal")


def check_size(send: Buffer, recv: Buffer) -> None:
    require(send.numel == recv.numel, f"send has {send.numel} elements and recv {recv.numel}; the sizes must be equal")


def _check_counts(name: str, counts: Sequence[int], group: Group) -> list[int]:
    checked = [whole_number(f"{name}[{at}]", count, 63) for at, count in enumerate(counts)]
    if len(checked) != group.size:
        raise ValueError(f"{name} has {len(checked)} entries, but the group has {group.size} members")
    return checked


def divided(whole: Buffer, role: str, group: Group, counts: Sequence[int] | None, name: str = "counts") -> list[int]:
    """The elements of each member's part of the tensor called `role`."""
    given = None if counts is None else _check_counts(name, counts, group)
    if whole.counts is not None:
        require(len(whole.counts) == group.size, f"{role} has {len(whole.counts)} tensors, but the group {group.size} members")
        require(given in (None, whole.counts), f"{name} is {given}, but the tensors of {role} have {whole.counts} elements")
        return whole.counts
    if given is not None:
        require(sum(given) == whole.numel, f"{role} has {whole.numel} elements, but {name} adds up to {sum(given)}")
        return given
    part, rest = divmod(whole.numel, group.size)
    require(
        rest == 0,
        f"{role} has {whole.numel} elements, which do not divide into equal parts for {group.size} members; pass {name}",
    )
    return [part] * group.size


def check_own(role: str, own: Buffer, expected: int, whole: str) -> None:
    require(own.counts is None, f"{role} must be one tensor, not a list")
    require(own.numel == expected, f"{role} has {own.numel} elements, but the part of this member in {whole} has {expected}")


def equal_or_counts(counts: list[int]) -> dict[str, Any]:
    """The arguments of a launch for parts of these sizes: the same, whether they were given as counts or not."""
    return {"count": counts[0]} if len(set(counts)) == 1 else {"recv_counts": counts}


def one_buffer(role: str, tensor: Any, *, written: bool = False) -> Buffer:
    require(not isinstance(tensor, (list, tuple)), f"{role} must be one tensor, not a list")
    return buffer_of(tensor, role, written=written)


def rooted_parts(
    own: Buffer, own_role: str, whole: Buffer | None, whole_role: str, group: Group, counts: Sequence[int] | None
) -> list[int]:
    """The elements of each member's part, of which the members without the whole know their own and perhaps `counts`."""
    if counts is None and whole is not None and whole.counts is not None:
        text = f"the tensors of {whole_role} have different sizes, {whole.counts}; pass them as counts on all members"
        require(len(set(whole.counts)) == 1, text)
    parts = [own.numel] * group.size if whole is None and counts is None else []
    if not parts:
        parts = _check_counts("counts", counts or [], group) if whole is None else divided(whole, whole_role, group, counts)
    check_own(own_role, own, parts[group.rank], whole_role)
    return parts
