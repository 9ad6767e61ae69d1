"""How torch's tensors become plain memory for the core: element types, contiguous copies, lists that lie side by side.

Memory of a GPU goes to the core as it is. What torch does with it, before a call and after its end, is put into the current
stream: the core begins after that, and what comes after the end is told by marks in streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch

from pccl._core.enums import DataType, ReduceOp
from pccl._core.gpu import DEFAULT_STREAM, check_known, torch_stream
from pccl._core.tensors import is_expanded

_COMPLEX = {torch.complex32: DataType.FLOAT16, torch.complex64: DataType.FLOAT, torch.complex128: DataType.DOUBLE}
_LINEAR = (ReduceOp.SUM, ReduceOp.AVG)
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)

POOLED_LEAST = 1 << 16
POOLED_MOST = 1 << 28
"""Bytes that are kept for lists of tensors: of one piece at least, of all together at most."""

Finish = Callable[[], None]
"""What is left to do with the results of a call once the core has ended it."""


_TYPES: dict[torch.dtype, DataType] = {member.to_torch_dtype(): member for member in DataType}


def moved_as(dtype: torch.dtype) -> tuple[DataType, int]:
    """The type that elements of `dtype` travel as where nothing is computed, and how many of it make up one of them."""
    found = _TYPES.get(dtype)
    return (DataType.UINT8, dtype.itemsize) if found is None else (found, 1)


def reduced_as(dtype: torch.dtype, op: ReduceOp) -> tuple[DataType, int]:
    """As `moved_as`, for a reduction. TypeError: `op` is not defined for `dtype`, or PCCL does not compute with it."""
    found = _TYPES.get(dtype)
    if found is not None:
        if op is ReduceOp.AVG and dtype is torch.bool:
            raise TypeError("AVG is not defined for torch.bool; convert to an integer or floating-point type first")
        if op in _BITWISE and dtype.is_floating_point:
            raise TypeError(f"{op.name} is not defined for {dtype}: only integers and bool have bitwise operations")
        return found, 1
    if dtype in _COMPLEX:
        if op not in _LINEAR:
            raise TypeError(f"{op.name} is not defined for {dtype}: only SUM and AVG are")
        return _COMPLEX[dtype], 2
    raise TypeError(f"{dtype} can be sent but not reduced; convert to torch.float16, torch.bfloat16 or torch.float32 first")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of the tensor holds its elements in order, where the core can reach them."""
    return (
        (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
        and not hasattr(tensor, "trigger_wait")  # of a functional collective: what reads or writes it waits for that
    )


def address_of(tensor: torch.Tensor | None) -> int:
    """The address of plain memory; 0 for None. TypeError: the tensor has no memory of its own."""
    if tensor is None:
        return 0
    _check_data(tensor)
    return tensor.data_ptr()


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether the bytes from the first to the last element of two dense tensors meet."""
    return _meet(_range(one), _range(other))


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.itemsize


def apart(sources: Sequence[torch.Tensor], outputs: Sequence[Sequence[torch.Tensor]]) -> Sequence[torch.Tensor]:
    """Returns the inputs of a batch of calls, with a copy of each that an output of another call overlaps."""
    if len(sources) == 1:
        return sources
    ranges = [(call, _range(output)) for call, results in enumerate(outputs) for output in results]

    def overwritten(own: int, source: torch.Tensor) -> bool:
        read = _range(source)
        return any(_meet(read, written) for call, written in ranges if call != own)

    return [source.clone() if overwritten(own, source) else source for own, source in enumerate(sources)]


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of it in plain memory."""
    if is_plain(tensor):
        _check_data(tensor)
        return tensor
    made = scratch(tensor)
    made.copy_(tensor.detach())
    return made


def writable(
    tensor: torch.Tensor, *, holds_input: bool = False, source: torch.Tensor | None = None
) -> tuple[torch.Tensor, Finish | None]:
    """Plain memory for a result, and what brings it into the tensor; None: it is the tensor itself.

    The memory is apart from `source`, which the call reads.
    """
    if is_plain(tensor) and (source is None or not overlap(tensor, source)):
        _check_data(tensor)
        return tensor, None
    _check_fillable(tensor)
    made = readable(tensor) if holds_input else scratch(tensor)
    return made, lambda: _fill(tensor, made)


def _check_fillable(tensor: torch.Tensor) -> None:
    """TypeError: a result cannot be brought into the tensor. After the call, only this member would hear of it."""
    _check_data(tensor)
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of the layout {tensor.layout} cannot take a result; pass a dense one")
    if is_expanded(tensor):
        raise TypeError(
            f"elements of an expanded tensor share memory, so it cannot take a result; pass a clone of {list(tensor.shape)}"
        )


def _check_data(tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise TypeError("a tensor on the device meta has no elements; pass one on the CPU or on a CUDA GPU")
    reachable = (tensor.is_cpu or tensor.is_cuda) and tensor.layout is torch.strided and not hasattr(tensor, "trigger_wait")
    if reachable and tensor.data_ptr() == 0 and tensor.numel() > 0:  # torch reads and writes it all the same
        text = f"the {type(tensor).__name__} has no memory: pass a tensor whose storage was not freed"
        raise TypeError(f"{text}, and of a DTensor its local part, tensor.to_local()")


def scratch(tensor: torch.Tensor) -> torch.Tensor:
    """Plain memory in the shape of the tensor, on its device if the core can reach that. TypeError: it has no elements."""
    _check_data(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=_place(tensor))


def _place(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.is_cuda else torch.device("cpu")


def made_on_cpu() -> contextlib.AbstractContextManager[object]:
    """In this block tensors are made on the CPU, where the program has set another default device."""
    return contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")


def _fill(tensor: torch.Tensor, source: torch.Tensor) -> None:
    tensor.detach().copy_(source)
    if source.is_cuda:  # which was allocated for another stream, perhaps
        source.record_stream(torch.cuda.current_stream(source.device))


def scale(tensor: torch.Tensor, factor: int, divisor: int) -> None:
    """Multiplies a tensor by `factor` over `divisor`, in place. Integers are exact before they are rounded to the nearest."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor / divisor)
    elif tensor.dtype is torch.uint64:  # torch does not divide them
        made = [(value * factor + divisor // 2) // divisor % (1 << 64) for value in tensor.flatten().tolist()]
        tensor.copy_(torch.tensor(made, dtype=torch.uint64, device="cpu").view(tensor.shape))
    elif tensor.dtype is not torch.bool:
        values = tensor.to(torch.int64)
        whole = values.div(divisor, rounding_mode="floor")
        rest = values - whole * divisor
        tensor.copy_(whole * factor + (rest * factor + divisor // 2).div(divisor, rounding_mode="floor"))


# ---- streams ----

Marks = list[tuple[torch.device, torch.cuda.Event]]
"""Places in streams, one for each GPU."""


def stream_of(tensors: object) -> int:
    """The stream after which the core has to begin with a tensor, or a tuple of some, at a GPU: its current one."""
    for tensor in tensors if isinstance(tensors, tuple) else (tensors,):
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            check_known(tensor.data_ptr(), tensor.numel(), "a tensor")
            return torch_stream(tensor)
    return DEFAULT_STREAM


def mark(tensors: Iterable[torch.Tensor]) -> Marks:
    """Where the current streams of the tensors' GPUs are now."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return [(device, torch.cuda.current_stream(device).record_event()) for device in devices]


def follow(marks: Marks) -> None:
    """Lets the current streams of these GPUs go on after the marks."""
    for device, event in marks:
        torch.cuda.current_stream(device).wait_event(event)


# ---- lists ----


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One flat view of all tensors, if they lie in one memory one after another, as the chunks of one tensor do."""
    first = tensors[0]
    end, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        if not is_plain(tensor) or tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage:
            return None
        end += tensor.nbytes
    return first.detach().as_strided((sum(tensor.numel() for tensor in tensors),), (1,))


class _Pool:
    """Memory for lists of tensors, kept for the next call: to have the system make its pages costs more than the copy.

    Without a lock, by calls of a list that are atomic: inside `take` and `give` the garbage collector may end a dropped work,
    which gives memory back.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []

    def take(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Memory for the elements of all tensors; `give` it back when nobody uses it any more, or let it go."""
        count, dtype, place = sum(tensor.numel() for tensor in tensors), tensors[0].dtype, _place(tensors[0])
        size = count * dtype.itemsize
        if size < POOLED_LEAST or place.type != "cpu":  # torch itself keeps that of GPUs
            return torch.empty(count, dtype=dtype, device=place)
        others: list[torch.Tensor] = []
        found: torch.Tensor | None = None
        with contextlib.suppress(IndexError):
            while found is None:
                memory = self._free.pop(0)
                if size <= memory.numel() <= 2 * size:
                    found = memory
                else:
                    others.append(memory)
        self._free[:0] = others
        if found is None:
            found = torch.empty(size, dtype=torch.uint8, device=place)
        return found[:size].view(dtype)

    def give(self, memory: torch.Tensor) -> None:
        if memory.nbytes < POOLED_LEAST or not memory.is_cpu:
            return
        whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(memory.untyped_storage())
        self._free.append(whole)
        with contextlib.suppress(IndexError):
            while sum(one.numel() for one in self._free) > POOLED_MOST:
                self._free.pop(0)


_pool = _Pool()


def gathered(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Finish | None]:
    """The elements of all tensors one after another, copied unless they lie so already, and what is to do at the end."""
    flat = joined(tensors)
    if flat is not None:
        return flat, None
    made = _pool.take(tensors)
    torch.cat([readable(tensor.detach()).reshape(-1) for tensor in tensors], out=made)
    return made, lambda: _pool.give(made)


def spread(tensors: Sequence[torch.Tensor], source: torch.Tensor | None = None) -> tuple[torch.Tensor, Finish | None]:
    """Memory for the elements of all tensors one after another, and what brings them into the tensors.

    `source` is that memory if it is there already, and taken from the pool.
    """
    flat = joined(tensors) if source is None else None
    if flat is not None:
        return flat, None
    for tensor in tensors:
        _check_fillable(tensor)
    made = _pool.take(tensors) if source is None else source

    def finish() -> None:
        for tensor, part in zip(tensors, torch.split(made, [tensor.numel() for tensor in tensors]), strict=True):
            _fill(tensor, part.view(tensor.shape))
        _pool.give(made)

    return made, finish


def in_place_all(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Finish | None]:
    """Memory for the input and the result of all tensors one after another, and what brings the result into them."""
    if len(tensors) == 1:
        return writable(tensors[0], holds_input=True)
    memory, copied = gathered(tensors)
    return (memory, None) if copied is None else spread(tensors, memory)


def same_type(call: str, tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The element type of all tensors of a call. TypeError: they differ in it, or in their device."""
    dtype, device = tensors[0].dtype, tensors[0].device
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise TypeError(f"{call}: the tensors of one call must have one dtype, not {dtype} and {tensor.dtype}")
        if tensor.device != device:
            raise TypeError(f"{call}: the tensors of one call must be on one device, not on {device} and {tensor.device}")
    return dtype
