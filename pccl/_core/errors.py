"""The errors of the package: one class for each thing that a caller does differently. All of them are in `pccl`.

PCCLError                  any failure; `result` is the code, `detail` says what happened and what to do
├── PeerLostError          a member was lost: call again, the survivors go on
├── TooFewPeersError       this peer is alone in its group: let newcomers in
├── ConnectionFailedError  no master, refused, expelled, or the other peers cannot be reached: connect again
│   └── ConnectError       all attempts of `connect` failed; a UsageError, too, if keys do not fit
├── JoinError              this process could not join a run (also a RuntimeError): start it again, or give up
├── StateLostError         more was lost than the redundancy of snapshots bears: begin from a checkpoint
├── ProtectionError        a protection of the run has failed for good (also a RuntimeError): mend it, or do without it
├── ParityError            members hold different bytes (also a RuntimeError): restart the one that differs
├── CallAgainError         the vote or the round had no result, on all peers alike: call again
├── OperationCancelledError  a member cancelled the operation: it ended so on all members
├── UsageError             the program is wrong: fix the call
├── SystemRefusedError     no memory, threads or descriptors: nothing was started
└── PCCLTimeoutError       the caller's own `timeout` ran out (also a TimeoutError): repeat the call to wait on

Left, a SystemExit, is no error: this process has left the run, and the program ends.

ArgumentError is no PCCLError: an argument is wrong in itself (a ValueError, and an AssertionError as in PCCL 1.0).

Texts have one form, `all_reduce: the communicator is not connected; call connect first (INVALID_USAGE)`: the Python name of the
call, what happened, and the code. A `PCCLError` that is made without a detail has the text of PCCL 1.0.
"""

from __future__ import annotations

import contextlib
import re
from enum import Enum

from pccl._core.library import _C, _ffi
from pccl._exports import publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any
    from uuid import UUID

    from pccl._core.results import Contributors


class LossReason(Enum):
    """Reason why a member is gone."""

    UNKNOWN = _C.pccl_ext_loss_unknown
    """Another master served the run then, or it was long ago."""
    DIED = _C.pccl_ext_loss_died
    """Its connection to the master ended: the process or its host died, or the program failed."""
    SILENT = _C.pccl_ext_loss_silent
    """It sent no heartbeat: it hangs or is stopped, or nothing of it reaches the master."""
    UNREACHABLE = _C.pccl_ext_loss_unreachable
    """Its links to other members failed, or it lost the master."""
    EXPELLED = _C.pccl_ext_loss_expelled
    """The operator removed it, or it broke a rule."""
    DRAINED = _C.pccl_ext_loss_drained
    """The operator drained it."""
    LEFT = _C.pccl_ext_loss_left
    """It left, as it had announced."""
    ENDED = _C.pccl_ext_loss_ended
    """Its program closed the communicator, or ended with status 0."""

    @property
    def lost(self) -> bool:
        """Whether the run lost the member by a fault or an expulsion. False: it left in order."""
        return int(self.value) <= int(LossReason.EXPELLED.value)


class Result(Enum):
    """How a call of the C library ended."""

    SUCCESS = _C.pcclSuccess
    NOT_INITIALIZED = _C.pcclNotInitialized
    INTERNAL_ERROR = _C.pcclInternalError
    INVALID_ARGUMENT = _C.pcclInvalidArgument
    INVALID_USAGE = _C.pcclInvalidUsage
    TOO_FEW_PEERS = _C.pcclTooFewPeers
    MASTER_CONNECTION_FAILED = _C.pcclMasterConnectionFailed
    RANK_CONNECTION_FAILED = _C.pcclRankConnectionFailed
    RANK_CONNECTION_LOST = _C.pcclRankConnectionLost
    NO_SHARED_STATE_AVAILABLE = _C.pcclNoSharedStateAvailable
    PENDING_ASYNC_OPS = _C.pcclPendingAsyncOps
    UPDATE_TOPOLOGY_FAILED = _C.pcclUpdateTopologyFailed
    TOPOLOGY_OPTIMIZATION_FAILED = _C.pcclTopologyOptimizationFailed
    TIMED_OUT = _C.pcclTimedOut
    CANCELLED = _C.pcclCancelled
    LEFT = _C.pcclLeft
    STATE_DIFFERS = _C.pcclStateDiffers
    STATE_LOST = _C.pcclStateLost


