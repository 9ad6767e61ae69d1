"""What torch tensors and arrays must be like, and how their memory is read. None of their packages is imported here.

Contiguity, devices and sizes are checked with AssertionError, as PCCL does, but not with `assert`: the checks guard memory
and must not vanish under `python -O`.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pccl._core.enums import DataType, DeviceType
from pccl._core.errors import ArgumentError, PCCLError, Result, UsageError
from pccl._core.gpu import array_memory, check_known, common_stream, is_gpu_array, torch_stream
from pccl._core.library import _C, _ffi


class Memory(NamedTuple):
    """The memory of one tensor."""

    pointer: int
    numel: int
    dtype: DataType
    device: DeviceType
    stream: int | None = None  # of a GPU, after whose work so far it may be used; None: at once


class Buffers(NamedTuple):
    """The memory of the two tensors of a reduce, and the tensors themselves, which keep it alive."""

    send: int
    recv: int
    numel: int
    dtype: DataType
    owners: tuple[Any, Any]
    device: DeviceType
    stream: int


_uncleared = _ffi.new_allocator(should_clear_after_alloc=False)

CACHE_LINE = 64

GIL_COPY_MAX = 64 << 10
"""Bytes: larger copies let other threads run meanwhile."""

HUGE_PAGE = 2 << 20
"""Bytes. Memory of this size and more lies in huge pages: a neighbour on this host reads it several times as fast."""


def new_memory(size: int) -> tuple[Any, int]:
    """Returns uninitialised memory of `size` bytes: its owner and its address."""
    owner: Any
    if size >= HUGE_PAGE:
        mapped = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        owner, alignment = _ffi.from_buffer(mapped), HUGE_PAGE
    else:
        owner, alignment = _uncleared("char[]", size + CACHE_LINE), CACHE_LINE
    return owner, -(-int(_ffi.cast("uintptr_t", owner)) // alignment) * alignment


def copy_memory(to: int, source: int, size: int) -> None:
    """Copies `size` bytes between two addresses of the CPU's memory, which do not overlap."""
    if size < GIL_COPY_MAX:
        _ffi.memmove(_ffi.cast("void *", to), _ffi.cast("void *", source), size)
    else:
        _C.pccl_ext_copy(_ffi.cast("void *", to), _ffi.cast("void *", source), size)


class Room(NamedTuple):
    """Memory of an operation's own."""

    owner: Any
    address: int
    size: int


class RoomPool:
    """Rooms of operations that have ended, for the next ones: fresh pages cost as much as a copy.

    Any thread may use it, and a signal handler that interrupts one: without a lock, by calls of a list that are atomic.
    """

    LEAST = 1 << 20
    """Bytes of a room that is kept."""

    KEPT = 4
    """The most rooms that are kept."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []

    def take(self, size: int) -> Room:
        rooms: list[Room] = []
        with contextlib.suppress(IndexError):
            while size >= self.LEAST:
                rooms.append(self._rooms.pop(0))
        fits = [room for room in rooms if room.size >= size]
        best = min(fits, key=lambda room: room.size) if fits else Room(*new_memory(size), size)
        self._rooms[:0] = [room for room in rooms if room is not best]
        return best

    def give(self, room: Room) -> None:
        """Takes back the room of an operation that has ended. The oldest one goes if there are too many."""
        if room.size >= self.LEAST:
            self._rooms.append(room)
            del self._rooms[: -self.KEPT]


def bring_back(owner: Any, to: int, source: int, size: int, name: str) -> None:
    """Copies a result to a tensor's memory. UsageError: the tensor no longer has it. `name` is the call's name."""
    check_in_place(owner, to, size, name)
    copy_memory(to, source, size)


def check_in_place(owner: Any, address: int, size: int, name: str) -> None:
    """Raises UsageError if a tensor no longer has this memory. `name` is the call's name."""
    if is_torch_tensor(owner):
        storage = owner.untyped_storage()
        there = owner.data_ptr() == address and storage.data_ptr() <= address <= storage.data_ptr() + storage.nbytes() - size
    elif is_numpy_array(owner):
        there = owner.ctypes.data == address and owner.nbytes >= size
    else:
        there = True
    if size > 0 and not there:
        text = (
            "the memory of a receive tensor was freed, resized or replaced while the operation was in flight, "
            "so the result is lost on this member; keep the tensor until the end"
        )
        raise UsageError(Result.INVALID_USAGE, name, text)


