"""Training with `fully_shard`, with DistributedDataParallel and in one process, for tests on the CPU and at a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 3


class Trained(NamedTuple):
    """What is left of a training."""

    whole: dict[str, torch.Tensor]
    """The parameters, those of a sharded model as well."""
    losses: list[float]
    """Of this process before each step."""
    shards: list[tuple[int, ...]]
    """The shapes of what this process has of them."""


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 1))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model: nn.Module, inputs: Callable[[int], torch.Tensor]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(inputs(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def reference(size: int, device: str = "cpu") -> Trained:
    model = net().to(device)
    losses = train(model, lambda step: torch.cat([batch(step, rank) for rank in range(size)]).to(device))
    return Trained(_copied(model.state_dict()), losses, [])


def sharded(replicas: int, device: str = "cpu") -> Trained:
    size = dist.get_world_size()
    if replicas == 1:
        mesh = init_device_mesh(device, (size,))
    else:
        mesh = init_device_mesh(device, (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))
    model = net().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, lambda step: batch(step, dist.get_rank()).to(device))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    shards: list[Any] = list(model.parameters())  # DTensors
    return Trained(_copied(cast(Any, whole)), losses, [tuple(shard.to_local().shape) for shard in shards])


def replicated(device: str = "cpu") -> Trained:
    """With so small buckets that there are several."""
    model = net().to(device)
    parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    losses = train(parallel, lambda step: batch(step, dist.get_rank()).to(device))
    return Trained(_copied(model.state_dict()), losses, [])


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
