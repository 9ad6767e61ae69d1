"""What a newcomer needs of a training: the tensors that all members hold alike, the rest by value, and DDP's buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pccl._state import SharedState
from pccl._types import TensorInfo
from pccl.state._module import _shareable
from pccl.state._objects import extra_states, groups_of, load_buffer, load_extra_states, load_groups

SMALL = 16
"""Elements; a tensor of an optimizer's state that has no more travels by value, such as the number of steps."""


class Training:
    """A model and its optimizers."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "full_tensor"):  # a DTensor
                raise TypeError(f"parameter {name} is sharded: a newcomer can only get what every member holds whole")
        for optimizer in optimizers:
            if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer
                raise TypeError(f"the state of a {type(optimizer).__name__} is sharded: no newcomer can get it from one member")
        self.model = model
        self.optimizers = optimizers

    # ---- by value ----

    def outline(self) -> dict[str, Any]:
        """All that is not in `entries`, and what that consists of."""
        return {
            "buffers": {name: buffer.detach().cpu() for name, buffer in self.model.named_buffers()},
            "extra": extra_states(self.model),
            "optimizers": [_outline_of(optimizer) for optimizer in self.optimizers],
        }

    def take(self, outline: dict[str, Any]) -> None:
        """At a newcomer: sets what is there by value, and makes room for the rest. ValueError: its training is another one."""
        buffers = dict(self.model.named_buffers())
        if buffers.keys() != outline["buffers"].keys():
            name = min(buffers.keys() ^ outline["buffers"].keys())
            raise ValueError(f"buffer {name!r} is not in the models of all members: all have to make the same model")
        for name, buffer in buffers.items():
            load_buffer(buffer, outline["buffers"][name], name)
        load_extra_states(self.model, outline["extra"])
        if len(self.optimizers) != len(outline["optimizers"]):
            raise ValueError(f"the others have {len(outline['optimizers'])} optimizers, and this process {len(self.optimizers)}")
        for optimizer, other in zip(self.optimizers, outline["optimizers"], strict=True):
            _take_outline(optimizer, other)

    # ---- alike on all members ----

    def share(self) -> Shared:
        """Parameters and large state of the optimizers, to be brought to the same bytes on all members."""
        tensors = {f"parameter/{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(_parameters(optimizer)):
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if _is_large(value):
                        tensors[f"optimizer {number}/{place}/{key}"] = value.detach()
        return Shared({name: tensor for name, tensor in tensors.items() if tensor.numel()})

    # ---- the wrapper ----

    def make_buckets_anew(self) -> None:
        """Gives DDP's reducers the buckets that a new one begins with: newcomers have no others."""
        for module in self.model.modules():
            if isinstance(module, DistributedDataParallel):
                _make_buckets_anew(module)


class Shared:
    """A shared state. Tensors that are not plain memory of this host are in it as copies."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        infos = [TensorInfo.from_torch(_shareable(self._plain(tensor)), name) for name, tensor in tensors.items()]
        self.state = SharedState(infos) if infos else None

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu and tensor.is_contiguous():
            return tensor
        copy = tensor.cpu().contiguous()
        if copy.data_ptr() == tensor.data_ptr():
            return copy
        self._copies.append((tensor, copy))
        return copy

    def restore(self) -> None:
        """Brings what the copies have received to where it belongs."""
        with torch.no_grad():
            for tensor, copy in self._copies:
                tensor.copy_(copy)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_large(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > SMALL


def _outline_of(optimizer: Optimizer) -> dict[str, Any]:
    """All that an optimizer holds; of large tensors, which are shared, the shape and the data type only."""
    states = []
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter, {})
        large = {key: (tuple(value.shape), value.dtype) for key, value in state.items() if _is_large(value)}
        states.append({"values": {key: value for key, value in state.items() if key not in large}, "large": large})
    return {"groups": groups_of(optimizer), "states": states}


def _take_outline(optimizer: Optimizer, outline: dict[str, Any]) -> None:
    parameters = list(_parameters(optimizer))
    if len(parameters) != len(outline["states"]):
        raise ValueError(
            f"the optimizer of the others has {len(outline['states'])} parameters, that of this process {len(parameters)}: "
            "all have to make the same optimizer"
        )
    load_groups(optimizer, outline["groups"], "the optimizer")
    for parameter, state in zip(parameters, outline["states"], strict=True):
        made = {key: _room(parameter, *large) for key, large in state["large"].items()} | state["values"]
        if made:
            optimizer.state[parameter] = made
        else:
            optimizer.state.pop(parameter, None)


def _room(parameter: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that is to be received."""
    if shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(shape, dtype=dtype, device=parameter.device)


def _make_buckets_anew(ddp: DistributedDataParallel) -> None:
    """What DDP does when it is constructed or unpickled, with the hooks that the program has given it."""
    inside: Any = ddp
    hook = inside.logger._get_ddp_logging_data().strs_map.get("comm_hook", "")
    parameters, sparse = inside._build_params_for_reducer()
    names = inside._build_debug_param_to_name_mapping(parameters)
    inside.reducer = inside.logger = None  # its buckets are freed, and its hooks leave the parameters
    inside._ddp_init_helper(parameters, sparse, names, inside.static_graph)
    inside._has_rebuilt_buckets = False
    if inside.static_graph:
        inside._static_graph_delay_allreduce_enqueued = False
        inside.reducer._set_static_graph()
        inside.logger._set_static_graph()
    for function, state in inside._comm_hooks:
        inside.logger._set_comm_hook_name(getattr(function, "__qualname__", repr(function)))
        dist._register_comm_hook(inside.reducer, state, function)
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        if hook == str(kind):
            inside._register_builtin_comm_hook(kind)