def storages_of(owner: Any) -> tuple[Any, ...]:
    """Returns what holds the memory of torch tensors, which `set_` or an assignment to `data` takes away from them."""
    if isinstance(owner, (tuple, list)):
        return tuple(storage for one in owner for storage in storages_of(one))
    return (owner.untyped_storage(),) if is_torch_tensor(owner) else ()


def check_writable(tensor: Any, role: str) -> None:
    """Raises ValueError if a torch tensor on the CPU lies over memory that is mapped read-only, of which torch knows nothing."""
    if not is_torch_tensor(tensor) or not tensor.is_cpu or tensor.numel() == 0 or tensor.untyped_storage().resizable():
        return  # what torch has allocated can be resized, and written
    if not _C.pccl_ext_can_write(_ffi.cast("void *", tensor.data_ptr()), tensor.numel() * tensor.element_size()):
        raise ValueError(f"{role} is in read-only memory; pass a writable tensor")


def overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two ranges of memory, addresses and bytes, have bytes in common."""
    return max(first[0], second[0]) < min(sum(first), sum(second))


class InputDigest:
    """Digest of a call's input, taken when the call times out and compared when the call is repeated.

    `ranges` are the addresses and sizes in bytes of the program's tensors. No operation may write to them.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        infos = [
            (_ffi.new("char[]", str(at).encode()), _ffi.cast("char *", address), size, DataType.UINT8.value)
            for at, (address, size) in enumerate(ranges)
            if size > 0
        ]
        self._kept = infos, _ffi.new("pcclTensorInfo_t[]", infos)
        self._state = _ffi.new("pcclSharedState_t *", (0, len(infos), self._kept[1]))
        self._digest = self._compute()

    def _compute(self) -> list[int]:
        """By the hash of shared states, which takes several threads."""
        digest = _ffi.new("uint64_t[2]")
        if self._state.count > 0:
            PCCLError.check(_C.pccl_ext_state_hash(self._state, digest, digest + 1, _ffi.NULL), "digest of the input")
        return list(digest)

    def check(self, name: str) -> None:
        """Raises UsageError if the input differs from the one at the timeout. `name` is the call's name."""
        if self._compute() != self._digest:
            text = (
                "the input changed since the call timed out, and the operation is still in flight; "
                "cancel it, or repeat the call with the same contents"
            )
            raise UsageError(Result.INVALID_USAGE, name, text)


def require(condition: bool, text: str) -> None:
    """Raises AssertionError unless `condition` holds, under `python -O` too."""
    if not condition:
        raise ArgumentError(text)


