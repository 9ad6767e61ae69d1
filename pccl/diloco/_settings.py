"""The settings of a run: numbers that all members hold alike, and in which a joiner's own give way."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch

Setting = float | Callable[[int], float]
"""A number, or a function of the number of the outer step, from 1 on."""

NAMES = ("outer_lr", "outer_momentum", "sync_every", "sync_seconds", "peers")

ENTRY = "settings"
"""Their name in the shared state."""


class Settings:
    """The values by name, in one tensor. `optimizer`: an outer optimizer has the learning rate and the momentum."""

    def __init__(self, given: Mapping[str, Setting], *, optimizer: bool) -> None:
        self._optimizer = optimizer
        self._functions = {name: one for name, one in given.items() if callable(one)}
        values = [checked(name, one(1) if callable(one) else one) for name, one in given.items()]
        self.tensor = torch.tensor(values, dtype=torch.float64, device="cpu")

    def __getitem__(self, name: str) -> float:
        return float(self.tensor[NAMES.index(name)])

    def __setitem__(self, name: str, value: float) -> None:
        self.tensor[NAMES.index(name)] = value

    def set(self, name: str, value: float) -> None:
        """Sets a value that this peer may change. RuntimeError: an outer optimizer or a function of the outer step has it."""
        if self._optimizer:
            raise RuntimeError(
                f"{name} cannot be set with an outer_optimizer; change that optimizer on all members after the same outer step"
            )
        if name in self._functions:
            raise RuntimeError(f"{name} is a function of the outer step, and cannot be set")
        self[name] = checked(name, value)

    def follow(self, outer_step: int) -> None:
        """Sets what is a function of the number of the outer step."""
        for name, function in self._functions.items():
            self[name] = checked(name, function(outer_step))

    def changes(self, others: Mapping[str, float]) -> list[tuple[str, float]]:
        """Names and own values of the plain numbers that differ from those of others."""
        return [(name, self[name]) for name, one in others.items() if self[name] != one and name not in self._functions]

    def as_dict(self) -> dict[str, float]:
        """The values by name."""
        return dict(zip(NAMES, self.tensor.tolist(), strict=True))

    def terms(self) -> dict[str, Any]:
        """What all members must have alike: which settings are functions."""
        return dict.fromkeys(self._functions, "a function")


def require_whole(name: str, value: object) -> None:
    """TypeError: an argument of a class is no whole number."""
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def checked(name: str, given: float) -> float:
    """`given`, in whatever form numbers have. ValueError: fp32 does not hold it, or it is less than 0."""
    try:
        value = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name} must be a non-negative number, not {given!r}")
    return value
