"""Who made a call: torch's data-parallel wrapper, or the program.

DistributedDataParallel divides gradients by the group's size *before* they are summed. Where fewer members contributed than it
read, its sum has to be rescaled; a sum of the program's own must not be. The reducer of DDP calls from C++ in the midst of a
backward pass, so the Python frame below such a call is that of the autograd engine; the hooks that torch ships, its model
averaging and FSDP call from their own files. A function of the program may divide if it asks for the size before the sum.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os
import sys
from types import CodeType, FrameType

import torch._ops
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
    f"{os.path.dirname(str(default_hooks.__file__))}/",
    f"{os.path.dirname(str(model_averaging.__file__))}/",
    str(data_parallel.__file__),
)
"""The files and folders of torch in Python that divide by the size of the group before they reduce."""

_TORCH = f"{os.path.dirname(str(torch.__file__))}/"
_LIBRARY = f"{_TORCH}_library/"
_FSDP2 = f"{_TORCH}distributed/fsdp/_fully_shard/_fsdp_collectives.py"
_FSDP1 = tuple(
    f"{_TORCH}distributed/{path}"
    for path in ("fsdp/_init_utils.py", "fsdp/_runtime_utils.py", "algorithms/_comm_hooks/default_hooks.py")
)
"""The files of FSDP that reduce gradients. FSDP1 reads the size when a model is wrapped, FSDP2 before each sum."""

_PARTS = tuple(f"{_TORCH}{folder}/" for folder in ("distributed/tensor", "distributed/fsdp", "nn/modules"))
"""The folders of torch whose other sums lack a part after a loss: DTensor, norms of shards, statistics of SyncBatchNorm."""

UNKNOWN = 0
"""In place of a divisor: the result would be wrong after a loss, and nobody knows by how much."""

_BUFFERS = (str(data_parallel.__file__), str(utils.__file__), "accelerate/utils/random.py")
"""The files that broadcast, from rank 0, what all members have alike: parameters, buffers, states of random generators."""

_SAMPLES = (
    "accelerate/utils/operations.py",
    "transformers/trainer_pt_utils.py",
    "lightning/fabric/utilities/distributed.py",
    "lightning_fabric/utilities/distributed.py",
    "torchmetrics/utilities/distributed.py",
    str(utils.__file__),
)
"""The files of frameworks that gather results of samples, of which each rank has its own; of torch one that compares shapes."""

_PASSING = (
    _TORCH_DISTRIBUTED,
    str(c10d_logger.__file__),
    str(nn_functional.__file__),
    str(autograd_function.__file__),
    str(torch_contextlib.__file__),
    str(contextlib.__file__),
    str(torch._ops.__file__),
    f"{_TORCH}distributed/_functional_collectives.py",
)
"""The files through which a call passes on its way from such a file."""

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""The names of code that is a part of the function around it; before Python 3.12 it has frames of its own."""

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


Sizes = dict[CodeType, tuple[int, int]]
"""Who has asked for the size of a group: by function, the place in it of its first question, and the last answer."""


def note_question(sizes: Sizes, size: int) -> None:
    """Notes that the program, or FSDP1 as it wraps a model, has asked for the size of a group."""
    frame = _origin(caller())
    if frame is None or (_file(frame).startswith(_TORCH) and _file(frame) not in _FSDP1):
        return
    code, place = frame.f_code, frame.f_lasti
    if not _cannot_divide(code, place):
        sizes[code] = min(place, sizes.get(code, (place, 0))[0]), size


@functools.lru_cache(1024)
def _cannot_divide(code: CodeType, place: int) -> bool:
    """Whether a function only compares what a call at `place` returns, as in `get_world_size() > 1`, or puts it into a record."""
    following = [one.opname for one in dis.get_instructions(code) if one.offset > place][:2]
    return "COMPARE_OP" in following or (following[:1] == ["BUILD_TUPLE"] and following[1:] != ["UNPACK_SEQUENCE"])


def size_of_program(frame: FrameType | None, sizes: Sizes) -> int | None:
    """The size of the group that the caller of a sum has asked for before the call; 0: it has not; None: torch has called."""
    origin = _origin(frame)
    if origin is None or _file(origin).startswith(_TORCH):
        return None
    place, size = sizes.get(origin.f_code, (origin.f_lasti, 0))
    return size if place < origin.f_lasti else 0


def fsdp2(frame: FrameType | None) -> bool:
    """Whether FSDP2 sums gradients. Its ranks ask for the size at the same place of the program, and get the same."""
    return _file(_origin(frame)) == _FSDP2


def divisor_of(frame: FrameType | None, last: int, founders: int, sizes: Sizes) -> int | None:
    """What a part of torch that reduces divides by, before it or after; None: by nothing, as far as is known.

    `last` is the size of the group that was asked for last, `founders` the number of members that it began with.
    """
    origin = _origin(frame)
    file = _file(origin)
    if origin is not None and file == _FSDP2:
        factor, shards = (origin.f_locals.get(name) for name in ("gradient_divide_factor", "reduce_scatter_group"))
        if factor is None:
            return last
        return founders if factor == founders * (1 if shards is None else shards.size()) else UNKNOWN
    if file in _FSDP1:
        return next((size for code, (_, size) in sizes.items() if code.co_filename in _FSDP1), UNKNOWN)
    if torch_all_reduce(frame) and file.startswith(_DIVIDE_FIRST):
        return last
    return UNKNOWN if file.startswith(_PARTS) else None


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
    return _file(_origin(frame)).endswith(_SAMPLES)


def broadcasts_equals(frame: FrameType | None) -> bool:
    """Whether a broadcast comes from a function that broadcasts what all members have alike."""
    return _file(_origin(frame)).endswith(_BUFFERS)


def _origin(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        _file(frame) in _PASSING or _file(frame).startswith(_LIBRARY) or frame.f_code.co_name in _COMPREHENSIONS
    ):
        frame = frame.f_back
    return frame


def _file(frame: FrameType | None) -> str:
    return "" if frame is None else frame.f_code.co_filename
