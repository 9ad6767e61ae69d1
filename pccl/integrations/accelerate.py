"""Keeps accelerate's rank and number of processes right while the membership changes."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import safetensors.torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import operations

import pccl.distributed
from pccl.integrations import _replay
from pccl.integrations._retry import retry_all_after_loss

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
    retry_all_after_loss(operations, *_GATHERS)
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


def adapt() -> _replay.Replay:
    """Lets restarted processes join a run of a script that calls nothing of pccl, with fixed membership (docs/fixed.md).

    While such a process gets to the place of the others, it is no main process, and writes no checkpoints and no logs.
    """
    run = _replay.installed()

    def count(accelerator: Accelerator, output_dir: str | None = None, *args: Any, **kwargs: Any) -> str | None:
        if accelerator.project_configuration.automatic_checkpoint_naming:
            accelerator.project_configuration.iteration += 1
        return output_dir

    _replay.instead(run, Accelerator, "save_state", count)
    _replay.silence(run, Accelerator, "save_model", "save", "log")
    _replay.silence(run, safetensors.torch, "save_file")
    for name in ("is_main_process", "is_local_main_process", "is_last_process"):
        _be_false(run, name)
    return run


def _be_false(run: _replay.Replay, name: str) -> None:
    """Lets a property of accelerate's state be False while this process catches up."""
    original = getattr(PartialState, name).fget
    setattr(PartialState, name, property(lambda self: not run.replays() and original(self)))
