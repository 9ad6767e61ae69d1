"""What a peer saves of a run, so that it goes on after all peers have died."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pccl.diloco._state import State, buffers, frozen_parameters
from pccl.state import extra_states, load_extra_states, load_object_state, object_state
from pccl.state._entries import resize

if TYPE_CHECKING:
    from pccl._peer.shared_state import SharedState
    from pccl.diloco._average import Averager


def outer_tensors(state: SharedState, without: str) -> dict[str, torch.Tensor]:
    """The entries of a shared state by name, except the one called `without`."""
    state._collect("state_dict")
    return {info.name: info._owner for info in state._tensor_infos if info.name != without}


def require_same(own: Mapping[str, Any], told: Mapping[str, Any], what: str) -> None:
    """ValueError names the first tensor or array that has another name, shape or data type in the checkpoint."""
    _require_names(own, told, what)
    for name, tensor in own.items():
        if (tensor.shape, tensor.dtype) != (told[name].shape, told[name].dtype):
            here, there = (f"{one.dtype} of shape {tuple(one.shape)}" for one in (tensor, told[name]))
            raise ValueError(f"{what} {name!r} is {here}, and {there} in the checkpoint")


def model_state(model: nn.Module) -> dict[str, Any]:
    """Frozen parameters, buffers and extra states: what outer parameters lack of a model."""
    return {"tensors": _unshared(model), "extra": extra_states(model)}


def require_model(model: nn.Module, told: Mapping[str, Any]) -> None:
    """ValueError names the tensor that only the model or only the checkpoint has."""
    _require_names(_unshared(model), told["tensors"], "frozen parameter or buffer")


@torch.no_grad()
def load_model_state(model: nn.Module, told: Mapping[str, Any]) -> None:
    """Loads what `model_state` returned. Buffers take over the shape that they have in the checkpoint."""
    for name, tensor in _unshared(model).items():
        other = told["tensors"][name]
        if tensor.shape != other.shape:
            resize(tensor, other.shape, name)
        tensor.copy_(other)
    load_extra_states(model, told["extra"])


def user_state(state: State) -> dict[str, Any]:
    return {
        "values": dict(state._shared._tensors),
        "objects": {name: object_state(value) for name, value in state.objects.items()},
    }


def require_user_state(state: State, told: Mapping[str, Any]) -> None:
    """ValueError names the value that only this process or only the checkpoint has, or whose shape or data type differs."""
    own = user_state(state)
    require_same(own["values"], told["values"], "state")
    _require_names(own["objects"], told["objects"], "state")


@torch.no_grad()
def load_user_state(state: State, told: Mapping[str, Any]) -> None:
    for name, value in state.objects.items():
        load_object_state(value, told["objects"][name], f"object {name!r} of the state")
    for name, value in state._shared._tensors.items():
        value[...] = told["values"][name]


def residuals(averagers: list[Averager]) -> list[dict[str, Any]]:
    return [{"left out": one.residual, "weight": one.residual_weight} for one in averagers]


def load_residuals(averagers: list[Averager], told: list[dict[str, Any]] | None) -> None:
    """Loads what `residuals` returned. A residual that the checkpoint lacks, or of another size, begins as zeros."""
    for at, averager in enumerate(averagers):
        if told is not None and at < len(told):
            averager.load_residual(told[at]["left out"], told[at]["weight"])
        else:
            averager.load_residual(None, 0.0)


def copied(tree: Any) -> Any:
    """A copy of a tree, with tensors on the CPU, that later steps do not change."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(value) for value in tree) if type(tree) in (list, tuple) else copy.deepcopy(tree)
    return copy.deepcopy(tree)


def _unshared(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in (frozen_parameters(model) | buffers(model)).items()}


def _require_names(own: Mapping[str, Any], told: Mapping[str, Any], what: str) -> None:
    if own.keys() != told.keys():
        name = min(own.keys() ^ told.keys())
        where = "here only" if name in own else "in the checkpoint only"
        raise ValueError(
            f"{what} {name!r} is {where}: make the same model, optimizers and state as the program that saved the checkpoint"
        )
