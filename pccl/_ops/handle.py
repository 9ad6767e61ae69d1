"""Handles of operations in flight, and the event descriptor that completes them.

One `Events` per communicator owns a duplicate of its event descriptor. Event loops watch that descriptor while tasks await
handles. A daemon thread watches it from the first callback on. Whoever sees the event looks at all watched handles and tells
everybody who waits for those that have ended, so one thread may read the event for the others.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import queue
import select
import threading
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pccl._core.calls import UNBOUNDED, ClosedError, Deadline, NativeHandle, take
from pccl._core.errors import OperationCancelledError, PCCLError, PCCLTimeoutError, Result, error_for
from pccl._core.library import _C, _ffi
from pccl._exports import publish

if TYPE_CHECKING:
    import asyncio

Info = TypeVar("Info")

EVENT_BYTES = 8


class Handle(Generic[Info]):
    """An operation in flight. `await handle`, `wait`, `result` and `exception` tell how it ended, as often as they are asked.

    All of them raise the operation's error, except `exception`, which returns it, and `AsyncReduceHandle.wait`, which keeps the
    contract of PCCL 1.0. Any thread may use a handle. The tensors belong to the operation until its end was seen here.

    `await` watches one descriptor per communicator and event loop (asyncio or uvloop) and needs no thread. If the task is
    cancelled, or `asyncio.timeout` expires, the operation goes on: await the handle again, or call `cancel`.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._one_waiter: Any = threading.RLock()  # held by the thread that looks for the end
        self._missed = False  # whether a thread found `_one_waiter` taken since it was last released
        self._info: Info | None = None
        self._error: PCCLError | None = None
        self._callbacks: list[Callable[[Self], object]] = []  # protected by the lock of `_events`, as is `_futures`
        self._futures: list[asyncio.Future[None]] = []

    # ---- for subclasses ----

    def _advance(self, deadline: Deadline) -> Info:
        """Waits for the end. PCCLTimeoutError: the operation goes on. Any other PCCLError is its end."""
        raise NotImplementedError

    def _request_cancel(self) -> None:
        """Asks to cancel the operation on all members, unless its end is known."""
        raise NotImplementedError

    # ---- the interface ----

    def wait(self, timeout: float | None = None) -> Info:
        """The same as `result`, with the same `timeout` in seconds."""
        return self.result(timeout)

    def result(self, timeout: float | None = None) -> Info:
        """Blocks until the operation ends. Returns its info, or raises its error.

        PCCLTimeoutError after `timeout` seconds: the operation goes on.
        """
        self._complete(Deadline(timeout))
        if self._error is not None:
            raise copy.copy(self._error)  # a copy, since a traceback would keep the tensors alive
        assert self._info is not None
        return self._info

    def exception(self, timeout: float | None = None) -> PCCLError | None:
        """Blocks until the operation ends. Returns its error; None if it succeeded.

        PCCLTimeoutError after `timeout` seconds: the operation goes on.
        """
        self._complete(Deadline(timeout))
        return self._error

    def done(self) -> bool:
        """Returns whether the operation has ended, well or not. Does not block."""
        try:
            self._complete(Deadline(0))
        except PCCLTimeoutError:
            return False
        return True

    def cancel(self, timeout: float | None = None) -> bool:
        """Ends the operation on all members alike, and blocks until it has ended.

        True: every member gets OperationCancelledError, also one that calls it later. Tensors to be sent are as at launch, those
        of an all-reduce in place too. False: it had succeeded. Any other end raises its error. PCCLTimeoutError after `timeout`
        seconds, and at once in a signal handler below which its thread waits for the operation: it is cancelled later.
        """
        self._request_cancel()
        try:
            self.result(timeout)
        except OperationCancelledError:
            return True
        return False

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Calls `callback(handle)` once, when the operation has ended; at once, on this thread, if that is known already.

        Otherwise a daemon thread of the communicator calls it, `pccl:callbacks`. Callbacks run one after another in the order in
        which they were added, and delay those of other handles while they run. Exceptions go to the logger "pccl". The handle is
        kept alive until then.
        """
        if self.done():
            _call(callback, self)
        elif not self._events.add_callback(self, callback):
            self.exception()  # the communicator is being closed, which ends all
            _call(callback, self)

    def __await__(self) -> Generator[Any, None, Info]:
        if not self.done():
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with self._events.watched_by(loop, self, future):
                if not self.done():  # it may have ended before it was watched
                    yield from future
        return self.result()

    # ---- inside ----

    @property
    def _ended(self) -> bool:
        return self._info is not None or self._error is not None

    def _complete(self, deadline: Deadline) -> None:
        """Blocks until the end is known. PCCLTimeoutError: it is not."""
        if self._ended:
            return
        if self._events.inherited:  # a thread of the parent process may have held any lock below
            self._error = error_for(Result.INVALID_USAGE.value, "wait", self._events._native.inherited_text)
            return
        if self._one_waiter._is_owned():
            self._missed = True
            text = "this thread is waiting for this operation, below a signal handler; call wait again after the handler"
            raise PCCLTimeoutError(Result.TIMED_OUT, "wait", text)
        left = deadline.remaining()
        taken: list[bool] = []
        try:
            if not take(taken, self._one_waiter, -1 if left is None else left):
                self._missed = True
                take(taken, self._one_waiter, 0)  # whoever held it may have let go before it could see that
            if not taken:
                text = "another thread is waiting for this operation; call wait again"
                raise PCCLTimeoutError(Result.TIMED_OUT, "wait", text)
            if not self._ended:
                self._find_end(deadline)
        finally:
            if taken:
                try:
                    self._one_waiter.release()
                finally:  # as the last calls, both of C: a signal comes after them
                    if self._missed:  # a thread that saw the event of this end could not look
                        self._missed = False
                        self._events.wake()

    def _find_end(self, deadline: Deadline) -> None:
        try:
            self._info = self._advance(deadline)
        except PCCLTimeoutError:
            raise
        except PCCLError as error:
            self._error = error.with_traceback(None)


class Events:
    """Tells callbacks and event loops when operations of one communicator end."""

    def __init__(self, native: NativeHandle) -> None:
        self._native = native
        # Protects all fields below, and two of each handle; no handle is completed under it. The garbage collector may end a task
        # inside it, which takes it, too.
        self._lock = threading.RLock()
        self._watched: set[Handle[Any]] = set()
        self._loops: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}  # what tasks there wait for
        self.wake: Callable[[], object] = bool
        """Lets one watching thread look at all watched handles. Does not block, takes no lock. C: no signal comes in between."""
        self._fd = -1
        self._close: weakref.finalize[..., Events] | None = None
        self._thread: threading.Thread | None = None
        self._thread_fd = -1  # wakes the thread
        # A SimpleQueue, because the garbage collector may run a callback's cleanup inside any lock.
        self._ready: queue.SimpleQueue[tuple[Handle[Any], list[Callable[[Any], object]]]] = queue.SimpleQueue()

    @property
    def inherited(self) -> bool:
        """Whether a process that this one is a fork of made it."""
        return self._native.inherited

    def closed(self) -> None:
        """Called once the communicator is destroyed: all handles have ended, and the thread ends."""
        self.wake()
        if self._thread_fd >= 0:
            os.eventfd_write(self._thread_fd, 1)

    # ---- callbacks ----

    def add_callback(self, handle: Handle[Any], callback: Callable[[Any], object]) -> bool:
        """Watches a handle that has not ended, for the thread. False: the communicator is closed."""
        with self._lock:
            if not self._open():
                return False
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="pccl:callbacks", daemon=True)
                thread.start()
                self._thread = thread
            handle._callbacks.append(callback)
            self._watched.add(handle)
        self.wake()  # it may have ended before it was watched
        return True

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._thread_fd, select.POLLIN)
        while True:
            with contextlib.suppress(InterruptedError):
                poll.poll()
            _drain(self._thread_fd)
            self._look()
            with contextlib.suppress(queue.Empty):
                while True:
                    handle, callbacks = self._ready.get_nowait()
                    while callbacks:  # and keeps none of them, with what it refers to
                        _call(callbacks.pop(0), handle, BaseException)  # one that exits must not end the thread of the others
                    del handle, callbacks
            with self._lock:
                if self._native.closed and not self._watched and self._ready.empty():
                    self._thread = None
                    return

    # ---- event loops ----

    @contextlib.contextmanager
    def watched_by(
        self, loop: asyncio.AbstractEventLoop, handle: Handle[Any], future: asyncio.Future[None]
    ) -> Generator[None, None, None]:
        """Sets the result of `future` when the handle ends. Called on the thread of its loop, from enter to exit."""
        opened = False
        try:
            with self._lock:
                opened = self._open()
                handle._futures.append(future)
                self._watched.add(handle)
                awaited = self._loops.setdefault(loop, set())
                awaited.add(future)
            if not opened:
                self._native.await_closed(UNBOUNDED)
                future.set_result(None)
            elif len(awaited) == 1:
                loop.add_reader(self._fd, self._look)
            yield
        finally:
            with self._lock:
                with contextlib.suppress(ValueError):
                    handle._futures.remove(future)
                if not handle._futures and not handle._callbacks:
                    self._watched.discard(handle)
                awaited = self._loops.get(loop, set())
                awaited.discard(future)
                if not awaited:
                    self._loops.pop(loop, None)
            if opened and not awaited:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.remove_reader(self._fd)

    # ---- inside ----

    def _open(self) -> bool:
        """Opens the descriptors, unless they are open. False: the communicator is closed.

        The duplicate outlives the communicator's own descriptor, which loops would have to give up before it is closed.
        """
        if self._fd >= 0:
            return True
        out = _ffi.new("int *")
        try:
            with self._native as pointer:
                PCCLError.check(_C.pccl_ext_comm_event_fd(pointer, out), "add_done_callback")
                fd = os.dup(out[0])
        except ClosedError:
            return False
        self._thread_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = fd
        self.wake = functools.partial(os.eventfd_write, fd, 1)
        self._close = weakref.finalize(self, _close_all, fd, self._thread_fd)
        self._close.atexit = False  # the thread is running still
        _opened.add(self)
        return True

    def _forked(self) -> None:
        if self._close is not None:
            self._close()
        self._fd = self._thread_fd = -1
        self.wake = bool
        self._lock = threading.RLock()  # which a thread of the parent may have held

    def _look(self) -> None:
        """Takes the event, and tells whoever waits for handles that have ended."""
        try:
            _drain(self._fd)
            for handle in list(self._watched):
                if handle.done():  # if another thread holds its lock, that thread wakes the events later
                    self._tell(handle)
        except BaseException:  # a signal: the other watchers have to look
            self.wake()
            raise

    def _tell(self, handle: Handle[Any]) -> None:
        """Tells whoever waits for a handle that has ended, which is watched until all are told: a signal may cut this short."""
        with self._lock:
            if handle._callbacks:
                self._ready.put((handle, handle._callbacks))  # before the thread can see that nothing is left to do
                handle._callbacks = []
            futures = list(handle._futures)
        for future in futures:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_set, future)
        with self._lock:
            if not handle._callbacks:  # else another thread has added one meanwhile, and wakes a watcher
                self._watched.discard(handle)
        if self._native.closed or not self._ready.empty():
            os.eventfd_write(self._thread_fd, 1)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _call(callback: Callable[[Any], object], handle: Handle[Any], logged: type[BaseException] = Exception) -> None:
    try:
        callback(handle)
    except logged:
        import logging

        logging.getLogger("pccl").exception("add_done_callback: the callback %r of %r raised", callback, handle)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, EVENT_BYTES)


def _close_all(*descriptors: int) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


_opened: weakref.WeakSet[Events] = weakref.WeakSet()


def _close_in_child() -> None:
    for events in list(_opened):
        events._forked()


os.register_at_fork(after_in_child=_close_in_child)


publish(globals())
