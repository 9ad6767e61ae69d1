"""Memory of GPUs: what it must be like, and the streams that work on it. Neither torch nor CuPy is imported here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pccl._core.calls import INVALID_USAGE, SUCCESS, ClosedError, NativeHandle
from pccl._core.enums import DataType
from pccl._core.errors import ArgumentError, Result, error_for, last_detail
from pccl._core.library import _C, _ffi

if TYPE_CHECKING:
    import torch

    Stream = torch.cuda.Stream | int

DEFAULT_STREAM = 0
"""The legacy default stream, as the driver has it."""

_LEGACY_STREAM = 1
"""The same, as the CUDA array interface has it."""

_TYPES = {
    "|b1": DataType.BOOL,
    "|u1": DataType.UINT8,
    "|i1": DataType.INT8,
    "<u2": DataType.UINT16,
    "<i2": DataType.INT16,
    "<u4": DataType.UINT32,
    "<i4": DataType.INT32,
    "<u8": DataType.UINT64,
    "<i8": DataType.INT64,
    "<f2": DataType.FLOAT16,
    "<f4": DataType.FLOAT,
    "<f8": DataType.DOUBLE,
}


def is_gpu_array(value: object) -> bool:
    """Whether it is an array at a GPU with the CUDA array interface, as those of CuPy and Numba are. No torch tensor is meant."""
    return getattr(type(value), "__cuda_array_interface__", None) is not None


def array_memory(array: Any, role: str) -> tuple[int, int, DataType, int | None, bool]:
    """Address, elements, type, stream of an array at a GPU, and whether it is read-only; `role` is what texts call it.

    No stream: nothing has to be waited for.
    """
    interface = array.__cuda_array_interface__
    kind = interface["typestr"]
    if kind not in _TYPES:
        raise ValueError(f"{role}: elements of type {kind} are not supported; use one of {', '.join(_TYPES)}")
    numel, expected = 1, []
    for size in reversed(interface["shape"]):
        expected.append(numel * _TYPES[kind].itemsize)
        numel *= size
    strides = interface.get("strides")
    if strides is not None and numel > 1 and tuple(strides) != tuple(reversed(expected)):
        raise ArgumentError(f"{role} must be contiguous")
    pointer, read_only = interface["data"]
    check_known(pointer, numel, role)
    stream = interface.get("stream")
    return pointer, numel, _TYPES[kind], DEFAULT_STREAM if stream == _LEGACY_STREAM else stream, bool(read_only)


def common_stream(streams: Iterable[tuple[str, int | None]]) -> int:
    """The stream after whose work the tensors of these roles may be used: one for all of them, or a ValueError."""
    first = None
    for role, stream in streams:
        if stream is None:
            continue
        if first is None:
            first = role, stream
        elif first[1] != stream:
            raise ValueError(
                f"{first[0]} is ordered after the stream {first[1]:#x} and {role} after the stream {stream:#x}: let one of "
                "these wait for the other, and name that one in both arrays"
            )
    return DEFAULT_STREAM if first is None else first[1]


def check_known(pointer: int, numel: int, role: str) -> None:
    """AssertionError unless the CUDA driver knows the memory: C would take it for memory of the host."""
    if numel == 0 or _C.pccl_ext_is_at_gpu(_ffi.cast("void *", pointer)):
        return
    text = _ffi.new("char[]", 256)
    count = _C.pccl_ext_cuda(text, len(text))
    why = "it is not the driver's" if count > 0 else _ffi.string(text).decode("utf-8", "replace")
    raise ArgumentError(f"{role} is on a GPU whose memory cannot be used: {why}")


def torch_stream(tensor: Any) -> int:
    return int(sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream)


def synchronize(tensors: Iterable[Any]) -> None:
    """Waits for the current stream of each GPU that some of these torch tensors are at."""
    devices = {tensor.device for tensor in tensors if getattr(tensor, "is_cuda", False)}
    for device in devices:
        sys.modules["torch"].cuda.current_stream(device).synchronize()


def hold_stream(handle: NativeHandle, tag: int, stream: Stream | None, default: int, name: str) -> None:
    """Lets a stream wait for the op of this tag, and not the host; nothing for one that has ended and was awaited meanwhile."""
    if stream is None:
        stream = default
    number = int(stream if isinstance(stream, int) else stream.cuda_stream)
    try:
        with handle as comm:
            op = _ffi.new("pcclAsyncReduceOp_t *", (comm, tag))
            result = _C.pcclStreamWaitAsyncReduce(op, _ffi.cast("void *", number))
            if result not in (SUCCESS, Result.INVALID_ARGUMENT.value):  # the latter: there is none
                raise error_for(result, name, last_detail())
    except ClosedError as error:
        raise error_for(INVALID_USAGE, name, str(error)) from None
