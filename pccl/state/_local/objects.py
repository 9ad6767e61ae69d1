"""The state of objects with `state_dict`, and of modules, as plain trees."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from pccl._exports import publish

COMPILED = "_orig_mod."
"""What `torch.compile` puts into names. Peers with and without it may train together."""


def has_state(value: object) -> bool:
    """True if `value` has the methods `state_dict` and `load_state_dict`, or is a random number generator."""
    return (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")) or _generator(value) is not None


def object_state(value: Any) -> dict[str, Any]:
    """The `state_dict` of an object or the state of a generator, and the numbers of the optimizers that the object steers.

    A schedule computes the next learning rate from the one in its optimizer, which is not in the `state_dict` of the schedule.
    """
    generator = _generator(value)
    state = value.state_dict() if generator is None else generator[0](value)
    return {"state": state, "groups": [groups_of(optimizer) for optimizer in _optimizers(value)]}


def load_object_state(value: Any, told: Mapping[str, Any], name: str) -> None:
    """Loads what `object_state` returned at another peer. ValueError: the object here is another one; `name` tells which."""
    optimizers = _optimizers(value)
    if len(optimizers) != len(told["groups"]):
        raise ValueError(f"{name} changes {len(optimizers)} optimizers here, and {len(told['groups'])} on the other peers")
    generator = _generator(value)
    if generator is None:
        value.load_state_dict(told["state"])
    else:
        generator[1](value, told["state"])
    for optimizer, groups in zip(optimizers, told["groups"], strict=True):
        load_groups(optimizer, groups, f"the optimizer of {name}")


_Generator = tuple[Callable[[Any], Any], Callable[[Any, Any], object]]


def _generator(value: object) -> _Generator | None:
    """How to get and set the state of a random number generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return lambda one: one.get_state(), lambda one, state: one.set_state(state)
    if isinstance(value, random.Random):
        return lambda one: one.getstate(), lambda one, state: one.setstate(state)
    inside = getattr(value, "bit_generator", None)  # NumPy's, which need not be imported
    if type(inside).__module__.startswith("numpy.random"):
        return lambda one: one.bit_generator.state, lambda one, state: setattr(one.bit_generator, "state", state)
    return None


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """All of the parameter groups but the parameters: learning rates, betas, weight decay and the like."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def load_groups(optimizer: Any, groups: list[dict[str, Any]], name: str) -> None:
    """Sets what `groups_of` returned at another peer. Tensors, such as a learning rate in one, are written in place."""
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"{name} has {len(optimizer.param_groups)} parameter groups here, and {len(groups)} on the other peers: "
            "make the same optimizer on all"
        )
    for group, other in zip(optimizer.param_groups, groups, strict=True):
        for key, value in other.items():
            own = group.get(key)
            if isinstance(own, torch.Tensor) and isinstance(value, torch.Tensor) and own.shape == value.shape:
                own.copy_(value)
            elif key != "params":
                group[key] = value


def _optimizers(value: Any) -> list[Any]:
    """The optimizers that an object refers to, such as a schedule or a wrapper of several; none for an optimizer itself."""
    found: list[Any] = []
    if not isinstance(value, nn.Module) and not hasattr(value, "param_groups"):
        _collect_optimizers(value, found, set(), DEPTH)
    return found


DEPTH = 4
"""How many references lead from an object to the optimizers that it steers, at most."""


def _collect_optimizers(value: Any, found: list[Any], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(getattr(value, "param_groups", None), list):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _collect_optimizers(one, found, seen, depth - 1)
    elif isinstance(value, dict):
        for one in value.values():
            _collect_optimizers(one, found, seen, depth - 1)
    elif not isinstance(value, (nn.Module, type, torch.Tensor)) and hasattr(value, "__dict__"):
        for one in vars(value).values():
            _collect_optimizers(one, found, seen, depth - 1)


def extra_states(module: nn.Module) -> dict[str, Any]:
    """What `get_extra_state` returns, by the name of each submodule that has one of its own."""
    return {name: one.get_extra_state() for name, one in stateful(dict(module.named_modules())).items()}


def stateful(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Those of the named modules that have a `get_extra_state` of their own."""
    plain = nn.Module.get_extra_state
    return {name: one for name, one in modules.items() if type(one).get_extra_state is not plain}


def load_extra_states(module: nn.Module, told: Mapping[str, Any]) -> None:
    """Passes to `set_extra_state` what `extra_states` returned at another peer. ValueError: the module here is another one."""
    modules = stateful(dict(module.named_modules()))
    if modules.keys() != told.keys():
        name = min(modules.keys() ^ told.keys())
        raise ValueError(f"the extra state of {name!r} is not in the models of all members; make the same model on all")
    for name, state in told.items():
        modules[name].set_extra_state(state)


publish(globals())