_IRREGULAR = {
    "pcclAwaitAsyncReduce": "wait",
    "pcclCreateCommunicator": "Communicator",
    "pcclCreateGroup": "group",
    "pcclCreateMaster": "MasterNode",
    "pcclDetachMaster": "detach",
    "pcclGetMembers": "members",
    "pcclGetReduceContributors": "get_contributors",
    "pcclInit": "import pccl",
    "pcclInterruptMaster": "interrupt",
    "pcclMasterAwaitTermination": "wait",
    "pcclRunMaster": "run",
    "pcclStreamWaitAsyncReduce": "wait_stream",
    "pcclSynchronizeSharedState": "sync_shared_state",
    "pccl_ext_comm_uuid": "uuid",
    "pccl_ext_snapshot_members": "members",
    "all-to-all-v": "all_to_all",
}
"""Python names of calls whose C name differs in more than its spelling."""

_C_FUNCTION = r"\bpccl(?:_ext_\w+|[A-Z]\w*)"


def python_name(name: str) -> str:
    """Returns the Python name of a call, from its C name or from the name of a collective."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    if name.startswith("pccl_ext_"):
        return name.removeprefix("pccl_ext_").removeprefix("comm_")
    if re.match(r"pccl[A-Z]", name):
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[4:]).lower()
    return name.replace("-", "_")


def _of_python(detail: str) -> str:
    """Returns a text of the C library on one line, with the Python names of the functions that it names."""

    def rename(found: re.Match[str]) -> str:
        return python_name(found[0]) if hasattr(_C, found[0]) and callable(getattr(_C, found[0])) else found[0]

    return re.sub(_C_FUNCTION, rename, " ".join(detail.split()))


class PCCLError(Exception):
    """A call of the library failed.

    `result` is the code. `func_name` is the name of the failed call, that of the C function for the calls of PCCL 1.0. `detail`
    says what happened and what to do; it may be empty. `contributors` is what a reduce with `retry` had completed.
    """

    def __init__(self, result: Result, func_name: str, detail: str = "") -> None:
        super().__init__(result, func_name)
        self.result = result
        self.func_name = func_name
        self.detail = detail
        self.contributors: tuple[Contributors, ...] = ()

    def __str__(self) -> str:
        if not self.detail:
            return f"{self.func_name} failed with error: {self.result.name}: {self.result.name}"
        return self._text(self.detail)

    def _text(self, detail: str) -> str:
        """On one line, for `print(error)` and logs."""
        return f"{python_name(self.func_name)}: {_of_python(detail)} ({self.result.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self.args), self.__dict__

    @staticmethod
    def check(result: int, func_name: str) -> None:
        """Raises the error that fits `result`, unless it is success."""
        if result != _C.pcclSuccess:
            raise error_for(result, func_name, last_detail())


class PeerLostError(PCCLError):
    """The op was aborted because a member of the group was lost. Launched again, it runs among the survivors.

    `names` and `reasons`: of the members that are lost, and why; without a group, of three at most. A name is "" if the member
    has none. `causes` has what the master says of each, such as who expelled it. `ranks`: in the group; without one they have
    changed, and it is empty.
    """

    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    reasons: tuple[LossReason, ...] = ()
    causes: tuple[str, ...] = ()

    @property
    def reason(self) -> LossReason | None:
        """Reason of the first of the lost members. None: the error names no member."""
        return self.reasons[0] if self.reasons else None


class TooFewPeersError(PCCLError):
    """This peer is alone in its group. It can admit newcomers with `update_topology`."""


class UsageError(PCCLError):
    """The call is wrong, in itself or at this moment."""


class ConnectionFailedError(PCCLError):
    """The master or the other peers cannot be reached, or this peer is no longer part of the run."""


class ConnectError(ConnectionFailedError):
    """No attempt of `connect` succeeded. `result` and `detail` are those of the last one."""

    def __str__(self) -> str:
        failed, said = "Failed to connect to the master node", self.detail.removeprefix("cannot connect to the master")
        if said != self.detail:
            return self._text(f"{failed}{said}")  # at which address, and why
        return self._text(f"{failed}: {said}") if said else failed


class WrongKeysError(ConnectError, UsageError):
    """The keys or certificates of this process are not those of the master: another attempt fails, too."""


class JoinError(PCCLError, RuntimeError):
    """This process could not join a run: no run goes on, nobody is left who has its state, or the members refused it.

    `pccl.diloco.JoinError` and `pccl.distributed.JoinError` are the same class.
    """

    def __init__(self, detail: str, func_name: str = "join", result: Result = Result.MASTER_CONNECTION_FAILED) -> None:
        super().__init__(result, func_name, detail)


class StateLostError(PCCLError, RuntimeError):
    """More members were lost than the redundancy of snapshots bears, so no state can be restored. The text names what is missing.

    All members get it alike. `pccl.state.StateLostError` and `pccl.distributed.StateLostError` are the same class.
    """

    def __init__(self, detail: str, func_name: str = "restore") -> None:
        super().__init__(Result.STATE_LOST, func_name, detail)


class ProtectionError(PCCLError, RuntimeError):
    """A protection of the run has failed for good, so a loss would cost more than the program has asked for.

    All members get it alike, from the call that takes part in it. A second call goes on without it, until it fails again.
    """

    def __init__(self, detail: str, func_name: str = "sync") -> None:
        super().__init__(Result.INVALID_USAGE, func_name, detail)


class ParityError(PCCLError, RuntimeError):
    """Members that should hold the same state hold different bytes. All members get it alike, or those that are expelled.

    `entry` is the name of the first entry that differs. `minority` are the members that hold other bytes than the majority, and
    `names` their names; both are empty if there is no majority.
    """

    def __init__(
        self,
        detail: str,
        func_name: str = "check_parity",
        *,
        entry: str = "",
        minority: tuple[UUID, ...] = (),
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__(Result.STATE_DIFFERS, func_name, detail)
        self.entry = entry
        self.minority = minority
        self.names = names


class CallAgainError(PCCLError):
    """The vote or the round ended without a result on all peers alike, and nothing changed."""


class OperationCancelledError(PCCLError):
    """A member cancelled the operation, and it ended so on all members. The input is unchanged, and the tag is free."""


class SystemRefusedError(PCCLError):
    """The system refused memory, threads or descriptors. Nothing was started."""


class PCCLTimeoutError(PCCLError, TimeoutError):
    """The `timeout` of the call ran out; the text says for whom it waits, where that is known. Repeat the call to wait on."""


class Left(SystemExit):
    """This process has left the run in order. If nobody catches it, the program ends with status 0, or PCCL_LEFT_STATUS.

    `pccl launch` and the supervisor of pccl.distributed set that, are told, and start a replacement where they may.
    """

    def __init__(self) -> None:
        from pccl._host.waits import LEFT, left_status, tell_supervisor

        tell_supervisor(LEFT)
        super().__init__(left_status())


class ArgumentError(ValueError, AssertionError):
    """An argument is wrong in itself: nothing was launched. PCCL 1.0 raises AssertionError; new programs catch ValueError."""


@contextlib.contextmanager
def named(call: str) -> Iterator[None]:
    """Gives the errors of a block the public name of the call that the program has made."""
    try:
        yield
    except PCCLError as error:
        error.func_name = call
        raise


def _unpickled(kind: type[PCCLError], arguments: tuple[Any, ...]) -> PCCLError:
    """Makes the error of a pickle, whose constructor may take other arguments; its attributes follow."""
    return kind.__new__(kind, *arguments)


_CODES: dict[int, tuple[type[PCCLError], str]] = {
    _C.pcclNotInitialized: (UsageError, "the library is not initialised"),
    _C.pcclInternalError: (SystemRefusedError, "the system refused memory, threads or descriptors; nothing was started"),
    _C.pcclInvalidArgument: (UsageError, "an argument is invalid, or the members' arguments differ"),
    _C.pcclInvalidUsage: (UsageError, "the call is not allowed now"),
    _C.pcclTooFewPeers: (TooFewPeersError, "this peer is alone in its group; call update_topology to let newcomers in"),
    _C.pcclMasterConnectionFailed: (
        ConnectionFailedError,
        "the master cannot be reached, or this peer is no longer part of the run; call reconnect",
    ),
    _C.pcclRankConnectionFailed: (ConnectionFailedError, "the other peers cannot be reached; call reconnect"),
    _C.pcclRankConnectionLost: (PeerLostError, "a member of the group is gone; repeat the call among the survivors"),
    _C.pcclNoSharedStateAvailable: (CallAgainError, "no member has a complete state; call again with the same revision"),
    _C.pcclPendingAsyncOps: (UsageError, "operations have not been awaited; wait for their handles"),
    _C.pcclUpdateTopologyFailed: (CallAgainError, "the vote ended without a new epoch; call again"),
    _C.pcclTopologyOptimizationFailed: (CallAgainError, "the vote ended without a new order; call again"),
    _C.pcclTimedOut: (PCCLTimeoutError, "the timeout ran out; call again to wait on"),
    _C.pcclCancelled: (OperationCancelledError, "a member cancelled the operation; the input is unchanged"),
    _C.pcclLeft: (ConnectionFailedError, "this peer has left the run, as it announced"),
}
"""The class of the error for a code, and what it means where nothing else is known."""


def reason_of(error: BaseException) -> str:
    """Returns what an error says, as a part of the text of another one: without its call and code."""
    return getattr(error, "detail", "") or str(error) or type(error).__name__


def last_detail() -> str:
    """What the last failed call of this thread was about."""
    text: bytes = _ffi.string(_C.pccl_ext_detail())
    return text.decode("utf-8", "replace")


def error_for(result: int, func_name: str, detail: str = "") -> PCCLError:
    kind, meaning = _CODES.get(result, (PCCLError, ""))
    return kind(Result(result), func_name, detail or meaning)


publish(globals())
