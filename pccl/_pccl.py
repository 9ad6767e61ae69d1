"""The names that PCCL keeps in this module, with `ffi` and `C`; importing it initialises the library."""

from pccl import _cuda as cuda
from pccl._communicator import Communicator
from pccl._enums import (
    Attribute,
    DataType,
    DeviceType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
    Result,
    SharedStateSyncStrategy,
)
from pccl._errors import (
    CallAgainError,
    ConnectError,
    ConnectionFailedError,
    PCCLError,
    PCCLTimeoutError,
    PeerLostError,
    SystemRefusedError,
    TooFewPeersError,
    UsageError,
)
from pccl._loader import load_native_module
from pccl._master import MasterNode
from pccl._ops import AsyncReduceHandle
from pccl._state import SharedState, SharedStateSyncInfo
from pccl._state import SyncProgress as SyncProgress
from pccl._types import Contributors as Contributors
from pccl._types import (
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    TensorInfo,
)

__all__ = [
    "AsyncReduceHandle",
    "Attribute",
    "C",
    "CallAgainError",
    "Communicator",
    "ConnectError",
    "ConnectionFailedError",
    "DataType",
    "DeviceType",
    "DistributionHint",
    "MasterNode",
    "PCCLError",
    "PCCLTimeoutError",
    "PeerLostError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "Result",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "SystemRefusedError",
    "TensorInfo",
    "TooFewPeersError",
    "UsageError",
    "cuda",
    "ffi",
]

ffi, C = load_native_module()
PCCLError.check(C.pcclInit(), "pcclInit")

_build_info = ffi.new("pcclBuildInfo_t *")
PCCLError.check(C.pcclGetBuildInfo(_build_info), "pcclGetBuildInfo")
cuda.is_cuda_available = bool(_build_info.has_cuda_support)
