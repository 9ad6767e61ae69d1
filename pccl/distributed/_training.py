"""What a newcomer needs of a training, what a checkpoint of it holds, and DDP's buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pccl.state._entries import COMPILED, Entries
from pccl.state._local.agreement import Terms, joined, tensors_of, terms_of_model, terms_of_optimizers
from pccl.state._local.objects import extra_states, groups_of, load_extra_states, load_groups

SMALL = 16
"""Elements; a tensor of an optimizer's state that has no more travels by value, such as the number of steps."""


def listed(optimizers: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers or ())


class Training:
    """A model and its optimizers."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.is_sharded = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())  # DTensors
        for optimizer in optimizers:
            if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer
                raise TypeError(
                    f"the state of a {type(optimizer).__name__} is sharded: a member that is lost takes its part along, and a "
                    "newcomer can only copy what every member holds whole; use the optimizer itself, or FSDP2 with Snapshots"
                )
        self.model = model
        self.optimizers = optimizers

    # ---- alike on all members ----

    def terms(self, sharded: Mapping[str, torch.Tensor] | None) -> Terms:
        """What has to be the same on all members. `sharded`: the parameters of a sharded model, by name."""
        modules = dict(self.model.named_modules())
        parameters = sharded or tensors_of(modules, "_parameters")
        names = {parameter: name for name, parameter in parameters.items()}
        states = {
            f"state of {names.get(parameter)} in optimizer {number}": sorted(map(str, optimizer.state[parameter]))
            for number, optimizer in enumerate(self.optimizers)
            for parameter in _parameters(optimizer)
            if optimizer.state.get(parameter)
        }
        of_optimizers = terms_of_optimizers(self.optimizers, names)
        return joined([terms_of_model(modules, parameters), of_optimizers, Terms({}, states)])

    def outline(self) -> dict[str, Any]:
        """What a newcomer needs in order to make the members' `entries`, and the small values beside them."""
        return {
            "trained": {name: parameter.requires_grad for name, parameter in self._parameters().items()},
            "optimizers": outlines(self.optimizers, SMALL),
        }

    def take_outline(self, outline: dict[str, Any]) -> None:
        """At a newcomer: sets what is there by value, and makes room for the rest. ValueError: its training is another one."""
        parameters = self._parameters()
        for name, trained in outline["trained"].items():  # the members have unfrozen layers since
            parameters[name].requires_grad_(trained)
        take_outlines(self.optimizers, outline["optimizers"])

    def entries(self) -> Entries:
        """Parameters and large state of the optimizers, to be brought to the same bytes on all members."""
        tensors = {name: parameter.detach() for name, parameter in self._parameters().items()}
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(_parameters(optimizer)):
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    if _is_large(value, SMALL):
                        tensors[f"optimizer {number}/{place}/{key}"] = value.detach()
        return Entries(tensors)

    def _parameters(self) -> dict[str, torch.Tensor]:
        return {f"parameter/{name.replace(COMPILED, '')}": one for name, one in self.model.named_parameters()}

    # ---- each member's own ----

    def own(self) -> dict[str, Any]:
        """Buffers, and the extra state of modules."""
        buffers = {name.replace(COMPILED, ""): buffer.detach() for name, buffer in self.model.named_buffers()}
        return {"buffers": buffers, "extra": extra_states(self.model)}

    @torch.no_grad()
    def take_own(self, told: dict[str, Any]) -> None:
        """At a newcomer: loads what `own` returned at a member. ValueError: its model is another one."""
        buffers = {name.replace(COMPILED, ""): buffer for name, buffer in self.model.named_buffers()}
        Entries(buffers).take_layout(Entries(told["buffers"]).layout())
        for name, buffer in buffers.items():
            buffer.copy_(told["buffers"][name])
        load_extra_states(self.model, told["extra"])

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The `state_dict` of the model without its wrapper, and those of the optimizers."""
        return {
            "model": dict(_unwrapped(self.model).state_dict()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned. ValueError or RuntimeError: it is that of another training."""
        if len(self.optimizers) != len(state["optimizers"]):
            raise ValueError(f"the checkpoint has {len(state['optimizers'])} optimizers, and this process {len(self.optimizers)}")
        _unwrapped(self.model).load_state_dict(state["model"])
        for optimizer, other in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(other)

    # ---- the wrapper ----

    def make_buckets_anew(self) -> None:
        """Gives DDP's reducers the buckets that a new one begins with: newcomers have no others."""
        for module in self.model.modules():
            if isinstance(module, DistributedDataParallel):
                _make_buckets_anew(module)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and `torch.compile`, so that checkpoints fit any wrapper."""
    while True:
        inside = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_large(value: object, small: int) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > small


def outlines(optimizers: Sequence[Optimizer], small: int) -> list[dict[str, Any]]:
    """All that optimizers hold. Tensors of more than `small` elements are shared, so of them only the shape and the data type."""
    found = []
    for optimizer in optimizers:
        states = []
        for parameter in _parameters(optimizer):
            state = optimizer.state.get(parameter, {})
            large = {key: (tuple(value.shape), value.dtype) for key, value in state.items() if _is_large(value, small)}
            states.append({"values": {key: value for key, value in state.items() if key not in large}, "large": large})
        found.append({"groups": groups_of(optimizer), "states": states})
    return found


def take_outlines(optimizers: Sequence[Optimizer], told: Sequence[Mapping[str, Any]]) -> None:
    """Makes the states of optimizers as `outlines` tells; large tensors have any content. Members have compared their terms."""
    for optimizer, outline in zip(optimizers, told, strict=True):
        load_groups(optimizer, outline["groups"], "the optimizer")
        for parameter, state in zip(_parameters(optimizer), outline["states"], strict=True):
            own = optimizer.state.pop(parameter, {})
            made = {key: _room(own.get(key), parameter, *large) for key, large in state["large"].items()} | state["values"]
            if made:
                optimizer.state[parameter] = made


def _room(own: object, parameter: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that is to be received: the own one, if it fits."""
    if isinstance(own, torch.Tensor) and tuple(own.shape) == shape and own.dtype == dtype:
        return own
    if shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros(shape, dtype=dtype, device=parameter.device if shape else "cpu")


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
