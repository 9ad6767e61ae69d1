"""Trees and their tensors apart: the tensors travel, or are saved, as entries with names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from pccl.state._tree import allow


class _Place:
    """Stands for a tensor in a tree: the name of its entry."""

    def __init__(self, name: str) -> None:
        self.name = name


allow(_Place, lambda place: place.name, lambda name: _Place(str(name)), name="tensor at")

Places = dict[str, tuple[tuple[str, ...], torch.Tensor]]
"""Tensors by name, each with the keys that lead to it. The name is the keys joined with dots."""


def without_tensors(tree: Any, *, least_bytes: int = 0, reserved: str = "") -> tuple[Any, Places]:
    """Returns `tree` with its tensors of `least_bytes` or more replaced by their places, and the places.

    It looks for them in dicts, lists and tuples.
    No two names are the same or begin with `reserved`: the last key gets a "'" at its end where they would be.
    """
    places: Places = {}

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if kind in (dict, OrderedDict):
            return kind((key, walk(one, (*path, str(key)))) for key, one in value.items())
        if kind in (list, tuple):
            return kind(walk(one, (*path, str(place))) for place, one in enumerate(value))
        if not isinstance(value, torch.Tensor) or value.numel() * value.element_size() < least_bytes:
            return value
        name = ".".join(path)
        while name in places or name.split(".")[0] == reserved:
            path = (name + "'",)
            name = path[0]
        places[name] = path, value
        return _Place(name)

    return walk(tree, ()), places


def with_tensors(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns the tree of which `without_tensors` made `tree`. KeyError: a tensor is missing."""
    kind = type(tree)
    if kind in (dict, OrderedDict):
        return kind((key, with_tensors(one, tensors)) for key, one in tree.items())
    if kind in (list, tuple):
        return kind(with_tensors(one, tensors) for one in tree)
    return tensors[tree.name] if kind is _Place else tree
