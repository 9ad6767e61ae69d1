"""Who made a call: torch's data-parallel wrapper, or the program.

DistributedDataParallel divides gradients by the group's size *before* they are summed. Where fewer members contributed than it
read, its sum has to be rescaled; a sum of the program's own must not be. The reducer of DDP calls from C++ in the midst of a
backward pass, so the Python frame below such a call is that of the autograd engine; the hooks that torch ships, and its model
averaging, which divides parameters in the same way, call from their own files.
"""

from __future__ import annotations

import inspect
import os
import sys
from types import FrameType

import torch.autograd.graph
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging import utils as model_averaging
from torch.nn.parallel import distributed as data_parallel

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_ALL_REDUCE = inspect.unwrap(dist.all_reduce).__code__
_BROADCAST = inspect.unwrap(dist.broadcast).__code__
_TORCH_DISTRIBUTED = _ALL_REDUCE.co_filename
_DIVIDE_FIRST = (
    os.path.join(os.path.dirname(str(default_hooks.__file__)), ""),
    os.path.join(os.path.dirname(str(model_averaging.__file__)), ""),
    str(data_parallel.__file__),
)
"""The files and folders of torch in Python that divide by the size of the group before they reduce."""

_WRAPPERS = 3
"""How many frames of torch.distributed lie between a collective and the program: its body and its decorators."""


def caller() -> FrameType | None:
    """The frame that called the method of the group that calls this; None: it is a thread of C++.

    `announced` of `_collectives` lies between the two.
    """
    frame = sys._getframe(1).f_back
    return frame if frame is None else frame.f_back


def reducer_of_ddp(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes from the reducer of DDP."""
    return frame is None or frame.f_code is _ENGINE


def hook_of_ddp(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes from one of the communication hooks that torch ships, or from its model averaging."""
    if frame is None or not torch_all_reduce(frame):
        return False
    for _ in range(_WRAPPERS):
        frame = frame.f_back
        if frame is None:
            return False
        if frame.f_code.co_filename.startswith(_DIVIDE_FIRST):
            return True
    return False


def torch_distributed(frame: FrameType | None) -> bool:
    """Whether a call comes through a function of torch.distributed, and not from C++."""
    return frame is not None and frame.f_code.co_filename == _TORCH_DISTRIBUTED


def torch_all_reduce(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes through torch.distributed.all_reduce."""
    return frame is not None and frame.f_code is _ALL_REDUCE


def program(frame: FrameType | None) -> bool:
    """Whether a broadcast comes from a program, through torch.distributed.broadcast."""
    return frame is not None and frame.f_code is _BROADCAST
