"""What a call gives back: torch's Work, waited for by whoever calls `wait`, or by one thread where a future was asked for."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import queue
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist

from pccl._core.calls import take
from pccl._core.errors import Result
from pccl.distributed._calls import TURN_SECONDS, Call, Origin, hearing, made_under
from pccl.distributed._errors import CollectiveTimeoutError
from pccl.distributed._tensors import Marks, follow, mark

_LEAST_SECONDS = 1e-3
"""A limit that has passed; 0 would stand for that of the group."""

_STOP_SECONDS = 5.0
"""How long the thread is waited for at its end, where the calls of others are still under way."""

_KEPT, _KEPT_BYTES = 256, 4096
"""How many works that Python has dropped are kept for C++, and how large their tensors may be."""


Device = int | str | torch.device


def seconds_of(limit: timedelta | float | None) -> float:
    """Returns a limit in seconds, which torch takes as a number, too; 0.0: none is given.

    TypeError, ValueError: it is neither, or negative.
    """
    if limit is None:
        return 0.0
    if not isinstance(limit, (timedelta, Real)) or isinstance(limit, bool):
        raise TypeError(f"the timeout must be a timedelta or a number of seconds, not {type(limit).__name__}")
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else float(limit)
    if not seconds >= 0:
        raise ValueError(f"the timeout must not be negative or nan: it is {limit}")
    return min(seconds, threading.TIMEOUT_MAX)


class Future(torch.futures.Future[Any]):
    """A future of a call's result, or of what a callback returns. Its callbacks may make calls, in the same order on all members.

    A callback runs when its call has ended, in one thread or another, at a moment that differs between members. Calls that it
    makes would come between those of the program at other places on each. So they are not numbered with the program's: what names
    one is the call whose end it follows, the place of the callback among that call's, and the place of the call within it.
    """

    def __init__(self, origin: Origin | None, devices: Sequence[Device] = ()) -> None:
        super().__init__(devices=[*devices])
        self._origin = origin
        self._devices = devices
        self._callbacks = 0

    def then(self, callback: Callable[[Any], Any]) -> Future:
        origin = self._next_origin()
        following = Future(origin, self._devices)

        def run(_: Any) -> None:
            try:
                with made_under(origin):
                    result = callback(self)
            except Exception as error:
                following.set_exception(error)
            except BaseException as error:  # Ctrl-C, or an exit: torch takes nothing but an Exception
                following.set_exception(RuntimeError(f"the callback ended with {error!r}"))
                raise
            else:
                following.set_result(result)

        super().add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        origin = self._next_origin()

        def run(_: Any) -> None:
            with made_under(origin):
                callback(self)

        super().add_done_callback(run)

    @property
    def has_callbacks(self) -> bool:
        return self._callbacks > 0

    def _next_origin(self) -> Origin | None:
        self._callbacks += 1
        return None if self._origin is None else (*self._origin, self._callbacks)


class Work(dist.Work):
    """A call under way. Dropped without a `wait`, it goes on."""

    def __init__(self, completer: Completer, calls: Sequence[Call], timeout: float, result: Any) -> None:
        super().__init__()
        self._completer = completer
        self._calls = calls
        self.origin = next((call.origin for call in calls if call.origin is not None), None)
        """That of calls in callbacks of the future."""
        self._timeout = timeout
        self.outcome = result
        self._marks: Marks = []
        self._ended = False
        self._error: Exception | None = None
        self.for_cpp = False
        """Whether the reducer of DDP reads the future in C++."""
        self.dropped = False
        """Whether the program has dropped it: then it cannot know when the call has ended, and nor do other members."""
        self._future: torch.futures.Future[Any] | None = None
        self._plain: Future | None = None  # the one of Python, from which that of C++ is made
        self._settling: dict[Future, tuple[int]] = {}  # futures that are being completed, and by which thread
        self._one_waiter = threading.Lock()

    def __del__(self) -> None:
        """Keeps a call that Python has dropped: the core has room for few unawaited ones, and C++ may wait for this object later.

        DDP hands works of `Join` to its reducer in C++, which has no reference to the Python half. Once that is collected, a wait
        in C++ never ends.
        """
        if self._calls and not sys.is_finalizing():
            self.dropped = True
            self._completer.adopt(self)

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Returns True when the call has ended well; raises what it ended with otherwise.

        A future of the call that was asked for before is complete by then. It blocks the host for tensors on a GPU, too; what the
        current stream has from then on finds the result.
        CollectiveTimeoutError after `timeout`, or that of the call: it goes on, and may be waited for again.
        """
        seconds = seconds_of(timeout)
        if not self._ended:
            self.complete(seconds if seconds > 0 else self._timeout)
        if self._plain is not None:
            self.settle(self._plain)
        if self._error is not None:
            raise self._error
        follow(self._marks)
        return True

    def complete(self, seconds: float) -> None:
        """Waits for the end and keeps its error."""
        end = time.monotonic() + seconds
        taken: list[bool] = []
        try:
            if not take(taken, self._one_waiter, min(seconds, threading.TIMEOUT_MAX)):
                raise CollectiveTimeoutError(Result.TIMED_OUT, "wait", "Timed out while another thread is waiting for the call")
            if self._ended:
                return
            while self._calls:
                try:
                    self._calls[0].wait(max(_LEAST_SECONDS, end - time.monotonic()) if len(self._calls) > 1 else seconds)
                except CollectiveTimeoutError:
                    raise
                except Exception as error:
                    self._error = self._error or error
                self._calls = self._calls[1:]
            if self._error is None:
                try:
                    self._marks = mark(_tensors(self.outcome))
                except Exception as error:
                    self._error = error
            self._ended = True
        finally:
            if taken:
                self._one_waiter.release()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors of the result. What is chained to it runs in the thread that completes futures."""
        if self._future is None:
            self._plain = self._completer.future_of(self)
            self._future = self._plain if not self.for_cpp else self._future_for_cpp(self._plain)
        return self._future

    def _future_for_cpp(self, plain: Future) -> Any:
        """Returns a future that is right for C++.

        torch keeps the exception of a Python future as its value. C++ takes that for tensors, and crashes. An exception in a
        callback becomes an error in C++, too.
        """
        future: Any = torch._C.Future.then(plain, lambda done: done.value())
        # The C++ hook that compresses to float16 expects a C++ list of tensors, which cannot be on a GPU.
        if any(tensor.dtype is torch.float16 for tensor in _tensors(self.outcome)) and not self.devices():
            future = torch.jit.fork(_compiled(), future, self.outcome)  # type: ignore[no-untyped-call]
        return future

    def settle(self, future: Future) -> None:
        """Gives a future the outcome of the call, which has ended. Returns once the future is complete, whoever completes it."""
        self._settle(future, self._error)
        own = (threading.get_ident(),)
        while not future.done() and self._settling.get(future) != own:  # else a signal handler is inside `settle`
            time.sleep(0)
            self._settle(future, self._error)

    def expire(self, future: Future, error: Exception) -> None:
        """Ends a future whose limit has passed, or that cannot be completed; the call goes on."""
        self._settle(future, error)

    def _settle(self, future: Future, error: Exception | None) -> None:
        """Completes a future, unless it is complete, or a thread is at it. Call it again if a signal has cut it short."""
        own = (threading.get_ident(),)
        try:
            if self._settling.setdefault(future, own) is own and not future.done():
                if error is None:
                    follow(self._marks)
                    future.set_result(self.outcome)
                else:
                    future.set_exception(error)
        finally:
            if self._settling.get(future) is own:
                del self._settling[future]

    def devices(self) -> list[Device]:
        return [*{tensor.device for tensor in _tensors(self.outcome) if not tensor.is_cpu}]

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._ended or all(call.done() for call in self._calls)

    done = is_completed  # as a call, of which a coalesced work consists

    def is_success(self) -> bool:
        """Whether the call has ended well. Waits for nothing but the end of what has arrived."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What the call has ended with, if not well."""
        if not self._ended and self.is_completed():
            self.complete(self._timeout)
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return _tensors(self.outcome)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank


