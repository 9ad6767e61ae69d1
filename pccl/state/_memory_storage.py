"""Checkpoints of `torch.distributed.checkpoint` in the memory of hosts.

Each item of a plan (a tensor's chunk, or bytes) is a tensor of its own in the snapshot, and the items that a rank writes are its
part. The metadata is made by the coordinator before the data is written, and kept by all ranks.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from pccl._core.errors import StateLostError
from pccl._exports import publish
from pccl.state._local.checkpoint import CheckpointError
from pccl.state._local.tree import TreeError
from pccl.state._memory_metadata import Content, decode_content, encode_content
from pccl.state._snapshots.boxes import DTYPES, Box, ShardMap, Slice, own_name
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.placement import Redundancy
from pccl.state._snapshots.snapshot import Contribution
from pccl.state._snapshots.vault import Opened, Vault, vault_of, whole_slice

_TOPIC = "checkpoint"


class _Orders(NamedTuple):
    """What the coordinator tells each rank with its plan."""

    step: int
    content: bytes


class _Told(NamedTuple):
    """What each rank tells the coordinator with its plan."""

    step: int
    redundancy: Redundancy


class _Memory:
    """What a writer and a reader have in common."""

    def __init__(self, snapshots: Snapshots | None = None, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self._snapshots = snapshots
        self._given = group
        self._id: str | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._id = None if checkpoint_id is None else os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Never: torch does not choose it by itself."""
        return False


