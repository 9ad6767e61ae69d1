"""The state of objects with `state_dict`, and of modules, as plain trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def has_state(value: object) -> bool:
    """True if `value` has the methods `state_dict` and `load_state_dict`."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def object_state(value: Any) -> dict[str, Any]:
    """The `state_dict` of an object, and the numbers of the optimizers that it steers.

    A schedule computes the next learning rate from the one in its optimizer, which is not in the `state_dict` of the schedule.
    """
    return {"state": value.state_dict(), "groups": [groups_of(optimizer) for optimizer in _optimizers(value)]}


def load_object_state(value: Any, told: Mapping[str, Any], name: str) -> None:
    """Loads what `object_state` returned at another peer. ValueError: the object here is another one; `name` tells which."""
    optimizers = list(_optimizers(value))
    if len(optimizers) != len(told["groups"]):
        raise ValueError(f"{name} steers {len(optimizers)} optimizers here, and {len(told['groups'])} at the other peers")
    value.load_state_dict(told["state"])
    for optimizer, groups in zip(optimizers, told["groups"], strict=True):
        load_groups(optimizer, groups, f"the optimizer of {name}")


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """All of the parameter groups but the parameters: learning rates, betas, weight decay and the like."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def load_groups(optimizer: Any, groups: list[dict[str, Any]], name: str) -> None:
    """Sets what `groups_of` returned at another peer. Tensors, such as a learning rate in one, are written in place."""
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"{name} has {len(optimizer.param_groups)} parameter groups here, and {len(groups)} at the other peers: "
            "all have to make the same optimizer"
        )
    for group, other in zip(optimizer.param_groups, groups, strict=True):
        for key, value in other.items():
            own = group.get(key)
            if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and own.shape == value.shape:
                own.copy_(value)
            elif key != "params":
                group[key] = value


def _optimizers(value: Any) -> Iterator[Any]:
    """The optimizers that a schedule, or a wrapper of one, steers; none for an optimizer itself."""
    if hasattr(value, "param_groups"):
        return
    found = getattr(value, "optimizer", None)
    several = getattr(value, "optimizers", None)
    for one in several if isinstance(several, (list, tuple)) else [found]:
        if hasattr(one, "param_groups"):
            yield one


def extra_states(module: nn.Module) -> dict[str, Any]:
    """What `get_extra_state` returns, by the name of each submodule that has one of its own."""
    return {
        name: one.get_extra_state()
        for name, one in module.named_modules()
        if type(one).get_extra_state is not nn.Module.get_extra_state
    }


def load_extra_states(module: nn.Module, told: Mapping[str, Any]) -> None:
    """Passes to `set_extra_state` what `extra_states` returned at another peer. ValueError: the module here is another one."""
    modules = dict(module.named_modules())
    own = {name for name, one in modules.items() if type(one).get_extra_state is not nn.Module.get_extra_state}
    if own != told.keys():
        name = min(own ^ told.keys())
        raise ValueError(f"the extra state of {name!r} is not in the models of all members: all have to make the same model")
    for name, state in told.items():
        modules[name].set_extra_state(state)


@torch.no_grad()
def load_buffer(buffer: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Copies the members' buffer into that of a newcomer, which takes over its shape. ValueError: the data types differ."""
    if buffer.dtype != other.dtype:
        raise ValueError(f"buffer {name!r} is {buffer.dtype} here, and {other.dtype} at the other members")
    if buffer.shape != other.shape:
        try:
            buffer.resize_(other.shape)
        except RuntimeError as error:
            shapes = f"has the shape {tuple(buffer.shape)} here, and {tuple(other.shape)} at the other members"
            raise ValueError(f"buffer {name!r} {shapes}: {error}") from None
    buffer.copy_(other)
