"""DTensors in the values of a training, such as averages of its parameters: they are divided as the states of optimizers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

from pccl.distributed._dtensors import box
from pccl.distributed._fsdp import fsdp_states

DEPTH = 6
"""How many references lead from a value to a DTensor, at most."""


def reached(values: Mapping[str, Any], model: nn.Module) -> tuple[dict[str, DTensor], list[nn.Module]]:
    """The DTensors of values outside of the model by their places, and the modules in them that `fully_shard` has sharded."""
    tensors: dict[str, DTensor] = {}
    modules: list[nn.Module] = []
    seen = {id(one) for one in model.modules()}

    def walk(value: Any, path: str, depth: int) -> None:
        if id(value) in seen or depth > DEPTH or isinstance(value, (Optimizer, type)):
            return
        seen.add(id(value))
        inside: Any = ()
        if isinstance(value, DTensor):
            tensors[path] = value
        elif isinstance(value, nn.Module):
            if fsdp_states(value):
                modules.append(value)
            else:
                inside = [*value.named_parameters(), *value.named_buffers()]
        elif isinstance(value, dict):
            inside = value.items()
        elif isinstance(value, (list, tuple)):
            inside = enumerate(value)
        elif hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):
            inside = vars(value).items()
        for key, one in inside:
            walk(one, f"{path}.{key}", depth + 1)

    for name, value in values.items():
        walk(value, name, 0)
    return tensors, modules


def outline_of(trees: Mapping[str, DTensor]) -> dict[str, Any]:
    """What a process without them needs to make them: types, shapes and the dimension by which each is sharded; -1: by none."""
    dims = {name: [one.dim for one in tensor.placements if isinstance(one, Shard)] for name, tensor in trees.items()}
    return {name: [tensor.dtype, list(tensor.shape), *(dims[name] or [-1])[:1]] for name, tensor in trees.items()}


def fitted(outline: Mapping[str, Sequence[Any]], own: Mapping[str, DTensor], model: nn.Module) -> dict[str, DTensor]:
    """The DTensors of an outline on the mesh of the model: the own ones that fit, else new ones with any content."""
    like = next(one for one in model.parameters() if isinstance(one, DTensor))
    mesh, device = like.device_mesh, like.to_local().device
    found: dict[str, DTensor] = {}
    for name, (dtype, shape, dim) in outline.items():
        there = own.get(name)
        if there is not None and there.dtype == dtype and list(there.shape) == shape and there.device_mesh == mesh:
            found[name] = there
            continue
        placed: list[Placement] = [Replicate()] * mesh.ndim
        if dim >= 0:
            placed[-1] = Shard(dim)
        local = torch.zeros(box(tuple(shape), mesh, placed).shape, dtype=dtype, device=device)
        stride = torch.empty(shape, device="meta").stride()
        found[name] = DTensor.from_local(local, mesh, placed, run_check=False, shape=torch.Size(shape), stride=stride)
    return found
