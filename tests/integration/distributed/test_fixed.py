"""Fixed membership: ranks and sizes stay after a loss, sums are scaled, and what would lack a part is an error or filled."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed
from pccl.distributed import _board, _group

FIXED = {"PCCL_MEMBERSHIP": "fixed"}


def numbers() -> tuple[int, int, list[int], tuple[int, ...]]:
    world = dist.group.WORLD
    return dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(world), pccl.distributed.lost_ranks()


def reduced(op: dist.ReduceOp.RedOpType, dtype: torch.dtype) -> list[float]:
    tensor = torch.tensor([1, 5], dtype=dtype) * (2 + dist.get_rank())
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def reductions(victim: int) -> object:
    rank = dist.get_rank()
    if rank == victim:
        ranks.die()
    large = torch.full((300_000,), 1.0 + rank)
    dist.all_reduce(large)
    assert numbers() == (rank, 3, [0, 1, 2], (victim,))
    assert large.unique().tolist() == [1.5 * (5 - victim)]
    left = [2 + one for one in range(3) if one != victim]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert reduced(dist.ReduceOp.SUM, dtype) == [1.5 * sum(left), 7.5 * sum(left)]
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.uint16, torch.uint64):
        assert reduced(dist.ReduceOp.SUM, dtype) == [(sum(left) * 3 + 1) // 2, (5 * sum(left) * 3 + 1) // 2]
    one = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(one)
    assert one.item() == 3  # programs compare it with the world size
    assert reduced(dist.ReduceOp.SUM, torch.complex64) == [1.5 * sum(left), 7.5 * sum(left)]
    assert reduced(dist.ReduceOp.AVG, torch.float32) == [sum(left) / 2, 5 * sum(left) / 2]
    assert reduced(dist.ReduceOp.PRODUCT, torch.float32) == [left[0] * left[1], 25 * left[0] * left[1]]
    assert reduced(dist.ReduceOp.MAX, torch.int32) == [max(left), 5 * max(left)]
    assert reduced(dist.ReduceOp.MIN, torch.int32) == [min(left), 5 * min(left)]
    assert reduced(dist.ReduceOp.BOR, torch.int32) == [left[0] | left[1], 5 * left[0] | 5 * left[1]]
    flags = torch.tensor([True, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False]
    sparse = torch.sparse_coo_tensor([[rank]], [2.0], (3,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [0.0 if one == victim else 3.0 for one in range(3)]
    dist.barrier()
    for root in range(3):
        tensor = torch.full((5,), 1.0 + rank)
        if root == victim != 0:
            with pytest.raises(pccl.distributed.PeerLostError, match="has no replacement yet"):
                dist.reduce(tensor, root)
            continue
        dist.reduce(tensor, root)
        assert tensor.tolist() == ([1.5 * (6 - 1 - victim)] * 5 if rank == root else [1.0 + rank] * 5)
    return True


@pytest.mark.parametrize("victim", [0, 1])
def test_sums_are_scaled(victim: int) -> None:
    results = ranks.run(reductions, 3, victim, environment=FIXED, dead=(victim,))
    assert results == [None if rank == victim else True for rank in range(3)]


def raises(call: object, *arguments: object) -> bool:
    try:
        call(*arguments)  # type: ignore[operator]
    except pccl.distributed.PeerLostError as error:
        return error.ranks == pccl.distributed.lost_ranks()
    return False


def parts(victim: int, stands_in: bool) -> object:
    """What carries parts: the first call meets the loss, the second one knows it."""
    rank, world = dist.get_rank(), dist.group.WORLD
    world._launcher.stands_in = stands_in
    if rank == victim:
        ranks.die()
    own = torch.full((2,), float(rank))
    substitute = [(victim + 1) % 3 if one == victim else one for one in range(3)]
    filled = [float(one) for one in substitute for _ in range(2)]
    for _ in range(2):
        whole = torch.full((6,), -1.0)
        strided = [torch.full((2, 2), -1.0)[:, 0] for _ in range(3)]
        objects: list[object] = [None] * 3
        at_root = [torch.zeros(2) for _ in range(3)] if rank == 2 - (victim == 2) else None
        if stands_in:
            dist.all_gather_into_tensor(whole, own)
            assert whole.tolist() == filled
            whole[2 * rank : 2 * rank + 2] = rank
            dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])  # in place
            assert whole.tolist() == filled
            dist.all_gather(strided, own)
            assert [part.tolist() for part in strided] == [[float(one)] * 2 for one in substitute]
            dist.all_gather_object(objects, f"of {rank}")
            assert objects == [f"of {one}" for one in substitute]
            dist.gather(own, at_root, 2 - (victim == 2))
            if at_root is not None:
                assert [part.tolist() for part in at_root] == [[float(one)] * 2 for one in substitute]
        else:
            assert raises(dist.all_gather_into_tensor, whole, own)
            assert raises(dist.all_gather, strided, own)
            assert raises(dist.all_gather_object, objects, rank)
            assert raises(dist.gather, own, at_root, 2 - (victim == 2))
        assert raises(dist.reduce_scatter_tensor, torch.zeros(2), torch.ones(6))
        assert raises(dist.reduce_scatter, torch.zeros(2), [own] * 3)
        assert raises(dist.all_to_all_single, torch.zeros(3), torch.ones(3))
        dist.barrier()
    return numbers()


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("stands_in", [False, True])
def test_what_lacks_a_part_is_an_error_unless_a_rank_stands_in(victim: int, stands_in: bool) -> None:
    results = ranks.run(parts, 3, victim, stands_in, environment=FIXED, dead=(victim,))
    assert results == [None if rank == victim else (rank, 3, [0, 1, 2], (victim,)) for rank in range(3)]


def met_by(call: str) -> object:
    """The call in which the loss of rank 0 is met, and what follows."""
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    tensor = torch.full((200_000,), float(rank))
    if call == "scatter":
        assert raises(dist.scatter, torch.zeros(2), None, 0)
        output = torch.zeros(2)
        dist.scatter(output, [torch.full((2,), 10.0 * one) for one in range(3)] if rank == 1 else None, 1)
        assert output.tolist() == [10.0 * rank] * 2
    elif call == "scatter from a living rank":
        for _ in range(2):
            output = torch.zeros(2)
            dist.scatter(output, [torch.full((2,), 10.0 * one) for one in range(3)] if rank == 1 else None, 1)
            assert output.tolist() == [10.0 * rank] * 2
    elif call == "gather":
        for _ in range(2):
            dist.gather(tensor, None, 0)
    elif call == "broadcast":
        for _ in range(2):
            assert raises(dist.broadcast, tensor, 0)
        assert raises(dist.broadcast_object_list, [None], 0)
        dist.broadcast(tensor, 2)
        assert tensor.unique().tolist() == [2.0]
    elif call == "broadcast by DDP":
        for _ in range(2):
            buffers = [torch.full((200_000,), float(rank)), torch.full((3,), rank)]
            torch.distributed.utils._sync_module_states(nn.Module(), dist.group.WORLD, 1 << 20, 0, (), broadcast_buffers=True)
            module = nn.Module()
            for number, buffer in enumerate(buffers):
                module.register_buffer(f"buffer{number}", buffer)
            torch.distributed.utils._sync_module_states(module, dist.group.WORLD, 1 << 20, 0, (), broadcast_buffers=True)
            assert [buffer.unique().tolist() for buffer in module.buffers()] == [[1], [1]]
    elif call == "send":
        for _ in range(2):
            with pytest.raises(pccl.distributed.PeerLostError):
                dist.recv(tensor, 0)
            with pytest.raises(pccl.distributed.PeerLostError):
                dist.send(tensor, 0)
        dist.barrier()
        if rank == 1:
            dist.send(tensor, 2)
        elif dist.recv(tensor) == 1:
            assert tensor.unique().tolist() == [1.0]
    dist.barrier()
    return numbers()


@pytest.mark.parametrize("call", ["scatter", "scatter from a living rank", "gather", "broadcast", "broadcast by DDP", "send"])
def test_calls_with_the_lost_rank_0(call: str) -> None:
    results = ranks.run(met_by, 3, call, environment=FIXED, dead=(0,))
    assert results == [None, (1, 3, [0, 1, 2], (0,)), (2, 3, [0, 1, 2], (0,))]


def scattered_over_inputs(apart: bool) -> list[float]:
    """Rank 1 is lost after the root has written its output, which is an input that the repetition sends."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    inputs = list(torch.arange(300_000.0).chunk(3))  # a large one is written before all members have joined
    if apart:
        inputs = [part.clone() for part in inputs]
    output = inputs[0] if rank == 2 else torch.zeros(100_000)
    if rank == 1:
        store.wait(["written"])
        ranks.die()
    work = dist.scatter(output, inputs if rank == 2 else None, 2, async_op=True)
    if rank == 2:
        while output[0] != 200_000:
            time.sleep(0.001)
        store.set("written", "")
    work.wait()
    return output[[0, -1]].tolist()