def _tensors_after(future: torch.jit.Future[int], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.jit.wait(future)  # type: ignore[no-untyped-call]
    return tensors


@functools.cache
def _compiled() -> Any:
    """The function above, as one whose future has a list of tensors in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # nothing else gives such futures
        return torch.jit.script(_tensors_after)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in _tensors(part)]


class Completer:
    """The thread that completes the futures of a process; it is started by the first of them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, Future] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # a work may be dropped anywhere
        self._stopped = False
        self._kept: collections.deque[Work] = collections.deque(maxlen=_KEPT)

    def future_of(self, work: Work) -> Future:
        """A future that this thread completes.

        It is complete already if the call has ended, as torchft's Manager expects, or if this thread asks for it.
        """
        future = Future(work.origin, work.devices())
        if work._ended or threading.current_thread() is self._thread:
            work.complete(work._timeout)
            work.settle(future)
            return future
        if not self._completes(work, future):
            while not _settled(work, future, time.monotonic() + work._timeout, patient=True):
                pass
        return future

    def _completes(self, work: Work, future: Future) -> bool:
        """Gives the thread a future to complete. Whether there is a thread: it has not been stopped."""
        with self._starting:
            if not self._stopped:
                if self._thread is None:
                    atexit.register(_stop, weakref.ref(self))
                    self._thread = threading.Thread(target=self._run, name="pccl:futures", daemon=True)
                    self._thread.start()
                self._queue.put((work, future))
            return not self._stopped

    def adopt(self, work: Work) -> None:
        """Waits for a work that was dropped. What has ended already costs nothing."""
        size = sum(tensor.nbytes for tensor in _tensors(work.outcome))
        if size <= _KEPT_BYTES:
            self._kept.append(work)
        if work.is_completed():
            # Without a wait: the garbage collector may drop it in any thread, the one that closes the communicator too.
            with contextlib.suppress(CollectiveTimeoutError), _heard_apart(work):
                work.complete(_LEAST_SECONDS)
        if not work._ended:  # not by this thread: a callback may have dropped it; without a thread the communicator is closed
            self._completes(work, Future(work.origin, work.devices()))

    def stop(self) -> None:
        """Ends the thread when it has completed what it was given; what is asked of it later is completed by who asks."""
        with self._starting:
            self._stopped = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        # A thread that is inside torch when the interpreter ends aborts the process.
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        waiting: list[tuple[Work, Future, float]] = []
        stopped = False
        while waiting or not stopped:
            try:
                while not stopped:
                    item = self._queue.get(block=not waiting)
                    if item is None:
                        stopped = True
                        break
                    waiting.append((*item, time.monotonic() + item[0]._timeout))
                    del item  # else the tensors of the last one would stay until another one comes
            except queue.Empty:
                pass
            waiting = self._unsettled(waiting)

    @staticmethod
    def _unsettled(waiting: list[tuple[Work, Future, float]]) -> list[tuple[Work, Future, float]]:
        """Completes the futures whose calls have ended. Returns the rest.

        The callbacks of a group run in the order of the calls, on all members alike: one may wait for a call that it makes, and
        would wait forever if another member waited in the callback of another call.
        """
        left: list[tuple[Work, Future, float]] = []
        earlier = set()  # groups of calls that are under way
        for entry in waiting:
            work, future, _ = entry
            group = None if work.origin is None else work.origin[0]
            try:
                settled = not (future.has_callbacks and group in earlier) and _settled(*entry, patient=entry is waiting[0])
            except Exception as error:  # of this one: all others are waiting for this thread
                work.expire(future, error)
                settled = True
            if not settled:
                left.append(entry)
                if group is not None:
                    earlier.add(group)
        return left


@contextlib.contextmanager
def _heard_apart(work: Work) -> Iterator[None]:
    """Lets what a work ends with wait for the program, which knows at which of its calls it sees it; or for a later call."""
    before = hearing.published, hearing.kept
    hearing.published, hearing.kept = False, not work.dropped
    try:
        yield
    finally:
        hearing.published, hearing.kept = before


def _settled(work: Work, future: Future, end: float, *, patient: bool) -> bool:
    """Whether a future was completed; `patient`: waits for it a while."""
    left = end - time.monotonic()
    if not patient and left > 0 and not work.is_completed():
        return False
    try:
        with _heard_apart(work):
            work.complete(min(TURN_SECONDS, max(left, _LEAST_SECONDS)))
    except CollectiveTimeoutError as error:
        if left > 0:
            return False
        work.expire(future, error)
        return True
    work.settle(future)
    return True


def _stop(completer: weakref.ref[Completer]) -> None:
    living = completer()
    if living is not None:
        living.stop()
