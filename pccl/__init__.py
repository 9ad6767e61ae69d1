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

_sys.modules["pccl.cuda"] = cuda  # for `import pccl.cuda`