class MemoryWriter(_Memory, StorageWriter):
    """Keeps checkpoints in the memory of hosts: `torch.distributed.checkpoint.save(state, storage_writer=MemoryWriter(...))`.

    What DCP's planner gives a rank to write goes to the holder process of its host, and as copies or a code to other ranks, as
    `snapshots` says (its `every` has no effect here). The new checkpoint replaces the one before when it is complete on all
    ranks; one that fails leaves that. `async_save` does it in a thread beside the training, which needs a group of its own.

    `group`: the process group, of the backend "pccl", that is given to `save` too; None: that of all ranks. The groups of one
    process that save must all have the same ranks. `checkpoint_id` is any text, which MemoryReader compares.

    Errors arrive as torch's CheckpointException on all ranks. Refused: `use_collectives=False`, planners that cache plans,
    planners whose metadata is more than that of their items, and AsyncCheckpointerType.PROCESS.
    """

    def __init__(self, snapshots: Snapshots | None = None, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(snapshots, group=group)
        self._metadata: Metadata | None = None
        self._rank = 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("MemoryWriter works in the process that trains: use async_save with AsyncCheckpointerType.THREAD")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """ValueError: `save` was called without collectives."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("MemoryWriter needs use_collectives=True")
        self._vault = _vault(self._given, self._snapshots)
        self._rank = kwargs.get("rank", 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Tells the coordinator the number of the last checkpoint, and the redundancy. ValueError: the planner caches plans."""
        _require_usable(plan)
        told = _Told(self._vault.keeper.report.step, self._vault.snapshots.redundancy)
        return dataclasses.replace(plan, storage_data=told)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the metadata. ValueError: the ranks give different copies or codes, or the metadata cannot be kept."""
        for plan in plans:
            _require_usable(plan)
        wanted = [plan.storage_data.redundancy for plan in plans]
        for rank, one in enumerate(wanted):
            if one != wanted[0]:
                text = f"(data, parity) is {tuple(wanted[0])} on rank 0 and {tuple(one)} on rank {rank}"
                raise ValueError(f"MemoryWriter: ranks give different copies or codes: {text}; pass the same Snapshots on all")
        _, metadata = create_default_global_save_plan(plans)
        mappings = [plan.planner_data for plan in plans]
        if all(isinstance(one, Mapping) for one in mappings):
            metadata.planner_data = dict(ChainMap(*mappings))
        metadata.storage_data = {item.index: _name(rank, item.index) for rank, plan in enumerate(plans) for item in plan.items}
        self._metadata = metadata
        step = 1 + max(plan.storage_data.step for plan in plans)
        orders = _Orders(step, encode_content(Content(self._id, metadata)))
        return [dataclasses.replace(plan, storage_data=orders) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Returns when all ranks have their items, and the redundancy of others."""
        orders: _Orders = plan.storage_data
        tensors: dict[str, torch.Tensor] = {}
        problem: Exception | None = None
        try:
            for item in plan.items:
                tensors[_name(self._rank, item.index)] = _tensor(planner.resolve_data(item))
        except Exception as error:  # the others are told
            problem, tensors = error, {}
        shards = {name: whole_slice(tensor) for name, tensor in tensors.items()}
        members, own = _members(self._given)
        self._vault.take(Contribution(orders.step, tensors, shards, orders.content, members, own, problem))
        done: Future[list[WriteResult]] = Future()
        named = [(item.index, _name(self._rank, item.index)) for item in plan.items]
        done.set_result([WriteResult(index=at, size_in_bytes=shards[one].nbytes, storage_data=one) for at, one in named])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """ValueError: the planner has made metadata that the ranks do not keep."""
        known, self._metadata = self._metadata, None
        assert known is not None
        metadata.storage_data = known.storage_data
        if (metadata.state_dict_metadata, metadata.planner_data) != (known.state_dict_metadata, known.planner_data):
            raise ValueError("MemoryWriter does not keep the metadata of this planner, which is more than that of its items")

    def drop(self) -> None:
        """Drops what this process has of checkpoints, also at the holder. Without it a restarted process finds them."""
        _vault(self._given, self._snapshots).drop()


class MemoryReader(_Memory, StorageReader):
    """Reads what MemoryWriter has kept: `torch.distributed.checkpoint.load(state, storage_reader=MemoryReader(...))`.

    The ranks may be others than those that wrote, and more or fewer. Each gets the ranges that DCP's planner asks for, from the
    host that has them, or computed from copies and codes. `snapshots` and `group` are those of MemoryWriter; a process that is
    started again needs the same `name` in `snapshots`. With a `checkpoint_id`, only that checkpoint is read.

    Images that the ranks together read as a whole are compared with the hash that they had. Errors arrive as torch's
    CheckpointException on all ranks, whose `failures` then have for each rank: StateLostError, more was lost than the redundancy
    bears or nothing was saved; CheckpointError, another checkpoint is in memory. The state is unchanged after these. After a
    PeerLostError or any other error it has any content; `load` may be called again. A save in another thread that is complete
    while the checkpoint is read is RuntimeError. Metadata is read without pickle. Values that are not tensors are bytes that
    torch has pickled; it unpickles them.
    """

    def __init__(self, snapshots: Snapshots | None = None, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(snapshots, group=group)
        self._failure: Exception | None = None
        self._opened: Opened | None = None
        self._names: dict[MetadataIndex, str] = {}

    def read_metadata(self, *_args: Any, **_more: Any) -> Metadata:
        """What went wrong is raised by the next method: torch takes an error here for missing metadata."""
        self._failure = None
        try:
            return self._open()
        except Exception as error:
            self._failure = error
            return Metadata({})

    def _open(self) -> Metadata:
        group = _group(self._given)
        problem: Exception | None = None
        try:
            vault = _vault(group, self._snapshots)
        except ValueError as error:  # raised below, since the others wait for this rank
            vault, problem = _vault(group, None), error
        self._opened = opened = vault.open(*_members(group), group._timeout)
        if problem is not None:
            raise problem
        if opened is None:
            raise StateLostError("no rank has a checkpoint in memory")
        try:
            content = decode_content(opened.values())
        except TreeError as error:
            raise CheckpointError(f"rank {opened.values_from} has sent metadata that cannot be read: {error}") from error
        if self._id is not None and self._id != content.checkpoint_id:
            raise CheckpointError(f"checkpoint {self._id} is not in memory, where {content.checkpoint_id} is")
        self._names = content.metadata.storage_data
        return content.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failure is not None:
            raise self._failure

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """All ranks at once."""
        boxes: dict[str, Box] = {}
        problem: Exception | None = None
        try:
            for item in plan.items:
                name = self._names[item.storage_index]
                box = self._box(name, item)
                boxes[name] = _around(boxes[name], box) if name in boxes else box
        except (LookupError, ValueError) as error:  # the others are told
            problem = CheckpointError(f"the metadata of the checkpoint does not fit its content: {error!r}")
        found = self._read(boxes, problem)
        for item in plan.items:
            name = self._names[item.storage_index]
            tensor = found[name]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(tensor.numpy().tobytes()))
                continue
            target = planner.resolve_tensor(item).detach()
            target.copy_(tensor[self._box(name, item).inside(boxes[name])])
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _box(self, name: str, item: ReadItem) -> Box:
        if item.type is LoadItemType.BYTE_IO:
            return self._known(name).box
        return Box(tuple(item.storage_offsets), tuple(item.lengths))

    def _known(self, name: str) -> Slice:
        assert self._opened is not None
        return self._opened.slices[name]

    def _read(self, boxes: Mapping[str, Box], problem: Exception | None = None) -> dict[str, torch.Tensor]:
        """These ranges of items; all ranks call it. `problem` is raised, and told to the others."""
        assert self._opened is not None
        shards: ShardMap = {}
        found: dict[str, torch.Tensor] = {}
        if problem is None:
            try:
                shards = {name: self._known(name)._replace(box=box) for name, box in boxes.items()}
                found = {name: torch.empty(one.box.shape, dtype=DTYPES[one.dtype], device="cpu") for name, one in shards.items()}
            except (LookupError, MemoryError, RuntimeError) as error:
                problem, shards = error, {}
        self._opened.fill(found, shards, problem)
        self._opened = None
        return found


def drain(
    storage_writer: StorageWriter, snapshots: Snapshots | None = None, *, group: dist.ProcessGroup | None = None
) -> Metadata:
    """Writes the checkpoint that MemoryWriter has kept to disk, or to wherever a writer of torch brings it.

    All ranks of `group` call it, each with a `storage_writer` such as `FileSystemWriter(path)`, and the `snapshots` of
    MemoryWriter; no model is needed. Each writes the items of parts
    that it holds, and some of those that are computed. Returns the metadata. torch's CheckpointException on all ranks: as
    MemoryReader and the writer tell.
    """
    planner = _Drain(MemoryReader(snapshots, group=group))
    written: Metadata = save({}, storage_writer=storage_writer, planner=planner, process_group=group)
    return written


class _Drain(SavePlanner):
    """Plans to write what is in memory as it is."""

    def __init__(self, reader: MemoryReader) -> None:
        self._reader = reader

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator)
        members, own = _members(self._reader._given)
        names = self._metadata.storage_data
        assert self._reader._opened is not None
        writers = self._reader._opened.writers(len(members))
        self._items = [item for item in _items(self._metadata) if writers[names[item.index]] == own]
        self._found = self._reader._read({names[item.index]: self._reader._known(names[item.index]).box for item in self._items})

    def create_local_plan(self) -> SavePlan:
        return SavePlan(self._items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = create_default_global_save_plan(all_plans)
        metadata.planner_data = self._metadata.planner_data
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        found = self._found[self._metadata.storage_data[write_item.index]]
        return io.BytesIO(found.numpy().tobytes()) if write_item.type is WriteItemType.BYTE_IO else found


def _items(metadata: Metadata) -> list[WriteItem]:
    found = []
    for name, one in metadata.state_dict_metadata.items():
        if isinstance(one, BytesStorageMetadata):
            found.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO, bytes_io_data=BytesIOWriteData(0)))
            continue
        for chunk in one.chunks:
            data = TensorWriteData(ChunkStorageMetadata(chunk.offsets, chunk.sizes), one.properties, one.size)
            found.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
    return found


