"""Sharded training on the process group: fully_shard, also with replicas (HSDP), and its distributed checkpoint."""

from __future__ import annotations

import tempfile

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from data_parallel import STEPS, batch, net, reference, sharded, train
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl.distributed


@pytest.mark.parametrize(("size", "replicas"), [(2, 1), (3, 1), (4, 2)])
def test_training_ends_as_in_one_process(size: int, replicas: int) -> None:
    results = ranks.run(sharded, size, replicas)
    expected = reference(size)
    for name, value in expected.whole.items():
        torch.testing.assert_close(results[0].whole[name], value, rtol=1e-3, atol=1e-4)
    for found, loss in zip(zip(*(result.losses for result in results), strict=True), expected.losses, strict=True):
        assert sum(found) / size == pytest.approx(loss, rel=1e-3)
    assert results[0].shards[0][0] < 33


def saved_and_loaded(folder: str) -> bool:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    fully_shard(model, mesh=mesh)
    train(model, lambda step: batch(step, dist.get_rank()))
    before = [parameter.to_local().clone() for parameter in model.parameters()]  # type: ignore[attr-defined]
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": get_model_state_dict(model)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    return all(torch.equal(one.to_local(), other) for one, other in zip(model.parameters(), before, strict=True))  # type: ignore[attr-defined]


def test_distributed_checkpoint() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert ranks.run(saved_and_loaded, 2, folder) == [True, True]


def from_rank_0() -> bool:
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    full = net().state_dict() if dist.get_rank() == 0 else {}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return dist.get_rank() != 0 or all(torch.equal(whole[name], value) for name, value in net().state_dict().items())


def test_a_full_state_from_rank_0() -> None:
    assert ranks.run(from_rank_0, 2) == [True, True]


def with_replicas() -> object:
    """Rank 3 dies; rank 2 has lost the other half of its replica; ranks 0 and 1 have a whole one."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = net()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if rank == 3 and step == 1:
            ranks.die()
        optimizer.zero_grad()
        try:
            model(batch(step, rank)).square().mean().backward()
        except pccl.distributed.PeerLostError as error:
            return str(error)
        optimizer.step()
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return {name: value.clone() for name, value in whole.items()}


def test_a_whole_replica_goes_on_and_half_a_one_stops_with_an_error() -> None:
    results = ranks.run(with_replicas, 4, dead=(3,))
    assert "rank 1" in results[2]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        living = range(4) if step == 0 else range(2)
        model(torch.cat([batch(step, rank) for rank in living])).square().mean().backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        for rank in (0, 1):
            torch.testing.assert_close(results[rank][name], value, rtol=1e-3, atol=1e-4)


def without_a_shard() -> str:
    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model(batch(0, dist.get_rank())).square().mean().backward()
    if dist.get_rank() == 1:
        ranks.die()
    with pytest.raises(pccl.distributed.PeerLostError) as caught:
        train(model, lambda step: batch(step, dist.get_rank()))
    return str(caught.value)


def test_a_lost_shard_is_an_error_that_names_its_rank() -> None:
    results = ranks.run(without_a_shard, 3, dead=(1,))
    assert "rank 1" in results[0]
    assert "rank 1" in results[2]
