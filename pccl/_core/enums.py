"""The enumerations of pccl.h, with the values that the compiled core has."""

from __future__ import annotations

from enum import Enum

from pccl._core.errors import ArgumentError
from pccl._core.library import _C
from pccl._exports import publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import torch


class ReduceOp(Enum):
    """What a reduce does with the elements of its contributors.

    Of bool, SUM and MAX are the logical or, PROD and MIN the logical and, and AVG is refused. BAND, BOR and BXOR are
    bitwise and, or, exclusive or of integers, and logical ones of bool; floats are refused.
    """

    SUM = _C.pcclSum
    AVG = _C.pcclAvg
    PROD = _C.pcclProd
    MAX = _C.pcclMax
    MIN = _C.pcclMin
    BAND = _C.pcclBand
    BOR = _C.pcclBor
    BXOR = _C.pcclBxor

    @classmethod
    def of(cls, op: ReduceOp | str) -> ReduceOp:
        """Returns the member that `op` is, or names: "sum", "AVG". TypeError: another kind; ValueError: no such name."""
        if isinstance(op, cls):
            return op
        if not isinstance(op, str):
            raise TypeError(f"op must be a ReduceOp or its name, not {type(op).__name__}")
        try:
            return cls[op.upper()]
        except KeyError:
            names = ", ".join(member.name.lower() for member in cls)
            raise ValueError(f"op must be one of {names}, not {op!r}") from None


class Attribute(Enum):
    """The numbers of the epoch that a communicator has adopted."""

    GLOBAL_WORLD_SIZE = _C.PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE
    LOCAL_WORLD_SIZE = _C.PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE
    NUM_DISTINCT_PEER_GROUPS = _C.PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS
    LARGEST_PEER_GROUP_WORLD_SIZE = _C.PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE


class SharedStateSyncStrategy(Enum):
    """What a peer offers and takes in a sync of the shared state."""

    ENFORCE_POPULAR = _C.PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR
    RECEIVE_ONLY = _C.PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY
    SEND_ONLY = _C.PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY


class DistributionHint(Enum):
    """How the elements are distributed: accepted, never needed, never checked."""

    NONE = _C.pcclDistributionNone
    NORMAL = _C.pcclDistributionNormal
    UNIFORM = _C.pcclDistributionUniform


class QuantizationAlgorithm(Enum):
    """How elements travel in fewer bits.

    MIN_MAX and ZERO_POINT_SCALE have one scale for 65,536 elements, and any of several quantised types.

    The others have one fp32 scale for each block of elements (`QuantizationOptions.block`), and are for float32, float16 and
    bfloat16. A value is a code times the scale: BLOCK_INT8 has 8 bits for whole codes from -127 to 127, BLOCK_INT4 has 4 bits
    for -7 to 7, and BLOCK_E3M0 has 4 bits for 0 and the powers of two from 2**-6 to 1 of either sign (arXiv 2501.18512).
    A block that holds NaN or infinity comes back as all NaN, the same on all members.
    """

    NONE = _C.pcclQuantNone
    MIN_MAX = _C.pcclQuantMinMax
    ZERO_POINT_SCALE = _C.pcclQuantZeroPointScale
    BLOCK_INT8 = _C.pcclQuantBlockInt8
    BLOCK_INT4 = _C.pcclQuantBlockInt4
    BLOCK_E3M0 = _C.pcclQuantBlockE3M0

    @property
    def is_blockwise(self) -> bool:
        """Whether it has a scale for each block of elements."""
        return self in (self.BLOCK_INT8, self.BLOCK_INT4, self.BLOCK_E3M0)


class DeviceType(Enum):
    """Where a tensor lies."""

    CPU = _C.pcclDeviceCpu
    CUDA = _C.pcclDeviceCuda

    @classmethod
    def from_torch_device_type(cls, device_type: str) -> DeviceType | None:
        """The member for the `type` of a torch device, or None for one that is not supported."""
        return {"cpu": cls.CPU, "cuda": cls.CUDA}.get(device_type)


class DataType(Enum):
    """The type of a tensor's elements."""

    UINT8 = _C.pcclUint8
    INT8 = _C.pcclInt8
    INT16 = _C.pcclInt16
    UINT16 = _C.pcclUint16
    UINT32 = _C.pcclUint32
    INT32 = _C.pcclInt32
    UINT64 = _C.pcclUint64
    INT64 = _C.pcclInt64
    FLOAT16 = _C.pcclFloat16
    BFLOAT16 = _C.pcclBFloat16
    FLOAT = _C.pcclFloat
    DOUBLE = _C.pcclDouble
    BOOL = _C.pcclBool

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return _ITEM_SIZES[self._value_]

    def to_torch_dtype(self) -> torch.dtype:
        """The torch dtype of this type."""
        import torch

        dtype: torch.dtype = getattr(torch, _NAMES[self])
        return dtype

    def to_numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of this type. BFLOAT16 needs the ml_dtypes package: AssertionError without it."""
        import numpy as np

        if self is DataType.BFLOAT16:
            try:
                from ml_dtypes import bfloat16
            except ImportError:
                raise ArgumentError("NumPy has no bfloat16; install ml_dtypes") from None
            dtype: np.dtype[Any] = np.dtype(bfloat16)
            return dtype
        return np.dtype(_NAMES[self])

    @classmethod
    def from_torch_dtype(cls, dtype: torch.dtype) -> DataType:
        """The member for a torch dtype. ValueError: not supported."""
        found = _BY_DTYPE.get(dtype)
        if found is None:
            found = _BY_NAME.get(str(dtype).removeprefix("torch."))
            if found is None:
                raise ValueError(f"dtype {dtype} is not supported; use one of {_SUPPORTED}")
            _BY_DTYPE[dtype] = found
        return found

    @classmethod
    def from_numpy_dtype(cls, dtype: np.dtype[Any] | type[Any]) -> DataType:
        """The member for a numpy dtype. AssertionError: not supported. ValueError: foreign byte order."""
        found = _BY_DTYPE.get(dtype)
        if found is not None:
            return found
        import numpy as np

        exact = np.dtype(dtype)
        found = _BY_NAME.get(exact.name)
        if found is None:
            raise ArgumentError(f"dtype {exact} is not supported; use one of {_SUPPORTED}")
        if not exact.isnative:
            raise ValueError(f"dtype {exact!r} has a foreign byte order; convert with .astype({exact.name!r}) first")
        _BY_DTYPE[dtype] = found
        return found


# torch and numpy call them alike.
_NAMES = {
    DataType.UINT8: "uint8",
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.INT32: "int32",
    DataType.UINT64: "uint64",
    DataType.INT64: "int64",
    DataType.FLOAT16: "float16",
    DataType.BFLOAT16: "bfloat16",
    DataType.FLOAT: "float32",
    DataType.DOUBLE: "float64",
    DataType.BOOL: "bool",
}
_BY_NAME = {name: member for member, name in _NAMES.items()}
_BY_DTYPE: dict[object, DataType] = {}  # dtypes of torch and numpy that were met
_ITEM_SIZES = {member.value: int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 8) // 8 for member, name in _NAMES.items()}
_SUPPORTED = ", ".join(_NAMES.values())


publish(globals())
