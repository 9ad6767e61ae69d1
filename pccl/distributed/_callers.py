"""Who made a call: torch's data-parallel wrapper, or the program.

DistributedDataParallel divides gradients by the group's size *before* they are summed. Where fewer members contributed than it
read, its sum has to be rescaled; a sum of the program's own must not be. The reducer of DDP calls from C++ in the midst of a
backward pass, so the Python frame below such a call is that of the autograd engine; the hooks that torch ships, and its model
averaging, which divides parameters in the same way, call from their own files.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from types import FrameType

import torch.autograd.graph
import torch.distributed as dist
from torch.autograd import function as autograd_function
from torch.distributed import c10d_logger, utils
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging import utils as model_averaging
from torch.distributed.nn import functional as nn_functional
from torch.nn.parallel import distributed as data_parallel
from torch.utils import _contextlib as torch_contextlib

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

_BUFFERS = (str(data_parallel.__file__), str(utils.__file__), os.path.join("accelerate", "utils", "random.py"))
"""The files that broadcast, from rank 0, what all members have alike: parameters, buffers, states of random generators."""

_SAMPLES = tuple(
    os.path.join(*parts)
    for parts in (
        ("accelerate", "utils", "operations.py"),
        ("transformers", "trainer_pt_utils.py"),
        ("lightning", "fabric", "utilities", "distributed.py"),
        ("lightning_fabric", "utilities", "distributed.py"),
        ("torchmetrics", "utilities", "distributed.py"),
        (str(utils.__file__),),
    )
)
"""The files of frameworks that gather results of samples, of which each rank has its own; of torch one that compares shapes."""

_PASSING = (
    _TORCH_DISTRIBUTED,
    str(c10d_logger.__file__),
    str(nn_functional.__file__),
    str(autograd_function.__file__),
    str(torch_contextlib.__file__),
    str(contextlib.__file__),
)
"""The files through which a call passes on its way from such a file."""

_HERE = os.path.join(os.path.dirname(__file__), "")


def caller() -> FrameType | None:
    """The frame that called into this package; None: it is a thread of C++."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def reducer_of_ddp(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes from the reducer of DDP."""
    return frame is None or frame.f_code is _ENGINE


def hook_of_ddp(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes from one of the communication hooks that torch ships, or from its model averaging."""
    return torch_all_reduce(frame) and _origin(frame).startswith(_DIVIDE_FIRST)


def torch_distributed(frame: FrameType | None) -> bool:
    """Whether a call comes through a function of torch.distributed, and not from C++."""
    return frame is not None and frame.f_code.co_filename == _TORCH_DISTRIBUTED


def torch_all_reduce(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code is _ALL_REDUCE


def program(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code is _BROADCAST


def object_list(frame: FrameType | None) -> bool:
    """Whether a call is a part of torch.distributed.broadcast_object_list, in which only the root knows the sizes."""
    while frame is not None and frame.f_code.co_filename in _PASSING:
        if frame.f_code.co_name == "broadcast_object_list":
            return True
        frame = frame.f_back
    return False


def gathers_samples(frame: FrameType | None) -> bool:
    """Whether a gather comes from a function of a framework that gathers results of samples, not parts of a model."""
    return _origin(frame).endswith(_SAMPLES)


def broadcasts_equals(frame: FrameType | None) -> bool:
    """Whether a broadcast comes from a function that broadcasts what all members have alike."""
    return _origin(frame).endswith(_BUFFERS)


def _origin(frame: FrameType | None) -> str:
    while frame is not None and frame.f_code.co_filename in _PASSING:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename
