"""The tensors of a model that is sharded by FSDP2, and which parts of them this process has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from pccl.distributed._dtensors import box_of, entries, local_part
from pccl.distributed._training import outlines, take_outlines
from pccl.state._entries import COMPILED
from pccl.state._snapshots.boxes import ShardMap, Slice


class ShardedState:
    """The tensors of a training by name, and what each member has of them."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.shards = 0
        """The size of the last dimension of meshes of two (HSDP), as the run has begun with it; 0: meshes have one dimension."""
        for name, parameter in model.named_parameters():
            mesh: Any = getattr(parameter, "device_mesh", None)
            placements: Any = getattr(parameter, "placements", ())
            if mesh is None or mesh.ndim == 1:
                continue
            if mesh.ndim > 2 or not placements[0].is_replicate():
                text = f"a mesh of {mesh.ndim} dimensions, {mesh.mesh_dim_names}, with the placements {placements}"
                raise TypeError(f"parameter {name} has {text}; Elastic takes one dimension, or replicas along the first of two")
            if self.shards not in (0, mesh.size(1)):
                raise TypeError(f"parameter {name} is sharded {mesh.size(1)} times, and others {self.shards} times; use one mesh")
            self.shards = mesh.size(1)
        if not any(isinstance(module, FSDPModule) for module in model.modules()):
            raise TypeError("the model has sharded parameters, but not by fully_shard, which Elastic needs")
        self._model = model
        self._optimizers = optimizers

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and states of optimizers, sharded or whole; buffers are each member's own."""
        buffers = {f"model.{name.replace(COMPILED, '')}" for name, _ in self._model.named_buffers()}
        return {name: one for name, one in entries(self._model, self._optimizers).items() if name not in buffers}

    def local(self) -> tuple[dict[str, torch.Tensor], ShardMap]:
        """The local parts, and which these are."""
        parts: dict[str, torch.Tensor] = {}
        shards: ShardMap = {}
        for name, tensor in self.tensors().items():
            part = local_part(tensor)
            parts[name] = part.contiguous()
            dtype = str(part.dtype).removeprefix("torch.")
            shards[name] = Slice(dtype, part.element_size(), tuple(tensor.shape), box_of(tensor))
        return parts, shards

    def outline(self) -> dict[str, Any]:
        """What a process without it needs to make the same tensors, and the numbers beside them."""
        return {
            "trained": {name: one.requires_grad for name, one in self._model.named_parameters()},
            "optimizers": outlines(self._optimizers, -1),
        }

    def take_outline(self, outline: Mapping[str, Any]) -> None:
        """Makes the optimizers' states as they are in `outline`; tensors have any content. ValueError: other models."""
        parameters = dict(self._model.named_parameters())
        if parameters.keys() != outline["trained"].keys():
            name = min(parameters.keys() ^ outline["trained"].keys())
            raise ValueError(f"parameter {name} is not on all members: make the same model on all")
        for name, trained in outline["trained"].items():
            parameters[name].requires_grad_(trained)
        take_outlines(self._optimizers, outline["optimizers"])
