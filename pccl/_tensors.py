"""What torch tensors and numpy arrays must be like, and how their memory is read. Neither package is imported here.

Contiguity, devices and sizes are checked with AssertionError, as PCCL does, but not with `assert`: the checks guard memory
and must not vanish under `python -O`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pccl._enums import DataType, DeviceType


@dataclass(frozen=True)
class Memory:
    """The memory of one tensor."""

    pointer: int
    count: int  # elements
    dtype: DataType
    device: DeviceType


@dataclass(frozen=True)
class Buffers:
    """The memory of the two tensors of a reduce, and the tensors themselves, which keep it alive."""

    send: int
    recv: int
    count: int  # elements
    dtype: DataType
    owners: tuple[Any, Any]


def require(condition: bool, text: str) -> None:
    """Raises AssertionError unless `condition` holds, under `python -O` too."""
    if not condition:
        raise AssertionError(text)


def is_torch_tensor(value: object) -> bool:
    """Whether it is a torch.Tensor. Imports nothing: before torch is imported there are no tensors."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_numpy_array(value: object) -> bool:
    """Whether it is a numpy.ndarray. Imports nothing."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(value, kind)


def torch_memory(tensor: Any, role: str) -> Memory:
    """The memory of a torch tensor; `role` is what texts call it."""
    require(
        not any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__),
        f"{role} must not be a distributed tensor (DTensor): pass its local part, tensor.to_local()",
    )
    device = DeviceType.from_torch_device_type(tensor.device.type)
    if device is None:
        raise AssertionError(f"{role} is on {tensor.device}: only CPU and CUDA tensors can be used")
    require(
        str(tensor.layout) == "torch.strided" and tensor.is_contiguous(),
        f"{role} must be contiguous: call .contiguous() first",
    )
    require(not tensor.is_neg(), f"{role} is a lazily negated view: call .resolve_neg() first")
    return Memory(tensor.data_ptr(), tensor.numel(), DataType.from_torch_dtype(tensor.dtype), device)


def numpy_memory(array: Any, role: str) -> Memory:
    """The memory of a numpy array; `role` is what texts call it."""
    require(array.flags.c_contiguous, f"{role} must be contiguous: call numpy.ascontiguousarray first")
    return Memory(array.ctypes.data, array.size, DataType.from_numpy_dtype(array.dtype), DeviceType.CPU)


def reduce_buffers(send: Any, recv: Any) -> Buffers:
    """The memory of the tensors of a reduce: two torch tensors, or two numpy arrays; anything else is a ValueError."""
    if is_torch_tensor(send) and is_torch_tensor(recv):
        return torch_buffers(send, recv)
    if is_numpy_array(send) and is_numpy_array(recv):
        return numpy_buffers(send, recv)
    raise ValueError(
        f"send and recv must both be torch.Tensor or both be numpy.ndarray, not {type(send).__name__} and {type(recv).__name__}"
    )


def torch_buffers(send: Any, recv: Any) -> Buffers:
    """The memory of two torch tensors."""
    require(send.device == recv.device, f"send is on {send.device} and recv on {recv.device}: they must be on one device")
    require(send.device.type == "cpu", f"send and recv are on {send.device}: only CPU tensors can be reduced")
    return _pair(send, recv, torch_memory)


def numpy_buffers(send: Any, recv: Any) -> Buffers:
    """The memory of two numpy arrays."""
    if not recv.flags.writeable:
        raise ValueError("recv is read-only: pass an array that can be written")
    return _pair(send, recv, numpy_memory)


def _pair(send: Any, recv: Any, memory: Callable[[Any, str], Memory]) -> Buffers:
    source = memory(send, "send")
    target = source if send is recv else memory(recv, "recv")
    require(source.dtype is target.dtype, f"send is {source.dtype.name} and recv {target.dtype.name}: they must be alike")
    require(source.count == target.count, f"send has {source.count} elements and recv {target.count}: they must be alike")
    return Buffers(source.pointer, target.pointer, source.count, source.dtype, (send, recv))
