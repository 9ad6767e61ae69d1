"""Collective communication between peers that may join, die or hang at any time.

    with pccl.Communicator("10.0.0.1:48148") as comm:
        comm.connect()
        comm.wait_for_peers(2)
        comm.all_reduce(gradients, op=pccl.ReduceOp.AVG)

**Run**: Communicator, its collectives and handles (Handle, AsyncReduceHandle, CollectiveHandle), Group, MasterNode.
**Reduces**: ReduceOp, DataType, ReduceInfo, CollectiveInfo, Contributors, ErrorFeedback, QuantizationOptions,
QuantizationAlgorithm; descriptors: ReduceDescriptor, ReduceOpDescriptor, ReduceOperandDescriptor, DistributionHint.
**Shared state**: SharedState, TensorInfo, SharedStateSyncInfo, SharedStateSyncStrategy, SyncProgress, DeviceType.
**What happens**: Attribute, Diagnosis, Finding, FindingKind, MemberReport, EdgeReport, Link.
**Errors**: PCCLError (a tree, docs/troubleshooting.md) with PeerLostError, TooFewPeersError, ConnectionFailedError, ConnectError,
JoinError, CallAgainError, UsageError, SystemRefusedError, PCCLTimeoutError; ArgumentError; Result has the codes.
**Packages**: pccl.cuda, pccl.diloco, pccl.distributed, pccl.state, pccl.torchft.

`from pccl import *` takes the names that PCCL 1.0 has.
"""

import sys as _sys

from pccl import _cuda as cuda
from pccl._loader import rehome as _rehome
from pccl._pccl import *
from pccl._version import __version__ as __version__

del C, ffi  # PCCL has them in _pccl alone

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

_rehome(globals(), [_name for _name in dir() if not _name.startswith("_")])

_sys.modules["pccl.cuda"] = cuda  # for `import pccl.cuda`
