"""Collective communication between peers that may join, die or hang at any time.

    with pccl.Communicator("10.0.0.1:48148", keys="run.peer") as comm:
        comm.connect()
        comm.wait_for_peers(2)
        comm.all_reduce(gradients, op=pccl.ReduceOp.AVG)

**Run**: Communicator, its collectives and handles (Handle, AsyncReduceHandle, CollectiveHandle), Group, MasterNode.
**Reduces**: ReduceOp, DataType, ReduceInfo, CollectiveInfo, Contributors, ErrorFeedback, QuantizationOptions,
QuantizationAlgorithm; descriptors: ReduceDescriptor, ReduceOpDescriptor, ReduceOperandDescriptor, DistributionHint.
**Shared state**: SharedState, TensorInfo, SharedStateSyncInfo, SharedStateSyncStrategy, SyncProgress, DeviceType.
**What happens**: Attribute, LossReason, Diagnosis, Finding, FindingKind, MemberReport, EdgeReport, JoinerReport,
DepartureReport, Link.
**Errors**: PCCLError (a tree, docs/troubleshooting.md) with PeerLostError, TooFewPeersError, ConnectionFailedError, ConnectError,
JoinError, StateLostError, ProtectionError, CallAgainError, UsageError, SystemRefusedError, PCCLTimeoutError; ArgumentError;
Result has the codes.
**Packages**: pccl.cuda, pccl.data, pccl.diloco, pccl.distributed, pccl.state, pccl.torchft.

`from pccl import *` takes the names that PCCL 1.0 has. Each name is imported when it is first used.
"""

import atexit as _atexit
import sys as _sys

from pccl._exports import lazy as _lazy
from pccl._version import __version__ as __version__

__getattr__, __dir__ = _lazy(__name__)


@_atexit.register
def _await_masters() -> None:
    """Waits for running masters after the exit handlers that the program registered, which may close them."""
    if "pccl._run.master" in _sys.modules:
        _sys.modules["pccl._run.master"].serve_all_to_the_end()


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
