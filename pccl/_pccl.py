"""The names that PCCL keeps in this module, with `ffi` and `C`; type checkers take those of `pccl` from here."""

from typing import Any

from pccl import _cuda as cuda  # noqa: F401 - a name that PCCL has here
from pccl import _native
from pccl._collectives import Collective as Collective
from pccl._collectives import CollectiveOp as CollectiveOp
from pccl._communicator import Communicator as Communicator
from pccl._enums import Attribute as Attribute
from pccl._enums import DataType as DataType
from pccl._enums import DeviceType as DeviceType
from pccl._enums import DistributionHint as DistributionHint
from pccl._enums import QuantizationAlgorithm as QuantizationAlgorithm
from pccl._enums import ReduceOp as ReduceOp
from pccl._enums import SharedStateSyncStrategy as SharedStateSyncStrategy
from pccl._errors import ArgumentError as ArgumentError
from pccl._errors import CallAgainError as CallAgainError
from pccl._errors import ConnectError as ConnectError
from pccl._errors import ConnectionFailedError as ConnectionFailedError
from pccl._errors import JoinError as JoinError
from pccl._errors import Left as Left
from pccl._errors import LossReason as LossReason
from pccl._errors import OperationCancelledError as OperationCancelledError
from pccl._errors import ParityError as ParityError
from pccl._errors import PCCLError as PCCLError
from pccl._errors import PCCLTimeoutError as PCCLTimeoutError
from pccl._errors import PeerLostError as PeerLostError
from pccl._errors import ProtectionError as ProtectionError
from pccl._errors import Result as Result
from pccl._errors import StateLostError as StateLostError
from pccl._errors import SystemRefusedError as SystemRefusedError
from pccl._errors import TooFewPeersError as TooFewPeersError
from pccl._errors import UsageError as UsageError
from pccl._feedback import ErrorFeedback as ErrorFeedback
from pccl._groups import Group as Group
from pccl._handle import Handle as Handle
from pccl._links import Link as Link
from pccl._master import MasterNode as MasterNode
from pccl._named import CollectiveHandle as CollectiveHandle
from pccl._reduces import AsyncReduceHandle as AsyncReduceHandle
from pccl._reports import DepartureReport as DepartureReport
from pccl._reports import Diagnosis as Diagnosis
from pccl._reports import EdgeReport as EdgeReport
from pccl._reports import Finding as Finding
from pccl._reports import FindingKind as FindingKind
from pccl._reports import JoinerReport as JoinerReport
from pccl._reports import MemberReport as MemberReport
from pccl._results import CollectiveInfo as CollectiveInfo
from pccl._results import Contributors as Contributors
from pccl._results import ParityInfo as ParityInfo
from pccl._results import ReduceInfo as ReduceInfo
from pccl._state import SharedState as SharedState
from pccl._state import SharedStateSyncInfo as SharedStateSyncInfo
from pccl._state import SyncProgress as SyncProgress
from pccl._types import QuantizationOptions as QuantizationOptions
from pccl._types import ReduceDescriptor as ReduceDescriptor
from pccl._types import ReduceOpDescriptor as ReduceOpDescriptor
from pccl._types import ReduceOperandDescriptor as ReduceOperandDescriptor
from pccl._types import TensorInfo as TensorInfo

ffi: Any = _native.ffi
C: Any = _native.lib