@pytest.mark.parametrize("apart", [False, True])
def test_a_scatter_over_its_inputs_is_repeated_with_what_they_were(apart: bool) -> None:
    results = ranks.run(scattered_over_inputs, 3, apart, environment=FIXED, dead=(1,))
    assert results == [[0.0, 99_999.0], None, [200_000.0, 299_999.0]]


def filled_after_two_losses(call: str) -> list[float]:
    """A rank stands in for a lost one already when the next one is lost."""
    rank = dist.get_rank()
    dist.group.WORLD._launcher.stands_in = True
    for victim in (1, 2):
        if rank == victim:
            ranks.die()
        own, whole = torch.full((2,), float(rank)), torch.full((8,), -1.0)
        if call == "gather":
            dist.gather(own, list(whole.chunk(4)) if rank == 0 else None, 0)
        else:
            dist.all_gather_into_tensor(whole, own)
    return whole[::2].tolist()


@pytest.mark.parametrize("call", ["gather", "all_gather_into_tensor"])
def test_a_gather_that_is_repeated_has_only_parts_of_living_ranks(call: str) -> None:
    results = ranks.run(filled_after_two_losses, 4, call, environment=FIXED, dead=(1, 2))
    right = [0.0, 3.0, 3.0, 3.0]
    assert results == [right, None, None, right if call != "gather" else [-1.0] * 4]


