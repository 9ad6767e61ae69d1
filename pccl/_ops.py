"""Ops in flight: what keeps their buffers alive until they have ended."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pccl._calls import INVALID_USAGE, SLICE_MS, SUCCESS, TIMED_OUT, ClosedError, Deadline, NativeCall, NativeHandle
from pccl._enums import Result
from pccl._errors import PCCLTimeoutError
from pccl._loader import load_native_module
from pccl._types import Contributors, ReduceInfo, ReduceNumbers, ReduceOpDescriptor

if TYPE_CHECKING:
    from pccl._communicator import Communicator

_ffi, _C = load_native_module()

OpArguments = tuple[int, int, ReduceNumbers, bool]  # addresses of send and recv, descriptor, retry

_VOID = _ffi.typeof("void *")
_OP = _ffi.typeof("pcclAsyncReduceOp_t *")
_INFO = _ffi.typeof("pcclReduceInfo_t *")
_DESCRIPTOR = _ffi.typeof("pcclReduceDescriptor_t *")
_OPTIONS = _ffi.typeof("pcclReduceOptions_t *")
_RANGE = _ffi.typeof("pcclReduceRange_t *")
_UUIDS = _ffi.typeof("pcclRankUuid_t[]")

MULTI_NAME = "pcclAllReduceMultipleWithRetry"


class Op:
    """One all-reduce, from before its launch until it has been awaited.

    `arguments` name it: a call that was cut short and is made again with equal ones means this op.
    """

    __slots__ = ("_await", "_comm", "_contributors", "_info", "_launch", "_live", "_owners", "_retry", "arguments", "tag")

    def __init__(self, comm: Any, arguments: OpArguments, owners: object, live: set[Op], name: str) -> None:
        send, recv, numbers, retry = arguments
        self._comm = comm
        self._retry = retry
        self.tag = numbers[2]
        self.arguments = arguments
        self._owners = owners
        self._live = live  # of the communicator: keeps it, and thus the tensors, as long as C may touch them
        self._info = _ffi.new(_INFO)
        self._contributors: tuple[Contributors, ...] = ()
        op = _ffi.new(_OP)
        descriptor = _ffi.new(_DESCRIPTOR, numbers)
        send_buffer, recv_buffer = _ffi.cast(_VOID, send), _ffi.cast(_VOID, recv)
        if retry:
            op.comm, op.tag = comm, self.tag
            options = _ffi.new(_OPTIONS, {"size": _ffi.sizeof(_OPTIONS.item), "retry": True, "launch_only": True})
            self._launch = NativeCall(
                "pcclAllReduceEx", send_buffer, recv_buffer, descriptor, comm, options, _ffi.NULL, name=name
            )
        else:
            self._launch = NativeCall("pcclAllReduceAsync", send_buffer, recv_buffer, descriptor, comm, op, name=name)
        self._await = NativeCall("pcclAwaitAsyncReduce", op, self._info, name=name)

    def launch(self, handle: NativeHandle) -> None:
        """Launches it, unless it has been. PCCLError: it could not be, and is not in flight."""
        self._live.add(self)
        if self._launch.proceed(handle) != SUCCESS:
            self._live.discard(self)
            self._launch.check()

    def wait(self, handle: NativeHandle, deadline: Deadline) -> int:
        """Waits for its end and gives its result, TIMED_OUT when the deadline came first."""
        result = self._await.proceed(handle, deadline)
        if result != TIMED_OUT:
            if self._retry and not handle.closed:
                self._contributors = contributors(handle, self.tag)
            self._owners = None
            self._live.discard(self)
        return result

    def info(self) -> ReduceInfo:
        """What it has moved. PCCLError: it has failed, or not ended yet."""
        self._await.check(self._contributors)
        return reduce_info(self._info, self._contributors)

    def failure_info(self) -> ReduceInfo:
        """After a failure: nothing, but for what had been completed with `retry`."""
        return ReduceInfo(0, 0, 0, contributors=self._contributors)


class Multi:
    """One all_reduce_multiple_with_retry, from before its launch until its end."""

    def __init__(self, comm: Any, descriptors: list[ReduceOpDescriptor], max_in_flight: int) -> None:
        self._owners: Any = list(descriptors)
        array = _ffi.new("pcclReduceOpDescriptor_t[]", len(descriptors))
        for c_descriptor, descriptor in zip(array, descriptors, strict=True):
            descriptor.to_c_inpl(c_descriptor)
        self._info = _ffi.new(_INFO)
        self._out = _ffi.new("struct pccl_multi **")
        self._launch = NativeCall("pccl_multi_new", array, len(descriptors), comm, max_in_flight, self._out, name=MULTI_NAME)
        self._await: NativeCall | None = None

    def run(self, handle: NativeHandle, deadline: Deadline) -> ReduceInfo:
        """Launches it, unless it has been, and waits. PCCLTimeoutError: it goes on."""
        if self._await is None:
            self._launch.proceed(handle)
            self._launch.check()
            multi = _ffi.gc(self._out[0], _C.pccl_multi_free)
            self._await = NativeCall("pccl_multi_wait", multi, self._info, name=MULTI_NAME)
        self._await.proceed(handle, deadline)
        self._await.check()
        return reduce_info(self._info)


def op_arguments(descriptor: ReduceOpDescriptor) -> OpArguments:
    """What names a reduce that is made again after it was cut short."""
    return (descriptor.sendbuf_ptr, descriptor.recvbuf_ptr, descriptor.reduce_descriptor.numbers(), True)


def reduce_info(c_info: Any, who: tuple[Contributors, ...] = ()) -> ReduceInfo:
    """From a `pcclReduceInfo_t *`."""
    return ReduceInfo(c_info.local_world_size, c_info.tx_bytes, c_info.rx_bytes, contributors=who)


def contributors(handle: NativeHandle, tag: int) -> tuple[Contributors, ...]:
    """Who is in the op of this tag that has ended last; empty when nothing is known of it."""
    found: list[Contributors] = []
    c_range = _ffi.new(_RANGE)
    with contextlib.suppress(ClosedError), handle as comm:
        while _C.pcclGetReduceContributors(comm, tag, len(found), c_range, _ffi.NULL, 0) == SUCCESS:
            uuids = _ffi.new(_UUIDS, c_range.contributors)
            _C.pcclGetReduceContributors(comm, tag, len(found), c_range, uuids, len(uuids))
            peers = frozenset(UUID(bytes=bytes(uuid.data)) for uuid in uuids)
            found.append(Contributors(c_range.begin, c_range.end, peers))
            if len(found) == c_range.ranges:
                break
    return tuple(found)


class Reaper:
    """Awaits, in a thread of its own, the ops whose handles were dropped. Holds their tensors until they have ended."""

    def __init__(self, handle: NativeHandle) -> None:
        self._handle = handle
        # A SimpleQueue, because handles are dropped by the garbage collector too, which may run inside any lock.
        self._dropped: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, op: Op) -> None:
        """Takes over an op."""
        self._dropped.put(op)
        # Going down, the queue holds the tensors to the end: Python 3.11 waits for ever for the start of a thread then.
        if self._thread is None and not sys.is_finalizing():
            self._thread = threading.Thread(target=self._run, name="pccl:reaper", daemon=True)
            with contextlib.suppress(RuntimeError):  # what later ones raise
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread, once the communicator is closed."""
        self._dropped.put(None)

    def _run(self) -> None:
        live: list[Op] = []
        while not self._handle.closed:
            with contextlib.suppress(queue.Empty):
                taken = self._dropped.get(block=not live)
                live += [taken] if taken else []
            live = [op for op in live if op.wait(self._handle, Deadline(SLICE_MS / 1000 / len(live))) == TIMED_OUT]


