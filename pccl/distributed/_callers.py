"""Who made a call: torch's data-parallel wrapper, or the program.

DistributedDataParallel divides gradients by the group's size *before* they are summed. Where fewer members contributed than it
read, its sum has to be rescaled; a sum of the program's own must not be. The reducer of DDP calls from C++ in the midst of a
backward pass, so the Python frame below such a call is that of the autograd engine; the hooks that torch ships, its model
averaging and FSDP call from their own files. A function of the program may divide if it, or its caller, has asked for the size.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os
import sys
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch._ops
import torch.autograd.graph
import torch.distributed as dist
from torch.autograd import function as autograd_function
from torch.distributed import c10d_logger, utils
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.model_averaging import utils as model_averaging
from torch.distributed.nn import functional as nn_functional
from torch.nn.modules import module as torch_module
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

_PASSING = {
    _TORCH_DISTRIBUTED,
    str(c10d_logger.__file__),
    str(nn_functional.__file__),
    str(autograd_function.__file__),
    str(torch_contextlib.__file__),
    str(torch_module.__file__),
    getattr(dist.all_reduce_coalesced, "__wrapped__", dist.all_reduce_coalesced).__code__.co_filename,  # of `deprecated`
    str(contextlib.__file__),
    str(torch._ops.__file__),
    f"{_TORCH}distributed/_functional_collectives.py",
}
"""The files through which a call passes on its way from such a file."""

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""The names of code that is a part of the function around it; before Python 3.12 it has frames of its own."""

_HERE = os.path.join(os.path.dirname(__file__), "")
_OTHERS = (_TORCH, _HERE)  # where the program is not


def caller() -> FrameType | None:
    """The frame that called into this package; None: it is a thread of C++."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def reducer_of_ddp(frame: FrameType | None) -> bool:
    """Whether an all-reduce comes from the reducer of DDP."""
    return frame is None or frame.f_code is _ENGINE


Sizes = dict[int, tuple[CodeType, int, int, bool]]
"""Who asks for the size of a group: by id, a function, the place of its first question, the last answer, and whether it sums."""

_parts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by parameter group of FSDP2: what divides its first microbatch


def note_question(sizes: Sizes, size: int) -> None:
    """Notes that the program, or FSDP, has asked for the size of a group: for itself, and for its caller unless it sums."""
    frame: Any = caller()
    while _file(frame) == _TORCH_DISTRIBUTED and frame.f_code.co_name in ("get_world_size", "_get_group_size"):
        frame = frame.f_back
    if _file(frame) == _TORCH_DISTRIBUTED:  # init_process_group, and gathers of objects: the program does not see the size
        return
    frame = _origin(frame)
    if fsdp2(frame) and frame.f_code.co_name == "_get_gradient_divide_factors" and _part(frame.f_back)[1] is None:
        _parts[_part(frame.f_back)[0]] = size
    for one in [frame] if _file(frame) in _FSDP1 else reversed(_program(frame)):
        code, place = one.f_code, one.f_lasti
        _, first, _, sums = sizes.get(id(code), (code, place, 0, False))
        if _cannot_divide(code, place):
            return
        sizes[id(code)] = code, min(place, first), size, sums
        if sums:
            return


@functools.lru_cache(1024)
def _cannot_divide(code: CodeType, place: int) -> bool:
    """Whether a function only compares what a call at `place` returns, as in `get_world_size() > 1`, or puts it into a record."""
    following = [one.opname for one in dis.get_instructions(code) if one.offset > place][:2]
    return "COMPARE_OP" in following or (following[:1] == ["BUILD_TUPLE"] and following[1:] != ["UNPACK_SEQUENCE"])


def size_of_program(frame: FrameType | None, sizes: Sizes) -> int | None:
    """The size that who sums, or if it never asks its caller, has asked for before the call; 0: neither; None: torch sums."""
    found = None
    for one in _program(frame):
        code, here = one.f_code, one.f_lasti
        _, place, size, _ = sizes.get(id(code), (code, sys.maxsize, 0, True))
        sizes[id(code)] = code, place, size, True
        if size or not found:
            found = size if place < here else 0
    return found


def _program(frame: FrameType | None) -> list[FrameType]:
    """The function of the program that makes a call, after its caller; nothing if torch makes the call."""
    first = _origin(frame)
    if first is None or first.f_code.co_filename.startswith(_OTHERS):
        return []
    second = _origin(first.f_back)
    return [first] if second is None or second.f_code.co_filename.startswith(_OTHERS) else [second, first]


def fsdp2(frame: FrameType | None) -> bool:
    """Whether FSDP2 sums gradients. Its ranks ask for the size at the same place of the program, and get the same."""
    return _file(_origin(frame)) == _FSDP2


def _part(frame: Any) -> tuple[Any, Any]:
    """The parameter group for which `foreach_reduce` of FSDP2 runs, and what it has kept of other microbatches."""
    return _origin(frame.f_back).f_locals["self"], frame.f_locals["partial_reduce_output"]


def divisor_of(frame: FrameType | None, last: int, founders: int, sizes: Sizes) -> int | None:
    """What a part of torch that reduces divides by, before it or after; None: by nothing, as far as is known.

    Negative: by that in some microbatches, and by `last` in others.
    `last` is the size of the group that was asked for last, `founders` the number of members that it began with.
    """
    origin = _origin(frame)
    file = _file(origin)
    if origin is not None and file == _FSDP2:
        factor, shards = (origin.f_locals.get(name) for name in ("gradient_divide_factor", "reduce_scatter_group"))
        if factor is None:
            group, kept = _part(origin)
            return last if kept is None else -size if (size := _parts.get(group, last)) != last else UNKNOWN
        return founders if factor == founders * (1 if shards is None else shards.size()) else UNKNOWN
    if file in _FSDP1:
        return next((size for code, _, size, _ in sizes.values() if code.co_filename in _FSDP1), UNKNOWN)
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


def _origin(frame: FrameType | None) -> Any:
    while frame is not None and (
        (file := frame.f_code.co_filename) in _PASSING or file.startswith(_LIBRARY) or frame.f_code.co_name in _COMPREHENSIONS
    ):
        frame = frame.f_back
    return frame


def _file(frame: FrameType | None) -> str:
    return "" if frame is None else frame.f_code.co_filename
