"""What can go wrong, one class per thing that a caller does differently. All of them can be imported from `pccl`.

PCCLError                  any failure; `result` is the code, `detail` says what happened
├── PeerLostError          a member was lost: launch the op again, the survivors go on
├── TooFewPeersError       this peer is alone in its group: let newcomers in
├── ConnectionFailedError  no master, refused, expelled, or the other peers cannot be reached: connect anew
│   └── ConnectError       all attempts of `connect` failed
├── CallAgainError         the vote or the round came to nothing on all peers alike: call again
├── UsageError             the program is wrong: fix the call
├── SystemRefusedError     no memory, threads or descriptors: nothing was started
└── PCCLTimeoutError       the caller's own `timeout` ran out (also a TimeoutError): repeat the call to wait on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pccl._enums import Result
from pccl._loader import load_native_module

if TYPE_CHECKING:
    from pccl._types import Contributors

_ffi, _C = load_native_module()


class PCCLError(Exception):
    """A call of the library failed.

    `result` is the code, `func_name` the C function, `detail` what happened and what to do, in words (may be empty; `str`
    ends with it), `contributors` what a reduce with `retry` had completed.
    """

    def __init__(self, result: Result, func_name: str, detail: str = "") -> None:
        super().__init__(result, func_name)
        self.result = result
        self.func_name = func_name
        self.detail = detail
        self.contributors: tuple[Contributors, ...] = ()

    def __str__(self) -> str:
        return self._with_detail(f"{self.func_name} failed with error: {self.result.name}: {self.result.name}")

    def _with_detail(self, text: str) -> str:
        """On one line, for `print(error)` and logs."""
        return f"{text}: {' '.join(self.detail.split())}" if self.detail else text

    @staticmethod
    def check(result: int, func_name: str) -> None:
        """Raises the error that fits `result`, unless it is success."""
        if result != _C.pcclSuccess:
            raise error_for(result, func_name, last_detail())


class PeerLostError(PCCLError):
    """The op was aborted because a member of the group was lost. Launched again, it runs among the survivors.

    `ranks`: of a collective over a group, the ranks of the members that are lost.
    """

    ranks: tuple[int, ...] = ()


class TooFewPeersError(PCCLError):
    """This peer is alone in its group. It can admit newcomers with `update_topology`."""


class ConnectionFailedError(PCCLError):
    """The master or the other peers cannot be reached, or this peer is no longer part of the run."""


class ConnectError(ConnectionFailedError):
    """No attempt of `connect` succeeded. `result` and `detail` are those of the last one."""

    def __str__(self) -> str:
        return self._with_detail("Failed to connect to the master node")


class CallAgainError(PCCLError):
    """The vote or the round ended without a result on all peers alike, and nothing changed."""


class UsageError(PCCLError):
    """The call is wrong, in itself or at this moment."""


class SystemRefusedError(PCCLError):
    """The system refused memory, threads or descriptors. Nothing was started."""


class PCCLTimeoutError(PCCLError, TimeoutError):
    """The `timeout` of the call ran out; the text says for whom it waits, where that is known. Repeat the call to wait on."""


_CLASSES: dict[int, type[PCCLError]] = {
    _C.pcclNotInitialized: UsageError,
    _C.pcclInternalError: SystemRefusedError,
    _C.pcclInvalidArgument: UsageError,
    _C.pcclInvalidUsage: UsageError,
    _C.pcclTooFewPeers: TooFewPeersError,
    _C.pcclMasterConnectionFailed: ConnectionFailedError,
    _C.pcclRankConnectionFailed: ConnectionFailedError,
    _C.pcclRankConnectionLost: PeerLostError,
    _C.pcclNoSharedStateAvailable: CallAgainError,
    _C.pcclPendingAsyncOps: UsageError,
    _C.pcclUpdateTopologyFailed: CallAgainError,
    _C.pcclTopologyOptimizationFailed: CallAgainError,
    _C.pcclTimedOut: PCCLTimeoutError,
}


def last_detail() -> str:
    """What the last failed call of this thread was about."""
    text: bytes = _ffi.string(_C.pccl_ext_detail())
    return text.decode("utf-8", "replace")


def error_for(result: int, func_name: str, detail: str = "") -> PCCLError:
    """The exception for a code other than success."""
    return _CLASSES.get(result, PCCLError)(Result(result), func_name, detail)
