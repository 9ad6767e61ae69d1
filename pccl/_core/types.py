"""Descriptions of reduces and of shared state, and what calls give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pccl._core.calls import whole_number
from pccl._core.enums import DataType, DeviceType, DistributionHint, QuantizationAlgorithm, ReduceOp
from pccl._core.library import _ffi
from pccl._core.tensors import (
    Buffers,
    Memory,
    is_torch_tensor,
    numpy_memory,
    pair_buffers,
    require_kind,
    storages_of,
    torch_memory,
)
from pccl._exports import publish

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass
class ReduceOperandDescriptor:
    """What the elements of a tensor are: their `datatype`, and a `distribution_hint`, which is never needed."""

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE

    def __post_init__(self) -> None:
        require_kind("datatype", self.datatype, DataType)
        require_kind("distribution_hint", self.distribution_hint, DistributionHint)

    def to_c(self) -> Any:
        """As a `pcclReduceOperandDescriptor_t *`."""
        return _ffi.new("pcclReduceOperandDescriptor_t *", (self.datatype.value, self.distribution_hint.value))


BLOCK_DEFAULT = 256


@dataclass
class QuantizationOptions:
    """How elements are quantised on the wire. With algorithm NONE or BLOCK_*, `quantized_datatype` is ignored.

    The other two fields are of the BLOCK_* algorithms; with another algorithm they raise ValueError.

    `block` elements share a scale: a power of two from 32 to 4096 (ValueError), the same on all members. A block takes
    4 + block bytes with BLOCK_INT8, 4 + block / 2 with the others.

    With a `stochastic_seed`, any 64-bit number, values are rounded up or down at random, so that they are right on average,
    in place of to the nearest. The random numbers are a function of this seed and the element's index alone, so that a run can
    be repeated. Members need not have the same seed, and should not: the errors of members, or of ops, with one seed are alike.
    """

    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX
    block: int = BLOCK_DEFAULT
    stochastic_seed: int | None = None

    def __post_init__(self) -> None:
        require_kind("quantized_datatype", self.quantized_datatype, DataType)
        require_kind("algorithm", self.algorithm, QuantizationAlgorithm)
        self.block = whole_number("block", self.block, 32)
        if not 32 <= self.block <= 4096 or self.block.bit_count() != 1:
            raise ValueError(f"block must be a power of two from 32 to 4096, not {self.block}")
        if self.stochastic_seed is not None:
            self.stochastic_seed = whole_number("stochastic_seed", self.stochastic_seed, 64)
        if not self.algorithm.is_blockwise and (self.block, self.stochastic_seed) != (BLOCK_DEFAULT, None):
            raise ValueError(f"{self.algorithm.name} takes no block and no stochastic_seed; use a BLOCK_* algorithm")

    @property
    def blocks(self) -> tuple[int, int | None] | None:
        """`block` and `stochastic_seed`, if they are anything but the defaults."""
        both = (self.block, self.stochastic_seed)
        return None if both == (BLOCK_DEFAULT, None) else both

    def to_c(self) -> Any:
        """As a `pcclQuantizationOptions_t *`."""
        return _ffi.new("pcclQuantizationOptions_t *", (self.quantized_datatype.value, self.algorithm.value))


ReduceNumbers = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def reduce_numbers(
    count: int, op: ReduceOp, tag: int, operand: ReduceOperandDescriptor, quantization: QuantizationOptions
) -> ReduceNumbers:
    """The fields of a `pcclReduceDescriptor_t`, in order."""
    # `_value_` is what `value` looks up, at a tenth of the cost.
    return (
        count,
        op._value_,
        tag,
        (operand.datatype._value_, operand.distribution_hint._value_),
        (quantization.quantized_datatype._value_, quantization.algorithm._value_),
    )


def plain_numbers(count: int, op: ReduceOp, tag: int, dtype: DataType) -> ReduceNumbers:
    """The same of a reduce without options."""
    return count, op._value_, tag, (dtype._value_, _NO_HINT), _NOT_QUANTISED


NOT_QUANTISED = QuantizationOptions(DataType.UINT8, QuantizationAlgorithm.NONE)
"""The quantisation of a reduce that is given none."""

_NO_HINT: int = DistributionHint.NONE.value
_NOT_QUANTISED: tuple[int, int] = NOT_QUANTISED.quantized_datatype.value, NOT_QUANTISED.algorithm.value


@dataclass
class ReduceDescriptor:
    """A reduce by `op` of `count` elements, named by its `tag`: any 64-bit number.

    `operand_descriptor` and `quantization_options`: what the elements are, and how they travel.
    TypeError, ValueError: an argument is of another kind, or out of range.
    """

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions

    def __post_init__(self) -> None:
        self.count = whole_number("count", self.count, 63)
        self.tag = whole_number("tag", self.tag, 64)
        self.op = ReduceOp.of(self.op)
        require_kind("operand_descriptor", self.operand_descriptor, ReduceOperandDescriptor)
        require_kind("quantization_options", self.quantization_options, QuantizationOptions)

    def numbers(self) -> ReduceNumbers:
        """The fields of a `pcclReduceDescriptor_t`, in order."""
        return reduce_numbers(self.count, self.op, self.tag, self.operand_descriptor, self.quantization_options)

    def to_c(self) -> Any:
        """As a `pcclReduceDescriptor_t *`."""
        return _ffi.new("pcclReduceDescriptor_t *", self.numbers())


@dataclass
class ReduceOpDescriptor:
    """A reduce, `reduce_descriptor`, of the memory at `sendbuf_ptr` into that at `recvbuf_ptr`.

    The caller keeps the memory alive. `from_torch` and `from_numpy` take tensors `send` and `recv` instead, and hold them.
    """

    sendbuf_ptr: int
    recvbuf_ptr: int
    reduce_descriptor: ReduceDescriptor
    _buffers: Buffers | None = field(default=None, init=False, repr=False, compare=False)
    stream: int = field(default=0, init=False, repr=False, compare=False)
    """Of tensors at a GPU: after whose work so far the reduce begins, as a CUstream; 0: the legacy default stream."""

    @staticmethod
    def from_torch(send: torch.Tensor, recv: torch.Tensor, reduce_descriptor: ReduceDescriptor) -> ReduceOpDescriptor:
        """For two torch tensors, with the checks of `Communicator.all_reduce`."""
        return ReduceOpDescriptor._from_buffers(pair_buffers(send, recv, torch_memory), reduce_descriptor)

    @staticmethod
    def from_numpy(
        send: np.ndarray[Any, Any], recv: np.ndarray[Any, Any], reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """For two numpy arrays, with the checks of `Communicator.all_reduce`."""
        return ReduceOpDescriptor._from_buffers(pair_buffers(send, recv, numpy_memory), reduce_descriptor)

    @staticmethod
    def _from_buffers(buffers: Buffers, reduce_descriptor: ReduceDescriptor) -> ReduceOpDescriptor:
        check_fits(buffers, reduce_descriptor.count, reduce_descriptor.operand_descriptor.datatype)
        made = ReduceOpDescriptor(buffers.send, buffers.recv, reduce_descriptor)
        made._buffers = buffers
        made.stream = buffers.stream
        return made

    def to_c_inpl(self, c_desc: Any) -> None:
        """Writes a `pcclReduceOpDescriptor_t`. ValueError: the description was changed, and reaches beyond the tensors."""
        wanted = self.reduce_descriptor
        if self._buffers is not None:
            check_fits(self._buffers, wanted.count, wanted.operand_descriptor.datatype)
        c_desc.sendbuf = _ffi.cast("void *", self.sendbuf_ptr)
        c_desc.recvbuf = _ffi.cast("void *", self.recvbuf_ptr)
        c_desc.descriptor = wanted.numbers()

    def to_c(self) -> Any:
        """As a `pcclReduceOpDescriptor_t *`."""
        c_desc = _ffi.new("pcclReduceOpDescriptor_t *")
        self.to_c_inpl(c_desc)
        return c_desc


def check_fits(buffers: Buffers, count: int, datatype: DataType) -> None:
    """ValueError when `count` elements of `datatype` would reach beyond the tensors."""
    asked = count * datatype.itemsize
    held = buffers.numel * buffers.dtype.itemsize
    if asked > held:
        raise ValueError(
            f"the descriptor asks for {count} elements of {datatype.name} ({asked} bytes), but the tensors hold {held} bytes"
        )


EMPTY_POINTER = 1
"""Stands for the memory of tensors without elements, which have none."""


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor must be a str, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError(f"the name of a tensor must not contain a zero character: {name!r}")


@dataclass(eq=False, repr=False)
class TensorInfo:
    """One named entry of a shared state: `numel` elements of `dtype` at `data_ptr`, in memory of `device_type`.

    `name` tells it from others. With `allow_content_inequality` it is neither compared nor sent.
    TypeError, ValueError: an argument that cannot be. Made from a tensor, it keeps the tensor alive.
    """

    name: str
    data_ptr: int
    numel: int = field(kw_only=True)
    dtype: DataType = field(kw_only=True)
    device_type: DeviceType = field(kw_only=True)
    allow_content_inequality: bool = field(kw_only=True)
    _owner: Any = field(default=None, init=False)
    _storages: tuple[Any, ...] = field(default=(), init=False)  # C may write to them after the tensor was given others
    _element: Any = field(default=None, init=False)
    current: Callable[[], Any] | None = field(default=None, init=False)
    """Finds the tensor where the program has it now, to tell whether it was replaced."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        self.numel = whole_number("numel", self.numel, 63)
        require_kind("dtype", self.dtype, DataType)
        require_kind("device_type", self.device_type, DeviceType)
        if self.data_ptr == 0:
            raise ValueError(f"tensor {self.name!r} has no memory: its data pointer is 0")

    @classmethod
    def from_torch(cls, tensor: torch.Tensor, name: str, *, allow_content_inequality: bool = False) -> TensorInfo:
        """For a contiguous torch tensor on CPU or CUDA, of any shape. AssertionError for others."""
        return cls._from_tensor(tensor, torch_memory, name, allow_content_inequality)

    @classmethod
    def from_numpy(cls, tensor: np.ndarray[Any, Any], name: str, *, allow_content_inequality: bool = False) -> TensorInfo:
        """For a contiguous numpy array of any shape. AssertionError for others."""
        return cls._from_tensor(tensor, numpy_memory, name, allow_content_inequality)

    @classmethod
    def _from_tensor(
        cls, tensor: Any, memory_of: Callable[[Any, str], Memory], name: str, allow_content_inequality: bool
    ) -> TensorInfo:
        _check_name(name)
        memory = memory_of(tensor, f"tensor {name!r}")
        made = cls(
            name,
            memory.pointer or EMPTY_POINTER * (memory.numel == 0),
            numel=memory.numel,
            dtype=memory.dtype,
            device_type=memory.device,
            allow_content_inequality=allow_content_inequality,
        )
        made._owner = tensor
        made._storages = storages_of(tensor)
        made._element = tensor.dtype  # another one, if somebody sets its `data`
        return made

    @property
    def read_only(self) -> bool:
        """Whether the tensor is marked so: a peer that would have to receive it is expelled by the sync instead."""
        flags = getattr(self._owner, "flags", None)
        return flags is not None and not flags.writeable

    def replaced(self) -> str | None:
        """Why this entry is no longer the memory of the tensor it was made from; None when it is."""
        owner = self._owner
        tensor = owner if self.current is None else self.current()
        if tensor is None or self.numel == 0:
            return None
        if (  # what follows takes several times as long, and a model has many tensors
            type(tensor) is type(owner)
            and is_torch_tensor(tensor)
            and tensor.layout is owner.layout
            and tensor.dtype is self._element
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and tensor.numel() == self.numel
            and tensor.data_ptr() == self.data_ptr
        ):
            return None
        memory = torch_memory(tensor, self.name) if is_torch_tensor(tensor) else numpy_memory(tensor, self.name)
        if (memory.pointer, memory.numel, memory.dtype) == (self.data_ptr, self.numel, self.dtype):
            return None
        return (
            f"the tensor {self.name!r} was replaced since the shared state was made (other memory, size or type): "
            "update it in place, as tensor.copy_(...) and optimizer.step() do, "
            "or make a new SharedState with the revision of this one"
        )

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, numel={self.numel}, dtype={self.dtype.name}, device={self.device_type.name})"


publish(globals())
