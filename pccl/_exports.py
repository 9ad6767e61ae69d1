"""The public names of `pccl`, by the module that defines them. `import pccl` loads this table, and none of the modules."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PUBLIC = {
    "_core.enums": (
        "Attribute",
        "DataType",
        "DeviceType",
        "DistributionHint",
        "QuantizationAlgorithm",
        "ReduceOp",
        "SharedStateSyncStrategy",
    ),
    "_core.errors": (
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
    "_core.groups": ("Group",),
    "_core.results": ("CollectiveInfo", "Contributors", "ParityInfo", "ReduceInfo"),
    "_core.types": (
        "QuantizationOptions",
        "ReduceDescriptor",
        "ReduceOpDescriptor",
        "ReduceOperandDescriptor",
        "TensorInfo",
    ),
    "_ops.collectives": ("Collective", "CollectiveOp"),
    "_ops.feedback": ("ErrorFeedback",),
    "_ops.handle": ("Handle",),
    "_ops.reduces": ("AsyncReduceHandle",),
    "_peer.communicator": ("Communicator",),
    "_peer.named": ("CollectiveHandle",),
    "_peer.shared_state": ("SharedState", "SharedStateSyncInfo", "SyncProgress"),
    "_run.master": ("MasterNode",),
    "_watch.links": ("Link",),
    "_watch.reports": ("DepartureReport", "Diagnosis", "EdgeReport", "Finding", "FindingKind", "JoinerReport", "MemberReport"),
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
        if getattr(value, "__module__", "").startswith((f"{package}._", "pccl._")):
            value.__module__ = package


def publish(namespace: dict[str, Any]) -> None:
    """Adds the public names of a module to `pccl`, and sets their `__module__` to it. The last call of each module in PUBLIC."""
    module = namespace["__name__"].removeprefix("pccl.")
    public = vars(sys.modules["pccl"])
    public.update({name: namespace[name] for name in PUBLIC[module]})
    rehome(public, PUBLIC[module])
