"""The names that PCCL keeps in this module, with `ffi` and `C`; type checkers take those of `pccl` from here."""

from typing import Any

from pccl import _native
from pccl import cuda as cuda
from pccl._core.enums import Attribute as Attribute
from pccl._core.enums import DataType as DataType
from pccl._core.enums import DeviceType as DeviceType
from pccl._core.enums import DistributionHint as DistributionHint
from pccl._core.enums import QuantizationAlgorithm as QuantizationAlgorithm
from pccl._core.enums import ReduceOp as ReduceOp
from pccl._core.enums import SharedStateSyncStrategy as SharedStateSyncStrategy
from pccl._core.errors import ArgumentError as ArgumentError
from pccl._core.errors import CallAgainError as CallAgainError
from pccl._core.errors import ConnectError as ConnectError
from pccl._core.errors import ConnectionFailedError as ConnectionFailedError
from pccl._core.errors import JoinError as JoinError
from pccl._core.errors import Left as Left
from pccl._core.errors import LossReason as LossReason
from pccl._core.errors import OperationCancelledError as OperationCancelledError
from pccl._core.errors import ParityError as ParityError
from pccl._core.errors import PCCLError as PCCLError
from pccl._core.errors import PCCLTimeoutError as PCCLTimeoutError
from pccl._core.errors import PeerLostError as PeerLostError
from pccl._core.errors import ProtectionError as ProtectionError
from pccl._core.errors import Result as Result
from pccl._core.errors import StateLostError as StateLostError
from pccl._core.errors import SystemRefusedError as SystemRefusedError
from pccl._core.errors import TooFewPeersError as TooFewPeersError
from pccl._core.errors import UsageError as UsageError
from pccl._core.groups import Group as Group
from pccl._core.results import CollectiveInfo as CollectiveInfo
from pccl._core.results import Contributors as Contributors
from pccl._core.results import ParityInfo as ParityInfo
from pccl._core.results import ReduceInfo as ReduceInfo
from pccl._core.types import QuantizationOptions as QuantizationOptions
from pccl._core.types import ReduceDescriptor as ReduceDescriptor
from pccl._core.types import ReduceOpDescriptor as ReduceOpDescriptor
from pccl._core.types import ReduceOperandDescriptor as ReduceOperandDescriptor
from pccl._core.types import TensorInfo as TensorInfo
from pccl._ops.collectives import Collective as Collective
from pccl._ops.collectives import CollectiveOp as CollectiveOp
from pccl._ops.feedback import ErrorFeedback as ErrorFeedback
from pccl._ops.handle import Handle as Handle
from pccl._ops.reduces import AsyncReduceHandle as AsyncReduceHandle
from pccl._peer.communicator import Communicator as Communicator
from pccl._peer.named import CollectiveHandle as CollectiveHandle
from pccl._peer.shared_state import SharedState as SharedState
from pccl._peer.shared_state import SharedStateSyncInfo as SharedStateSyncInfo
from pccl._peer.shared_state import SyncProgress as SyncProgress
from pccl._run.master import MasterNode as MasterNode
from pccl._watch.links import Link as Link
from pccl._watch.reports import DepartureReport as DepartureReport
from pccl._watch.reports import Diagnosis as Diagnosis
from pccl._watch.reports import EdgeReport as EdgeReport
from pccl._watch.reports import Finding as Finding
from pccl._watch.reports import FindingKind as FindingKind
from pccl._watch.reports import JoinerReport as JoinerReport
from pccl._watch.reports import MemberReport as MemberReport

ffi: Any = _native.ffi
C: Any = _native.lib
