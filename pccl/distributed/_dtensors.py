"""The tensors of a training by name, whether sharded or not, and which part of them this process has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

from pccl.distributed._fsdp import fsdp_states, internals
from pccl.distributed._training import listed, outlines, take_outlines
from pccl.state._entries import COMPILED
from pccl.state._snapshots.boxes import Box, ShardMap, Slice
from pccl.state._snapshots.images import hash_slice


def entries(model: nn.Module, optimizers: Optimizer | Iterable[Optimizer] | None = None) -> dict[str, torch.Tensor]:
    """Returns all parameters, buffers and tensors of optimizer states by name; sharded ones are DTensors.

    The names are the same on all ranks, and before and after `remesh`: "model.layer.weight", "optim0.layer.weight.exp_avg". A
    parameter that several modules share has one name. The tensors are those of the training, not copies. ValueError: an optimizer
    has a parameter that the model lacks.
    """
    found: dict[str, torch.Tensor] = {f"model.{name}": parameter for name, parameter in parameters_of(model).items()}
    found.update((f"model.{plain(name)}", buffer) for name, buffer in model.named_buffers())
    for state in states_of_optimizers(model, listed(optimizers)):
        found[state.name] = state.container[state.key]
    return found


def box_of(tensor: torch.Tensor) -> Box:
    """Returns which part of a tensor this process has: of a plain tensor all.

    TypeError: a placement of the DTensor is neither Shard nor Replicate. ValueError: this process is not in its mesh.
    """
    if not isinstance(tensor, DTensor):
        return Box((0,) * tensor.ndim, tuple(tensor.shape))
    return box(tuple(tensor.shape), tensor.device_mesh, tensor.placements)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part that `box_of` describes, in the memory of the tensor: of a plain tensor all."""
    found: torch.Tensor = tensor.detach()
    return found.to_local() if isinstance(found, DTensor) else found


def box(shape: tuple[int, ...], mesh: DeviceMesh, placements: Sequence[Placement]) -> Box:
    place = mesh.get_coordinate()
    if place is None:
        raise ValueError(f"this process, rank {dist.get_rank()}, is not in {mesh}")
    offset, local = [0] * len(shape), list(shape)
    for number, placement in enumerate(placements):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard:
            raise TypeError(f"a tensor placed by {type(placement).__name__} has no slice; only Shard and Replicate have one")
        dim = placement.dim % len(shape)
        chunk = -(-local[dim] // mesh.size(number))
        start = min(local[dim], chunk * place[number])
        offset[dim] += start
        local[dim] = min(local[dim] - start, chunk)
    return Box(tuple(offset), tuple(local))


def plain(name: str) -> str:
    return name.replace(COMPILED, "")


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name. In the middle of a step modules may have whole ones: then those that optimizers have."""
    sharded = {}
    for state in fsdp_states(model):
        for group in state._fsdp_param_groups:
            for one in group.fsdp_params:
                sharded[one._module_info.module._parameters[one._module_info.param_name]] = sharded_parameter(one)
    return {plain(name): sharded.get(parameter, parameter) for name, parameter in model.named_parameters()}


def sharded_parameter(one: Any) -> nn.Parameter:
    """The parameter of an FSDPParam as optimizers have it; a program may have replaced it on the module since."""
    there = one._module_info.module._parameters[one._module_info.param_name]
    found: nn.Parameter = there if one.sharded_state == internals().ShardedState.SHARDED else one.sharded_param
    return found


class _State(NamedTuple):
    """A tensor of an optimizer's state."""

    name: str
    container: Any
    """The dictionary or list that has it under `key`."""
    key: Any
    parameter: nn.Parameter
    parameter_name: str


def states_of_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[_State]:
    names = {parameter: name for name, parameter in parameters_of(model).items()}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in names:
                    raise ValueError(
                        f"optimizer {number} has a parameter of shape {tuple(parameter.shape)} that is not in the model; make "
                        "optimizers after fully_shard, with parameters of the model only"
                    )
                name = names[parameter]
                for path, container, key in _tensors_in(optimizer.state.get(parameter, {}), f"optim{number}.{name}"):
                    yield _State(path, container, key, parameter, name)


def _tensors_in(container: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    found = enumerate(container) if isinstance(container, list) else sorted(container.items(), key=lambda item: str(item[0]))
    for key, value in found:
        if isinstance(value, torch.Tensor):
            yield f"{path}.{key}", container, key
        elif isinstance(value, (dict, list)):
            yield from _tensors_in(value, f"{path}.{key}")


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
        self.trees: Mapping[str, DTensor] = {}
        """DTensors of values, by name."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and states of optimizers, sharded or whole, and sharded values; buffers are each member's own."""
        buffers = {f"model.{plain(name)}" for name, _ in self._model.named_buffers()}
        found = {name: one for name, one in entries(self._model, self._optimizers).items() if name not in buffers}
        return {**found, **self.trees}

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

    def are_replicas(self) -> bool:
        """Whether each part of the model is at two members or more."""
        placed = [one for one in self._model.parameters() if isinstance(one, DTensor)]
        return all(
            any(p.is_replicate() and one.device_mesh.size(dim) > 1 for dim, p in enumerate(one.placements)) for one in placed
        )

    def forms(self) -> tuple[int, ...]:
        """How many entries the state of each optimizer has: more after its first step, and when it begins to keep more."""
        sized = (dict, list)
        return tuple(sum(len(one) for one in some.state.values() if isinstance(one, sized)) for some in self._optimizers)

    def described(self) -> dict[str, str]:
        """By tensor: its type and shape, and the hash of a plain one that an optimizer keeps; the same on all members.

        TypeError, ValueError: a snapshot cannot keep a tensor.
        """
        parts, shards = self.local()
        found = {name: f"{one.dtype} of shape {one.whole}" for name, one in shards.items()}
        for name, tensor in self.tensors().items():
            if name.startswith("optim") and not isinstance(tensor, DTensor):
                found[name] += f" with the hash {hash_slice(name, shards[name], parts[name].cpu()).low:016x}"
        return found

    def outline(self) -> dict[str, Any]:
        """What a process without it needs to make the same tensors, and the numbers beside them."""
        return {
            "trained": {name: one.requires_grad for name, one in self._model.named_parameters()},
            "optimizers": outlines(self._optimizers, -1),
        }

    def take_outline(self, outline: Mapping[str, Any]) -> None:
        """Makes the optimizers' states as they are in `outline`; tensors have any content. Members have compared their models."""
        parameters = dict(self._model.named_parameters())
        for name, trained in outline["trained"].items():
            parameters[name].requires_grad_(trained)
        take_outlines(self._optimizers, outline["optimizers"])
