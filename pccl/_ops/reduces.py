"""Ops in flight: what keeps their buffers alive until they have ended."""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pccl._core.calls import INVALID_USAGE, SLICE_MS, SUCCESS, TIMED_OUT, UNBOUNDED, ClosedError, Deadline, NativeHandle, Ticket
from pccl._core.enums import DataType, DeviceType, ReduceOp
from pccl._core.errors import PCCLError, PCCLTimeoutError, PeerLostError, Result, UsageError, error_for
from pccl._core.gpu import DEFAULT_STREAM, hold_stream
from pccl._core.groups import name_told
from pccl._core.library import _C, _ffi
from pccl._core.results import Contributors, ReduceInfo
from pccl._core.tensors import Buffers, InputDigest, Room, RoomPool, bring_back, check_in_place, copy_memory, overlap, storages_of
from pccl._core.types import ReduceNumbers, ReduceOpDescriptor, plain_numbers
from pccl._exports import publish
from pccl._ops.feedback import ErrorFeedback
from pccl._ops.handle import Events, Handle
from pccl._ops.operations import OpTicket, request_cancel, told

if TYPE_CHECKING:
    from pccl._core.gpu import Stream

# addresses of send and recv, descriptor, retry, QuantizationOptions.blocks, error feedback
OpArguments = tuple[int, int, ReduceNumbers, bool, tuple[int, int | None] | None, ErrorFeedback | None]

# address of recv; address of send, elements and their type; op, tag, retry
PlainReduce = tuple[int, tuple[int, int, DataType], ReduceOp, int, bool]

_VOID = _ffi.typeof("void *")
_DESCRIPTOR = _ffi.typeof("pcclReduceDescriptor_t *")
_FLOATS = _ffi.typeof("float *")
_OPTIONS = _ffi.typeof("pcclReduceOptions_t *")
_OPTIONS_BYTES = _ffi.sizeof("pcclReduceOptions_t")
_RETRY = _ffi.new(_OPTIONS, {"size": _OPTIONS_BYTES, "retry": True})


def _options(retry: bool, blocks: tuple[int, int | None] | None, residual: ErrorFeedback | None, stream: int) -> Any:
    """A `pcclReduceOptions_t *`, or NULL."""
    if blocks is None and residual is None and stream == DEFAULT_STREAM:
        return _RETRY if retry else _ffi.NULL
    options = _ffi.new(_OPTIONS, {"size": _OPTIONS_BYTES, "retry": retry, "stream": _ffi.cast(_VOID, stream)})
    _set_blocks(options, blocks)
    if residual is not None:
        before, after = residual.memory()
        options.residual_in = _ffi.cast(_FLOATS, before.pointer)
        options.residual_out = _ffi.cast(_FLOATS, after.pointer)
    return options


def _set_blocks(options: Any, blocks: tuple[int, int | None] | None) -> None:
    if blocks is not None:
        options.block, seed = blocks
        options.stochastic, options.seed = seed is not None, seed or 0


