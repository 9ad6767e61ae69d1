"""What else of torch runs on the process group: functional collectives, DTensor, DeviceMesh, objects, samplers, messages."""

from __future__ import annotations

import contextlib
import time
import warnings
import weakref
from collections.abc import Callable

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.data import DistributedSampler

from pccl.distributed import _calls


def functional_collectives() -> None:
    warnings.simplefilter("ignore", FutureWarning)
    size, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    own = torch.full((2,), float(rank))
    total = size * (size - 1) / 2
    assert functional.all_reduce(own, "sum", group).tolist() == [total] * 2
    assert functional.all_gather_tensor(own, 0, group).tolist() == [float(r) for r in range(size) for _ in range(2)]
    assert functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group).tolist() == [size] * 2
    assert functional.broadcast(own, 1, group).tolist() == [1.0] * 2
    parts = functional.all_to_all_single(torch.arange(size) + 10.0 * rank, None, None, group)
    assert parts.tolist() == [10.0 * r + rank for r in range(size)]
    assert [t.tolist() for t in functional.all_reduce_coalesced([own, own + 1], "max", group)] == [[size - 1.0] * 2, [size] * 2]
    gathered = functional.all_gather_into_tensor_coalesced([own, own.double()], group)
    assert [len(tensor) for tensor in gathered] == [2 * size] * 2


def coalesced() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    tensors = [torch.full((n,), float(rank)) for n in (1, 5, 0, 9)] + [torch.ones(3, dtype=torch.int64)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    total = size * (size - 1) / 2
    assert [tensor.tolist() for tensor in tensors] == [[total], [total] * 5, [], [total] * 9, [size] * 3]
    outputs = [torch.zeros(2 * size) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    manager.wait()
    assert all(output.tolist() == [float(r) for r in range(size) for _ in range(2)] for output in outputs)


def coalesced_after_an_exception() -> None:
    """torch does not end a block that an exception leaves. Later calls are none of it: it would keep their tensors."""
    device, tensor = torch.device("cpu"), torch.ones(1)
    group = dist.group.WORLD
    with contextlib.suppress(KeyError), dist._coalescing_manager(device=device):
        dist.broadcast(tensor, 0)
        raise KeyError
    works = [dist.broadcast(tensor, 0, async_op=True) for _ in range(3)]
    kept = [weakref.ref(work) for work in works]
    for work in works:
        work.wait()
    del works, work
    assert [ref() for ref in kept] == [None] * 3
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        dist.broadcast(tensor, 0, async_op=True)
    manager.wait()
    begun = group._end_coalescing(device)  # outside of a block
    assert len(begun._calls) == 0


def unawaited() -> None:
    """Calls that nobody awaits are not kept beyond their group."""
    dist.all_reduce(torch.ones(1))
    work = dist.group.WORLD.all_gather_single(torch.empty(dist.get_world_size()), torch.ones(1))
    assert len(_calls._unfinished) == 1
    dist.group.WORLD.shutdown()
    assert len(_calls._unfinished) == 0
    del work


def dtensors() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 6.0).reshape(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal(sharded.redistribute(placements=[Shard(1)]).full_tensor(), whole)
    part = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    assert part.full_tensor().tolist() == [size] * 4
    weight = distribute_tensor(torch.ones(3, 2, requires_grad=True), mesh, [Replicate()])
    (sharded @ weight).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad.full_tensor(), whole.sum(0)[:, None].expand(3, 2))  # type: ignore[attr-defined]


def objects() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(size)]
    listed = [{"step": 7}, None] if rank == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [{"step": 7}, None]
    gathered = [None] * size if rank == size - 1 else None
    dist.gather_object(rank, gathered, size - 1)
    assert gathered in (None, list(range(size)))
    output = [None]
    dist.scatter_object_list(output, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert output == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["hello", 1], 1)
    if rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["hello", 1]


def groups() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    begin = time.monotonic()
    made = [dist.new_group([0, r]) for r in range(1, size) for _ in range(5)]
    cost = (time.monotonic() - begin) / len(made)
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2.0] * 3
    assert cost < 1, cost
    backwards = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        assert dist.get_process_group_ranks(backwards) == [0, size - 1]
        tensor = torch.full((2,), float(rank))
        dist.broadcast(tensor, size - 1, group=backwards)
        assert tensor.tolist() == [size - 1.0] * 2
    dist.barrier()


def meshes() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    rank = dist.get_rank()
    tensor = torch.full((1,), float(rank))
    dist.all_reduce(tensor, group=mesh["model"].get_group())
    assert tensor.item() == (1.0 if rank < 2 else 5.0)
    assert list(mesh.get_coordinate() or ()) == [rank // 2, rank % 2]


def samplers() -> list[int]:
    return list(DistributedSampler(range(10), shuffle=False))


def messages() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    following, before = (rank + 1) % size, (rank - 1) % size
    outputs = [torch.zeros(3) for _ in range(4)]
    sends = [dist.isend(torch.full((3,), float(10 * rank + n)), following, tag=n // 2) for n in range(4)]
    received = [dist.irecv(outputs[n], before, tag=n // 2) for n in (2, 0, 3, 1)]
    for work in [*sends, *received]:
        work.wait()
    assert [output[0].item() for output in outputs] == [10.0 * before + n for n in range(4)]
    if rank:
        dist.send(torch.full((2,), float(rank)), 0, tag=9)
        return
    senders = set()
    for _ in range(1, size):
        tensor = torch.zeros(2)
        source = dist.recv(tensor, tag=9)
        assert tensor.tolist() == [float(source)] * 2
        senders.add(source)
    assert senders == set(range(1, size))


def batches_of_messages() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    output = torch.zeros(100_000)
    ops = [
        dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, output, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert output.unique().tolist() == [(rank - 1) % size]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "part",
    [
        functional_collectives,
        coalesced,
        coalesced_after_an_exception,
        unawaited,
        dtensors,
        objects,
        groups,
        messages,
        batches_of_messages,
    ],
)
def test_works(part: Callable[[], None], size: int) -> None:
    ranks.run(part, size)


def test_a_mesh_of_two_dimensions() -> None:
    ranks.run(meshes, 4)


def test_a_sampler_gives_each_rank_its_part() -> None:
    assert ranks.run(samplers, 2) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
