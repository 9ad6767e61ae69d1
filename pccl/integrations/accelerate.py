"""Keeps accelerate's rank and number of processes right while the membership changes."""

from __future__ import annotations

import os
from typing import TypeVar

import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import operations

import pccl.distributed
from pccl.integrations._retry import retry_after_loss

_GATHERS = ("_gpu_gather", "_gpu_gather_object")
"""What all gathers of accelerate call, and look up in their module each time."""

T = TypeVar("T")


def follow(accelerator: T) -> T:
    """Keeps `num_processes` and `process_index` of accelerate equal to those of the process group. Returns `accelerator`.

    Call it right after `Accelerator(...)`, before `prepare`. From then on every Accelerator of this process tells the rank and
    the world size of the moment, `reduce(..., "mean")` divides by the members that are left, and `gather` is repeated among the
    survivors when a member is lost. `is_main_process` moves to the next rank when rank 0 is lost.

    In a process that is to join a running job, data loaders that are prepared before it has joined get the share of the rank
    that the launcher gave to it.
    """
    for name in _GATHERS:
        if hasattr(operations, name):
            setattr(operations, name, retry_after_loss(getattr(operations, name)))
    if pccl.distributed.is_joining():
        _set(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    else:
        update()
    pccl.distributed.on_change(lambda change: update())
    return accelerator


def update() -> None:
    """Copies the rank and the world size of the process group into accelerate's state."""
    if dist.is_initialized():
        _set(dist.get_rank(), dist.get_world_size())


def _set(rank: int, size: int) -> None:
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        if "num_processes" in state:
            state["num_processes"], state["process_index"] = size, rank
