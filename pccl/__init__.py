"""Collective communication between peers that may join, die or hang at any time.

    with pccl.Communicator("10.0.0.1:48148") as comm:
        comm.connect()
        comm.wait_for_peers(2)
        comm.all_reduce(gradients, op=pccl.ReduceOp.AVG)

`__all__` has the names that PCCL has. Result codes, device types and the classes of errors can be imported as well:
`pccl.PeerLostError`, `pccl.TooFewPeersError` and so on (docs/troubleshooting.md has them all).
"""

import sys as _sys

from pccl import _cuda as cuda
from pccl._pccl import (
    AsyncReduceHandle,
    Attribute,
    Communicator,
    DataType,
    DistributionHint,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    SharedStateSyncStrategy,
    TensorInfo,
)
from pccl._pccl import CallAgainError as CallAgainError
from pccl._pccl import ConnectError as ConnectError
from pccl._pccl import ConnectionFailedError as ConnectionFailedError
from pccl._pccl import Contributors as Contributors
from pccl._pccl import DeviceType as DeviceType
from pccl._pccl import PCCLTimeoutError as PCCLTimeoutError
from pccl._pccl import PeerLostError as PeerLostError
from pccl._pccl import Result as Result
from pccl._pccl import SyncProgress as SyncProgress
from pccl._pccl import SystemRefusedError as SystemRefusedError
from pccl._pccl import TooFewPeersError as TooFewPeersError
from pccl._pccl import UsageError as UsageError
from pccl._version import __version__ as __version__

__all__ = [  # noqa: RUF022 - in the order in which the interface is documented
    "cuda",
    "Communicator",
    "MasterNode",
    "ReduceOp",
    "Attribute",
    "SharedStateSyncStrategy",
    "DataType",
    "DistributionHint",
    "QuantizationAlgorithm",
    "ReduceOperandDescriptor",
    "QuantizationOptions",
    "ReduceDescriptor",
    "TensorInfo",
    "SharedState",
    "SharedStateSyncInfo",
    "ReduceInfo",
    "ReduceOpDescriptor",
    "AsyncReduceHandle",
    "PCCLError",
]

_sys.modules["pccl.cuda"] = cuda  # for `import pccl.cuda`