def _group(group: Any) -> Any:
    found = dist.GroupMember.WORLD if group is None else group
    if not hasattr(found, "communicator"):
        raise RuntimeError(
            'checkpoints in memory need a process group of the backend "pccl": call init_process_group("pccl") first'
        )
    return found


def _members(group: Any) -> tuple[tuple[Any, ...], int]:
    """Those of the group by rank, and the own rank."""
    found = _group(group)
    members = tuple(found.members)
    return members, members.index(found.communicator.uuid)


def _vault(group: Any, snapshots: Snapshots | None) -> Vault:
    found = _group(group)
    return vault_of(found.communicator, snapshots, _TOPIC, found._timeout)


def _require_usable(plan: SavePlan) -> None:
    if not plan.usable:
        raise ValueError("MemoryWriter works with no planner that caches plans: give it enable_plan_caching=False")


def _name(rank: int, index: MetadataIndex) -> str:
    offset = "" if index.offset is None else ",".join(map(str, index.offset))
    return own_name(f"rank {rank}", f"{index.fqn}[{offset}]")


def _tensor(data: torch.Tensor | io.BytesIO) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.detach()
    return torch.frombuffer(bytearray(data.getbuffer()), dtype=torch.uint8)


def _around(one: Box, other: Box) -> Box:
    offset = tuple(map(min, one.offset, other.offset))
    ends = [max(a + n, b + m) for a, n, b, m in zip(one.offset, one.shape, other.offset, other.shape, strict=True)]
    return Box(offset, tuple(end - begin for begin, end in zip(offset, ends, strict=True)))


publish(globals())