class Op(OpTicket):
    """One all-reduce, from before its launch until it has been awaited.

    `arguments` name it: a call that was cut short and is made again with equal ones means this op.
    """

    __slots__ = (
        "_bytes",
        "_digestible",
        "_input",
        "_itemsize",
        "_plain",
        "_pool",
        "_residuals",
        "_rooms",
        "arguments",
        "stream",
    )

    def __init__(
        self, comm: Any, arguments: OpArguments, buffers: Buffers, live: set[Any], name: str, *, pool: RoomPool | None = None
    ) -> None:
        """With `pool`, the op works on memory of its own, and the tensors of the CPU are copied at its begin and its end."""
        send, recv, numbers, retry, blocks, residual = arguments
        self._pool = pool
        self._plain: PlainReduce | None = None  # what it was made into by `renew`
        self._rooms: tuple[Room, ...] = ()  # of the input and the result; one for both if segments are reduced in place
        self._input: InputDigest | None = None
        self._itemsize = DataType(numbers[3][0]).itemsize  # of what is reduced, which may be less than the tensor
        self._bytes = size = buffers.numel * self._itemsize
        self._digestible = buffers.device is DeviceType.CPU
        refused = send != recv and overlap((send, size), (recv, size))  # by the library, unless the op has memory of its own
        if pool is not None and size > 0 and self._digestible and not refused:
            self._rooms = (pool.take(size),) if retry and send == recv else (pool.take(size), pool.take(size))
            copy_memory(self._rooms[0].address, send, size)
            send, recv = self._rooms[0].address, self._rooms[-1].address
        descriptor = _ffi.new(_DESCRIPTOR, numbers)
        addresses = _ffi.cast(_VOID, send), _ffi.cast(_VOID, recv)
        options = _options(retry, blocks, residual, buffers.stream)
        c_arguments = *addresses, descriptor, comm, options
        kept = *buffers.owners, *storages_of(buffers.owners)
        super().__init__(name, "pccl_begin_reduce", *c_arguments, elastic=retry, live=live, keep=kept)
        self.stream = buffers.stream  # that it was launched after
        self._residuals = None if residual is None else residual.pair  # which keeps them
        self.arguments = arguments

    @property
    def tag(self) -> int:
        return self.arguments[2][2]

    @property
    def is_plain(self) -> bool:
        """Whether it was given neither options other than `retry` nor memory of its own, and its tensors are the CPU's."""
        return self._pool is None and self.arguments[4:] == (None, None) and self.stream == DEFAULT_STREAM and self._digestible

    def renew(self, comm: Any, plain: PlainReduce, keep: tuple[Any, Any]) -> None:
        """Makes a plain op that has succeeded into another plain one, which is not begun: this costs less than a new one."""
        self.c.kind, self.c.result, self.result = 0, TIMED_OUT, TIMED_OUT
        self._contributors = ()
        self._input = self._last = None
        self.keep = keep
        if plain != self._plain or self._arguments[3] is not comm:
            recv, (send, count, dtype), op, tag, retry = plain
            numbers = plain_numbers(count, op, tag, dtype)
            options = _RETRY if retry else _ffi.NULL
            self._arguments = _ffi.cast(_VOID, send), _ffi.cast(_VOID, recv), _ffi.new(_DESCRIPTOR, numbers), comm, options
            self.arguments = send, recv, numbers, retry, None, None
            self._elastic, self._plain = retry, plain
            self._itemsize, self._bytes = dtype.itemsize, count * dtype.itemsize

    def run(self, handle: NativeHandle) -> ReduceInfo | None:
        """Begins a plain op and waits for it, in one call of C.

        None: it has not succeeded; `begin` and `wait`, called as ever, tell what has become of it.
        """
        self._live.add(self)
        self._home = handle
        try:
            with contextlib.suppress(ClosedError), handle as comm:
                if _C.pccl_reduce(*self._arguments, self.c, SLICE_MS) == SUCCESS:
                    if self._elastic:
                        self._contributors = told(comm, self.tag)
                    self.result = SUCCESS
                    self._live.discard(self)
                    self.keep = None
                    return reduce_info(self.c.info, self._contributors)
        finally:
            if isinstance(self.keep, tuple):  # not before, since it takes time
                self.keep += storages_of(self.keep)
        if not self.c.kind:
            self._live.discard(self)
        return None

    def begin(self, handle: NativeHandle) -> int:
        """As that of every ticket; from before on the tensors are held."""
        self._live.add(self)
        residual = self.arguments[5]
        if residual is not None and not self.c.kind:
            residual.lend(self)
        result = super().begin(handle)
        if result != SUCCESS:
            self._let_go(success=False)
        return result

    def note_input(self) -> None:
        """Takes the digest of the input, if the operation does not write to the program's tensor. Call it at a timeout."""
        send, recv = self.arguments[:2]
        if self._input is None and self._digestible and (self._rooms or send != recv):
            self._input = InputDigest([(send, self._bytes)])

    def check_input(self) -> None:
        if self._input is not None and self.in_flight:
            self._input.check(self.name)

    def _store(self, *, success: bool) -> None:
        """Copies a private result to the program's tensor. After a failure with `retry` the completed ranges count.

        UsageError: the tensor has lost its memory.
        """
        if not self._rooms or self._pool is None or not isinstance(self.keep, tuple):
            return
        recv, result, size = self.arguments[1], self._rooms[-1].address, self._itemsize
        ranges = [(0, self._bytes // size)] if success else [(one.start, one.stop) for one in self._contributors if one.peers]
        if ranges:
            check_in_place(self.keep[1], recv, self._bytes, self.name)
        for start, stop in ranges:
            copy_memory(recv + start * size, result + start * size, (stop - start) * size)
        rooms, self._rooms = self._rooms, ()
        for room in rooms:
            self._pool.give(room)

    def _let_go(self, *, success: bool) -> None:
        if self._residuals is not None and (residual := self.arguments[5]) is not None:
            residual.give_back(self._residuals, success)
        super()._let_go(success=success)

    def check(self) -> None:
        """As that of every ticket; the error tells what had been completed."""
        try:
            super().check()
        except PCCLError as error:
            self.tell(error)
            raise

    def tell(self, error: PCCLError) -> None:
        """Tells its error what had been completed, and who is lost."""
        error.contributors = self._contributors
        if isinstance(error, PeerLostError) and self._home is not None:
            name_told(error, self._home)

    def info(self) -> ReduceInfo:
        return reduce_info(self.c.info, self._contributors)


class Multi(Ticket):
    """One all_reduce_multiple_with_retry, from before its launch until its end."""

    __slots__ = ("_descriptors", "_input", "_lost", "_pool", "_rooms")

    def __init__(
        self, comm: Any, descriptors: list[ReduceOpDescriptor], max_in_flight: int, *, pool: RoomPool | None = None
    ) -> None:
        """With `pool`, the operations work on memory of their own, unless their tensors overlap each other."""
        self._descriptors = descriptors
        self._lost = ""  # why a result is not in its tensor
        self._input: InputDigest | None = None
        self._pool = pool
        self._rooms: list[Room] = []
        array = _ffi.new("pcclReduceOpDescriptor_t[]", len(descriptors))
        options = _ffi.new("pcclReduceOptions_t[]", len(descriptors))
        for c_descriptor, c_options, descriptor in zip(array, options, descriptors, strict=True):
            descriptor.to_c_inpl(c_descriptor)
            _set_blocks(c_options, descriptor.reduce_descriptor.quantization_options.blocks)
            c_options.stream = _ffi.cast(_VOID, descriptor.stream)
        if pool is not None and _are_apart(descriptors):
            for c_descriptor, (address, size) in zip(array, map(_input_of, descriptors), strict=True):
                self._rooms.append(room := pool.take(size))
                copy_memory(room.address, address, size)
                c_descriptor.sendbuf = c_descriptor.recvbuf = _ffi.cast(_VOID, room.address)
        arguments = (array, options, len(descriptors), comm, max_in_flight)
        kept = descriptors, storages_of([_owners_of(descriptor) for descriptor in descriptors])
        super().__init__("pcclAllReduceMultipleWithRetry", "pccl_begin_multi", *arguments, keep=kept)
        self.c = _ffi.gc(self.c, _C.pccl_ticket_free)

    def note_input(self) -> None:
        """Takes the digest of the inputs, if the operations do not write to the program's tensors. Call it at a timeout."""
        if self._input is None and self._rooms:
            self._input = InputDigest(map(_input_of, self._descriptors))

    def check_input(self) -> None:
        if self._input is not None and self.in_flight:
            for descriptor in self._descriptors:
                try:
                    check_in_place(_owners_of(descriptor)[0], *_input_of(descriptor), self.name)
                except UsageError:
                    return  # what was given is gone, and cannot be compared
            self._input.check(self.name)

    def wait(self, handle: NativeHandle, deadline: Deadline = UNBOUNDED, watch: Callable[[], None] | None = None) -> int:
        """As that of every ticket. At its end results come into the program's tensors; inputs where there is no result.

        UsageError for a tensor that has lost its memory: the others have their results.
        """
        result = super().wait(handle, deadline, watch)
        if result != TIMED_OUT and not self.in_flight and self._pool is not None:
            for descriptor, room in zip(self._descriptors, self._rooms, strict=False):
                size = _input_of(descriptor)[1]
                try:
                    bring_back(_owners_of(descriptor)[1], descriptor.recvbuf_ptr, room.address, size, self.name)
                except UsageError as error:
                    self._lost = error.detail
            rooms, self._rooms = self._rooms, []
            for room in rooms:
                self._pool.give(room)
            if self._lost:
                result = self._ended(INVALID_USAGE, self._lost)
        return result


def _input_of(descriptor: ReduceOpDescriptor) -> tuple[int, int]:
    """Address and bytes of the input."""
    wanted = descriptor.reduce_descriptor
    return descriptor.sendbuf_ptr, wanted.count * wanted.operand_descriptor.datatype.itemsize


def _owners_of(descriptor: ReduceOpDescriptor) -> tuple[Any, Any]:
    """The tensors of the input and the result, if the descriptor was made from tensors."""
    return (None, None) if descriptor._buffers is None else descriptor._buffers.owners


def _are_apart(descriptors: list[ReduceOpDescriptor]) -> bool:
    """Whether no tensor is at a GPU or overlaps another one, but for inputs that are reduced in place."""
    ranges: set[tuple[int, int]] = set()
    for descriptor in descriptors:
        send, size = _input_of(descriptor)
        if size > 0 and (send == 0 or descriptor.recvbuf_ptr == 0 or _C.pccl_ext_is_at_gpu(_ffi.cast(_VOID, send))):
            return False
        found = {(send, size), (descriptor.recvbuf_ptr, size)}
        if found & ranges:
            return False
        ranges |= found
    return all(first[0] + first[1] <= second[0] for first, second in itertools.pairwise(sorted(ranges)))


def op_arguments(descriptor: ReduceOpDescriptor) -> OpArguments:
    """What names a reduce that is made again after it was cut short."""
    wanted = descriptor.reduce_descriptor
    return (descriptor.sendbuf_ptr, descriptor.recvbuf_ptr, wanted.numbers(), True, wanted.quantization_options.blocks, None)


def reduce_info(c_info: Any, who: tuple[Contributors, ...] = ()) -> ReduceInfo:
    return ReduceInfo(c_info.local_world_size, c_info.tx_bytes, c_info.rx_bytes, contributors=who)


class DroppedHandle(weakref.ref[Handle[Any]]):
    """Goes into the reaper's queue when its handle is dropped.

    The callback is a C function, and no Python code runs between the last reference and the queue: a signal handler that raises
    inside a `__del__` would lose the op.
    """

    __slots__ = ("op",)
    op: OpTicket


class Reaper:
    """Awaits, in a thread of its own, the ops whose handles were dropped. Their tensors are held until they have ended.

    Others may wait for such an op, and it is live until it has been awaited.

    `kept` has the ops, by tag, that a repeated call will ask for.
    """

    def __init__(self, handle: NativeHandle, kept: Mapping[object, Ticket]) -> None:
        self._handle = handle
        self._kept = kept
        # A SimpleQueue, because handles are dropped by the garbage collector too, which may run inside any lock.
        self._dropped: queue.SimpleQueue[DroppedHandle | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, before the first op that may need it: at the end of a handle it is too late."""
        # Going down, the queue holds the tensors to the end: Python 3.11 waits for ever for the start of a thread then.
        if self._handle.inherited:
            return
        if (self._thread is None or not self._thread.is_alive()) and not sys.is_finalizing():
            self._thread = threading.Thread(target=self._run, name="pccl:reaper", daemon=True)
            with contextlib.suppress(RuntimeError):  # what later ones raise
                self._thread.start()

    def watch(self, handle: Handle[Any], op: OpTicket) -> None:
        """From now on the op is awaited here when `handle` is dropped."""
        dropped = DroppedHandle(handle, self._dropped.put)
        dropped.op = op
        op.dropped = dropped

    def stop(self) -> None:
        """Ends the thread, once the communicator is closed."""
        self._dropped.put(None)

    def _run(self) -> None:
        live: list[DroppedHandle] = []
        while not self._handle.closed:
            dropped = None  # else the tensors of the last one would stay until another one comes
            with contextlib.suppress(queue.Empty):
                dropped = self._dropped.get(block=not live)
                if dropped is not None and self._owns(dropped):
                    live.append(dropped)
            live = [one for one in live if not self._ends(one, Deadline(SLICE_MS / 1000 / len(live)))]
        self._dropped.put(None)  # for the thread that a signal had hidden from `start`, if there is one

    def _ends(self, dropped: DroppedHandle, deadline: Deadline) -> bool:
        """Waits for the end of an op, unless another thread waits for it. False: the deadline came first."""
        if dropped.op.left_alone and not dropped.op.ended:
            deadline.sleep(SLICE_MS / 1000)
            return False
        return OpTicket.wait(dropped.op, self._handle, deadline) != TIMED_OUT

    def _owns(self, dropped: DroppedHandle) -> bool:
        """Whether nobody else will await the op. A call that is repeated makes the new handle before it gives the op up."""
        op = dropped.op
        return self._kept.get(op.tag) is not op and op.dropped is dropped


class AsyncReduceHandle(Handle[ReduceInfo]):
    """An all-reduce in flight. It keeps its tensors, and its communicator, until the op has ended.

    `wait` is that of PCCL 1.0, which never raises for a failed operation. `result`, `await` and all else are those of every
    handle. Dropped without a `wait`, the op goes on, its tensors stay alive, and it is awaited in the background.
    """

    def __init__(self, owner: object, events: Events, handle: NativeHandle, op: Op) -> None:
        super().__init__(events)
        self._owner = owner  # the communicator
        self._handle = handle
        self._op = op
        self._outcome: tuple[bool, int, ReduceInfo] | None = None

    def wait(self, *, timeout: float | None = None) -> tuple[bool, int, ReduceInfo]:  # type: ignore[override]
        """Waits until the op has ended: (success, status, info), where status is the value of a `Result`.

        Never raises for a failed op (`result` does); its info is all 0, its input is as at launch (with `retry` only in
        those ranges of `info.contributors` that have no peers). May be called again, and then gives the same tuple.
        After `close`, too, an op that had ended well is told so; one that had not was cancelled, with RANK_CONNECTION_LOST.
        `timeout` in seconds: PCCLTimeoutError, and the op goes on.
        """
        deadline = Deadline(timeout)
        if self._outcome is not None:
            return self._outcome
        self._handle.check_owner("pcclAwaitAsyncReduce")
        self._complete(deadline)
        if self._error is not None:
            outcome = False, self._error.result.value, ReduceInfo(0, 0, 0, contributors=self._error.contributors)
        else:
            assert self._info is not None
            outcome = True, SUCCESS, self._info
        self._outcome = self._outcome or outcome
        return self._outcome

    def _advance(self, deadline: Deadline) -> ReduceInfo:
        result = self._op.wait(self._handle, deadline)
        if result == TIMED_OUT:
            raise self._timed_out()
        if result == INVALID_USAGE and self._handle.closed:
            result = Result.RANK_CONNECTION_LOST.value  # cancelled, as the ops of a dead communicator are
        if result == SUCCESS:
            return self._op.info()
        error = error_for(result, "pcclAwaitAsyncReduce", self._op.detail)
        self._op.tell(error)
        raise error

    def _request_cancel(self) -> None:
        if not self._ended:
            request_cancel(self._handle, self._op)

    def wait_stream(self, stream: Stream | None = None) -> None:
        """Lets a stream wait for the op, and not the host: what is put into it from now on runs when the op has ended.

        For tensors at a GPU. `stream` is a torch.cuda.Stream or the number of a CUstream at that GPU; by default the one that
        the op was launched after. The stream goes on after a failure too, with tensors that are unspecified: `wait` tells how
        the op has ended, and has to be called all the same. Until the op has ended, make no call that waits for the whole GPU,
        such as torch.cuda.synchronize(): it can keep the op from ending. INVALID_USAGE: the tensors are at no GPU, the CUDA
        driver is older than 11.7, or the stream captures a CUDA graph.
        """
        if not self._ended and not self._op.ended:
            hold_stream(self._handle, self._op.tag, stream, self._op.stream, "pcclStreamWaitAsyncReduce")

    def _timed_out(self) -> PCCLTimeoutError:
        goes_on = f"the operation with tag {self._op.tag} stays in flight"
        text = f"{self._op.waits_for()}{goes_on}; call wait again to wait on, or call close() or reconnect() to cancel it"
        return PCCLTimeoutError(Result.TIMED_OUT, "pcclAwaitAsyncReduce", text)

    def __repr__(self) -> str:
        state = "in flight"
        if self._ended:
            state = f"ended with {SUCCESS if self._error is None else self._error.result.value}"
        return f"<AsyncReduceHandle tag {self._op.tag}: {state}>"


publish(globals())
