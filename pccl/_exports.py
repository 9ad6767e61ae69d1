"""The public names of `pccl`, by the module that defines them. `import pccl` loads this table, and none of the modules."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PUBLIC = {
    "_collectives": ("Collective", "CollectiveOp"),
    "_communicator": ("Communicator",),
    "_reports": ("DepartureReport", "Diagnosis", "EdgeReport", "Finding", "FindingKind", "JoinerReport", "MemberReport"),
    "_enums": (
        "Attribute",
        "DataType",
        "DeviceType",
        "DistributionHint",
        "QuantizationAlgorithm",
        "ReduceOp",
        "SharedStateSyncStrategy",
    ),
    "_errors": (
        "ArgumentError",
        "CallAgainError",
        "ConnectError",
        "ConnectionFailedError",
        "JoinError",
        "LossReason",
        "Left",
        "OperationCancelledError",
        "PCCLError",
        "PCCLTimeoutError",
        "ParityError",
        "PeerLostError",
        "ProtectionError",
        "Result",
        "StateLostError",
        "SystemRefusedError",
        "TooFewPeersError",
        "UsageError",
    ),
    "_feedback": ("ErrorFeedback",),
    "_groups": ("Group",),
    "_handle": ("Handle",),
    "_links": ("Link",),
    "_master": ("MasterNode",),
    "_named": ("CollectiveHandle",),
    "_reduces": ("AsyncReduceHandle",),
    "_results": ("CollectiveInfo", "Contributors", "ParityInfo", "ReduceInfo"),
    "_state": ("SharedState", "SharedStateSyncInfo", "SyncProgress"),
    "_types": (
        "QuantizationOptions",
        "ReduceDescriptor",
        "ReduceOpDescriptor",
        "ReduceOperandDescriptor",
        "TensorInfo",
    ),
}

MODULE_OF = {name: module for module, names in PUBLIC.items() for name in names}

PACKAGES = ("cuda", "data", "diloco", "distributed", "notice", "state", "torchft")


def rehome(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Sets `__module__` of public classes and functions to their package, for help(), tracebacks and pickles.

    `namespace` is that of the package. A name that another package defines keeps its `__module__`.
    """
    package = namespace["__name__"]
    for name in names:
        value = namespace[name]
        if getattr(value, "__module__", "").startswith(f"{package}._"):
            value.__module__ = package


def publish(namespace: dict[str, Any]) -> None:
    """Adds the public names of a module to `pccl`, and sets their `__module__` to it. The last call of each module in PUBLIC."""
    package, _, module = namespace["__name__"].rpartition(".")
    public = vars(sys.modules[package])
    public.update({name: namespace[name] for name in PUBLIC[module]})
    rehome(public, PUBLIC[module])