class AsyncReduceHandle:
    """An all-reduce in flight. It keeps its tensors, and its communicator, until the op has ended.

    Dropped without a `wait`, the op goes on, its tensors stay alive, and it is awaited in the background.
    """

    def __init__(self, communicator: Communicator, handle: NativeHandle, reaper: Reaper, op: Op) -> None:
        self._communicator = communicator
        self._handle = handle
        self._reaper = reaper
        self._op = op
        self._outcome: tuple[bool, int, ReduceInfo] | None = None
        self._one_waiter = threading.Lock()

    def wait(self, *, timeout: float | None = None) -> tuple[bool, int, ReduceInfo]:
        """Waits until the op has ended: (success, status, info), where status is the value of a `Result`.

        Never raises for a failed op; its info is all 0, its input is as at launch (with `retry` only in those ranges of
        `info.contributors` that have no peers). May be called again, and then gives the same tuple. `timeout` in seconds:
        PCCLTimeoutError, and the op goes on.
        """
        deadline = Deadline(timeout)
        left = deadline.remaining()
        if not self._one_waiter.acquire(timeout=-1 if left is None else left):
            raise self._timed_out()
        try:
            if self._outcome is None:
                result = self._op.wait(self._handle, deadline)
                if result == TIMED_OUT:
                    raise self._timed_out()
                if result == INVALID_USAGE and self._handle.closed:
                    result = Result.RANK_CONNECTION_LOST.value  # cancelled, as the ops of a dead communicator are
                success = result == SUCCESS
                self._outcome = (success, result, self._op.info() if success else self._op.failure_info())
            return self._outcome
        finally:
            self._one_waiter.release()

    def _timed_out(self) -> PCCLTimeoutError:
        return PCCLTimeoutError(Result.TIMED_OUT, "pcclAwaitAsyncReduce", "the op goes on: call wait again to wait on")

    def __repr__(self) -> str:
        state = "in flight" if self._outcome is None else f"ended with {self._outcome[1]}"
        return f"<AsyncReduceHandle tag {self._op.tag}: {state}>"

    def __del__(self) -> None:
        if getattr(self, "_outcome", ()) is None and not self._handle.closed:
            self._reaper.take(self._op)