def require_kind(name: str, value: object, kind: type) -> None:
    """Raises TypeError unless the argument called `name` is a `kind`."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, not {type(value).__name__}")


def is_torch_tensor(value: object) -> bool:
    """Whether it is a torch.Tensor. Imports nothing: before torch is imported there are no tensors."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def is_numpy_array(value: object) -> bool:
    """Whether it is a numpy.ndarray. Imports nothing."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(value, kind)


def is_expanded(tensor: Any) -> bool:
    """Whether several elements of a strided torch tensor are one in memory, as those of `expand` are."""
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def torch_memory(tensor: Any, role: str, *, written: bool = False) -> Memory:
    """The memory of a torch tensor; `role` is what texts call it. ValueError: it is to be `written`, and read-only."""
    if not is_torch_tensor(tensor):
        raise TypeError(f"{role} must be a torch.Tensor, not {type(tensor).__name__}")
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor and any("DTensor" in kind.__name__ for kind in type(tensor).__mro__):
        raise ArgumentError(f"{role} must not be a distributed tensor (DTensor); pass its local part, tensor.to_local()")
    device = DeviceType.CPU if tensor.is_cpu else DeviceType.from_torch_device_type(tensor.device.type)
    if device is None:
        raise ArgumentError(f"{role} is on {tensor.device}; pass a CPU or CUDA tensor")
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"{role} is sparse; call .to_dense() first")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{role} must be contiguous; call .contiguous() first")
    if tensor.is_neg():
        raise ArgumentError(f"{role} is a lazily negated view; call .resolve_neg() first")
    dtype = _named(role, DataType.from_torch_dtype, tensor.dtype)
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        raise ArgumentError(f"{role} has no memory: it is a FakeTensor, or its storage was freed; pass one with memory")
    if written:
        check_writable(tensor, role)
    if device is DeviceType.CPU:
        return Memory(tensor.data_ptr(), tensor.numel(), dtype, device)
    check_known(tensor.data_ptr(), tensor.numel(), role)
    return Memory(tensor.data_ptr(), tensor.numel(), dtype, device, torch_stream(tensor))


def numpy_memory(array: Any, role: str, *, written: bool = False) -> Memory:
    """As `torch_memory`, of a numpy array."""
    if not is_numpy_array(array):
        raise TypeError(f"{role} must be a numpy.ndarray, not {type(array).__name__}")
    if written and not array.flags.writeable:
        raise ValueError(f"{role} is read-only; pass a writable array")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{role} must be contiguous; call numpy.ascontiguousarray first")
    dtype = _named(role, DataType.from_numpy_dtype, array.dtype)
    try:
        pointer = int(_ffi.cast("uintptr_t", _ffi.from_buffer(array)))  # three times as fast as array.ctypes
    except (ValueError, TypeError):  # bfloat16 has no buffer interface
        pointer = array.ctypes.data
    return Memory(pointer, array.size, dtype, DeviceType.CPU)


def gpu_memory(array: Any, role: str, *, written: bool = False) -> Memory:
    """As `torch_memory`, of an array with the CUDA array interface."""
    pointer, numel, dtype, stream, read_only = array_memory(array, role)
    if written and read_only:
        raise ValueError(f"{role} is read-only; pass a writable array")
    return Memory(pointer, numel, dtype, DeviceType.CUDA, stream)


def _named(role: str, convert: Callable[[Any], DataType], dtype: Any) -> DataType:
    try:
        return convert(dtype)
    except (ValueError, AssertionError) as error:
        raise type(error)(f"{role}: {error}") from None


def _reader(tensor: Any) -> Callable[..., Memory] | None:
    if is_torch_tensor(tensor):
        return torch_memory
    if is_numpy_array(tensor):
        return numpy_memory
    return gpu_memory if is_gpu_array(tensor) else None


def memory_of(tensor: Any, role: str, *, written: bool = False) -> Memory:
    """As `torch_memory`, of a torch tensor, a numpy array or an array at a GPU; else a ValueError."""
    read = _reader(tensor)
    if read is None:
        raise ValueError(f"{role} must be a torch.Tensor, a numpy.ndarray or an array on a GPU, not {type(tensor).__name__}")
    return read(tensor, role, written=written)


def reduce_buffers(send: Any, recv: Any) -> Buffers:
    """The memory of the tensors of a reduce: two torch tensors, numpy arrays, or arrays at a GPU; else a ValueError."""
    read = _reader(send)
    if read is None or _reader(recv) is not read:
        raise ValueError(
            "send and recv must both be torch.Tensor, numpy.ndarray or arrays on a GPU, "
            f"not {type(send).__name__} and {type(recv).__name__}"
        )
    return pair_buffers(send, recv, read)


def pair_buffers(send: Any, recv: Any, read: Callable[..., Memory]) -> Buffers:
    """The memory of the tensors of a reduce, each read by `torch_memory` or a function like it. AssertionError: they differ."""
    if read is torch_memory and is_torch_tensor(send) and is_torch_tensor(recv):
        require(send.device == recv.device, f"send is on {send.device} and recv on {recv.device}; they must be on one device")
    source = read(send, "send", written=send is recv)
    target = source if send is recv else read(recv, "recv", written=True)
    if source.dtype is not target.dtype:
        raise ArgumentError(f"send is {source.dtype.name} and recv {target.dtype.name}; the types must be equal")
    if source.numel != target.numel:
        raise ArgumentError(f"send has {source.numel} elements and recv {target.numel}; the sizes must be equal")
    stream = common_stream((("send", source.stream), ("recv", target.stream)))
    return Buffers(source.pointer, target.pointer, source.numel, source.dtype, (send, recv), source.device, stream)


def plain_memory(tensor: Any, role: str) -> tuple[int, int, DataType] | None:
    """Address, elements and type of a tensor that needs no further check: contiguous, of torch or numpy itself, on the CPU, and
    for torch in memory that torch has allocated. None: any other object, which `reduce_buffers` has to judge.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and type(tensor) is numpy.ndarray:
        flags = tensor.flags
        return numpy_memory(tensor, role)[:3] if flags.c_contiguous and flags.writeable else None
    if (
        torch is None
        or type(tensor) is not torch.Tensor
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.is_neg()
        or not tensor.untyped_storage().resizable()
    ):
        return None
    try:
        return tensor.data_ptr(), tensor.numel(), DataType.from_torch_dtype(tensor.dtype)
    except ValueError:
        return None