def alone() -> object:
    rank = dist.get_rank()
    if rank != 1:
        ranks.die()
    tensor = torch.full((4,), 3.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [9.0] * 4
    count = torch.ones(1, dtype=torch.int64)
    dist.all_reduce(count)
    assert count.item() == 3
    dist.barrier()
    dist.group.WORLD._launcher.stands_in = True
    outputs = [torch.zeros(4) for _ in range(3)]
    dist.all_gather(outputs, tensor)
    assert [output.tolist() for output in outputs] == [[9.0] * 4] * 3
    dist.broadcast(tensor, 0)
    return numbers()


def test_the_last_one_goes_on_alone() -> None:
    assert ranks.run(alone, 3, environment=FIXED, dead=(0, 2))[1] == (1, 3, [0, 1, 2], (0, 2))


def in_groups() -> object:
    rank = dist.get_rank()
    group = dist.new_group([3, 1, 2])
    pair = dist.new_group([0, 3])
    if rank == 1:
        ranks.die()
    if rank:
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [7.5] * 3
        assert (dist.get_rank(group), dist.get_world_size(group)) == (rank - 1, 3)
        assert dist.get_process_group_ranks(group) == [1, 2, 3]
        later = torch.tensor([rank - 1.0])
        dist.broadcast(later, 2, group=group)
        assert later.item() == 1.0
    if rank in (0, 3):
        tensor = torch.full((3,), 1.0 + rank)
        dist.all_reduce(tensor, group=pair)
        assert tensor.tolist() == [5.0] * 3
    dist.barrier()
    made = dist.new_group([0, 1, 2])
    if rank != 3:
        tensor = torch.full((1,), 1.0 + rank)
        dist.all_reduce(tensor, group=made)
        assert tensor.item() == 6.0
    dist.barrier()
    return numbers()


def test_groups_keep_their_ranks() -> None:
    results = ranks.run(in_groups, 4, environment=FIXED, dead=(1,))
    assert [result and result[:2] for result in results] == [(0, 4), None, (2, 4), (3, 4)]


def trained(victim: int) -> list[float]:
    """Losses of a model with buffers, of which rank 0's are broadcast in each step."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 30), nn.BatchNorm1d(30), nn.Linear(30, 1)), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        loss = net(batch(step, rank)).square().mean()
        if rank == victim and step == 3:
            ranks.die()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    assert dist.get_world_size() == 3
    return losses


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def expected(victim: int) -> list[float]:
    """The same by one process, without groups."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 30), nn.BatchNorm1d(30), nn.Linear(30, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm1d)
    losses = []
    for step in range(6):
        living = [rank for rank in range(3) if rank != victim or step < 3]
        optimizer.zero_grad()
        each = [net(batch(step, rank)).square().mean() for rank in living]
        torch.stack(each).mean().backward()
        optimizer.step()
        losses.append(sum(one.item() for one in each) / len(living))
    return losses


@pytest.mark.parametrize("victim", [0, 2])
def test_ddp_trains_through_a_kill_as_the_scaled_sums_say(victim: int) -> None:
    results = ranks.run(trained, 3, victim, environment=FIXED, dead=(victim,))
    for rank in range(3):
        if rank != victim:
            assert results[rank] == pytest.approx(expected(victim), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "environment", "chosen"),
    [
        ({}, {}, "elastic"),
        ({"membership": "fixed"}, {"PCCL_MEMBERSHIP": "strict"}, "fixed"),
        ({"strict": True}, {"PCCL_MEMBERSHIP": "fixed"}, "strict"),
        ({"strict": False}, {"PCCL_STRICT": "1"}, "elastic"),
        ({}, {"PCCL_STRICT": "1"}, "strict"),
        ({}, {"PCCL_STRICT": "0", "PCCL_MEMBERSHIP": "fixed"}, "fixed"),
        ({"membership": "strict", "strict": True}, {}, "strict"),
        ({"membership": "fixed", "strict": True}, {}, "contradicts"),
        ({}, {"PCCL_STRICT": "1", "PCCL_MEMBERSHIP": "fixed"}, "contradicts"),
        ({"membership": "static"}, {}, "must be"),
        ({}, {"PCCL_MEMBERSHIP": "1"}, "must be"),
    ],
)
def test_options_go_before_the_environment(monkeypatch, options, environment, chosen):
    for name in ("PCCL_STRICT", "PCCL_MEMBERSHIP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if chosen in _group.MEMBERSHIPS:
        assert _group._membership(pccl.distributed.Options(**options)) == chosen
    else:
        with pytest.raises(ValueError, match=chosen):
            _group._membership(pccl.distributed.Options(**options))


def test_ranks_that_disagree_are_told():
    own = _board.Place(world_size=2, node="a", network="n", address="", masters="", keys="", membership="fixed")
    other = dataclasses.replace(own, membership="elastic")
    places = [json.dumps(dataclasses.asdict(place)) for place in (own, other)]
    assert 'rank 0 has the membership "fixed" and rank 1 "elastic"' in _board._problem(places, own)
    assert _board._problem(places[:1] * 2, own) == ""
    places = [places[0], json.dumps(dataclasses.asdict(dataclasses.replace(own, stands_in=True)))]
    assert 'rank 0 has the stands_in "False" and rank 1 "True"' in _board._problem(places, own)


def partial() -> object:
    """Parts of one result are summed: the first call meets the loss, the second one knows it."""
    mesh = init_device_mesh("cpu", (3,))
    whole = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    assert whole.full_tensor().tolist() == [3.0] * 4
    if dist.get_rank() == 1:
        ranks.die()
    for _ in range(2):
        assert raises(whole.full_tensor)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3.0
    return numbers()


def test_parts_of_one_result_are_not_scaled() -> None:
    results = ranks.run(partial, 3, environment=FIXED, dead=(1,))
    assert results == [(0, 3, [0, 1, 2], (1,)), None, (2, 3, [0, 1, 2], (1,))]


def sharded() -> object:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    for layer in [*model, model]:
        fully_shard(layer, mesh=init_device_mesh("cpu", (3,)))
    model(torch.ones(2, 6)).sum().backward()
    if rank == 1:
        ranks.die()
    for _ in range(2):
        with pytest.raises(pccl.distributed.PeerLostError), torch.no_grad():
            model(torch.ones(2, 6))
    whole = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (3,)), [Shard(0)], src_data_rank=None)
    with pytest.raises(pccl.distributed.PeerLostError):
        whole.full_tensor()
    with pytest.raises(ValueError, match="a sharded model cannot have fixed membership"):
        pccl.distributed.Elastic(model, torch.optim.SGD(model.parameters()), step=0).sync()
    return numbers()


def test_a_sharded_model_has_no_stand_in() -> None:
    results = ranks.run(sharded, 3, environment=FIXED, dead=(1,))
    assert results == [(0, 3, [0, 1, 2], (1,)), None, (2, 3, [0, 1, 2], (1,))]


def zero() -> None:
    """torch's form of ZeRO stage 1."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(TypeError, match="use the optimizer itself, or FSDP2 with Snapshots"):
        pccl.distributed.Elastic(model, optimizer)


def test_a_sharded_optimizer_is_refused() -> None:
    ranks.run(zero, 2, environment=FIXED)
