"""Repeats a framework's gather that lost a member."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from pccl.distributed import PeerLostError

P = ParamSpec("P")
T = TypeVar("T")


def retry_after_loss(function: Callable[P, T]) -> Callable[P, T]:
    """Returns `function`, repeated whenever it raises PeerLostError.

    All survivors get the error from the same call, so all of them repeat it. The world size bounds the number of repetitions,
    since each follows the loss of a member. A function that was wrapped already is returned as it is.
    """
    if getattr(function, "_retries_after_loss", False):
        return function

    @functools.wraps(function)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(dist.get_world_size() if dist.is_initialized() else 0):
            try:
                return function(*args, **kwargs)
            except PeerLostError:
                continue
        return function(*args, **kwargs)

    repeated._retries_after_loss = True  # type: ignore[attr-defined]
    return repeated


def retry_all_after_loss(module: Any, *names: str) -> None:
    """Puts `retry_after_loss` around the functions of these names that a module has."""
    for name in names:
        if hasattr(module, name):
            setattr(module, name, retry_after_loss(getattr(module, name)))
