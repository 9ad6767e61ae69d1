"""Calls of the C library: those that wait do so in slices, so that Ctrl-C works, and none uses an object that is being freed.

A call that was cut short, by a signal or by the caller's own timeout, goes on inside the library, and its `Ticket` is kept until
its result has been delivered. What has become of it, C writes into the memory of the ticket: a signal that is raised as soon as
the C function has returned loses nothing, for the call that is repeated finds its ticket.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import time

from pccl._core.errors import PCCLError, error_for, last_detail
from pccl._core.library import _C, _ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TICKET = _ffi.typeof("struct pccl_ticket *")

SLICE_MS = 100
"""The longest time that a signal waits for its handler."""

DRAIN_SECONDS = 1.0
"""How long closing waits for threads that are inside a call: ten slices."""

DRAIN_STEP_SECONDS = 0.001

SUCCESS: int = _C.pcclSuccess
TIMED_OUT: int = _C.pcclTimedOut
INVALID_USAGE: int = _C.pcclInvalidUsage


class Deadline:
    """The end of a wait; `timeout` in seconds; None, and more than a lock can wait for (292 years), infinity too: no bound."""

    __slots__ = ("_end",)

    def __init__(self, timeout: float | None) -> None:
        try:
            fits = timeout is None or timeout >= 0
        except TypeError:
            raise TypeError(f"timeout must be None or a number of seconds, not {timeout!r}") from None
        if not fits:
            raise ValueError(f"timeout must be None or a non-negative number of seconds, not {timeout!r}")
        self._end = None if timeout is None or timeout > threading.TIMEOUT_MAX else time.monotonic() + timeout

    def sooner(self, other: Deadline) -> Deadline:
        """Returns the one of the two that ends first."""
        return other if other._end is not None and (self._end is None or other._end < self._end) else self

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None = no bound."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def slice_ms(self) -> int:
        """The next piece of the wait, in milliseconds; 0: no time is left."""
        if self._end is None:
            return SLICE_MS
        left = self._end - time.monotonic()
        return 0 if left <= 0 else min(SLICE_MS, int(left * 1000) + 1)

    def sleep(self, seconds: float) -> None:
        left = self.remaining()
        time.sleep(seconds if left is None else min(seconds, left))


UNBOUNDED = Deadline(None)


def whole_number(name: str, value: object, bits: int) -> int:
    """A number without sign that the user gave as `name`: numpy's too. TypeError: no whole number; ValueError: out of range."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{name} must be from 0 to 2**{bits} - 1, not {number}")
    return number


def milliseconds(name: str, seconds: float, least: float, most: float) -> int:
    """A number of seconds that the user gave as `name`. TypeError: no number; ValueError: not from `least` to `most`."""
    try:
        fits = least <= seconds <= most
    except TypeError:
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}") from None
    if not fits:
        raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, not {seconds!r}")
    return round(seconds * 1000)


def take(taken: list[bool], lock: Any, seconds: float = -1) -> bool:
    """Takes a lock within `seconds` (-1: no bound). Returns whether it has; then `taken` is not empty.

    The caller begins a `try` first, and releases the lock in its `finally` if `taken` is not empty. C does both here: a signal
    between `acquire` and a `try` would leave the lock taken for ever.
    """
    taken.extend(filter(None, map(lock.acquire, (True,), (seconds,))))
    return bool(taken)


CLAIM_SECONDS = 0.0002
"""Between two tries of a claim that another thread has, which is a rare case."""


class Claim:
    """What one thread at a time may do. A signal handler is refused what the frames below it are doing: no lock would be free."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[None, tuple[int]] = {}  # its methods are C functions: no signal comes inside of them

    def run(self, act: Callable[[], object], deadline: Deadline) -> bool:
        """Calls `act` once no other thread is at it. False: the deadline came first, or this thread is at it already."""
        own = (threading.get_ident(),)
        try:
            while self._holder.setdefault(None, own) is not own:
                if self._holder.get(None) == own or deadline.passed():
                    return False
                deadline.sleep(CLAIM_SECONDS)
            act()
            return True
        finally:
            try:  # without a call, after which a signal could come
                if self._holder[None] is own:
                    del self._holder[None]
            except KeyError:  # another thread has given it back just now
                pass


class ClosedError(Exception):
    """The object cannot be used any more, and why. Never leaves the package."""


_forks = 0  # between the process that loaded the package and this one; asking for the pid costs more


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class NativeHandle:
    """A C object that any thread may use and one of them closes.

    `with handle as pointer` keeps it from being freed meanwhile; ClosedError when it is closed, or belongs to
    the process that this one is a fork of. `noun` is what texts call it.
    """

    __slots__ = ("_closed", "_destroy", "_destroyed", "_destroying", "_owner", "_stop", "_users", "noun", "pointer")

    def __init__(
        self, noun: str, pointer: Any, destroy: Callable[[Any], int], stop: Callable[[Any], object] | None = None
    ) -> None:
        self.noun = noun
        self.pointer = pointer
        self._destroy = destroy
        self._stop = stop  # what comes before; again, if a signal has cut it short
        self._owner = _forks
        self._users: list[None] = []  # one for each; a list, for `append` and `pop` need no lock
        self._closed = False
        self._destroying: Any = threading.RLock()  # protects _destroyed; a signal handler may close too
        self._destroyed: list[int] = []  # what C returned, once it has

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def owned(self) -> bool:
        """Whether it is open and was made by this process, not by one that this is a fork of."""
        return not self._closed and not self.inherited

    @property
    def inherited(self) -> bool:
        """Whether a process that this one is a fork of made it."""
        return self._owner != _forks

    @property
    def inherited_text(self) -> str:
        """What a forked child is told."""
        return f"the {self.noun} belongs to the process that this one was forked from; create one after the fork"

    def check_owner(self, name: str) -> None:
        """UsageError in a forked child. `name` is what the error calls the call."""
        if self.inherited:
            raise error_for(INVALID_USAGE, name, self.inherited_text)

    def __enter__(self) -> Any:
        if self._owner != _forks:
            raise ClosedError(self.inherited_text)
        self._users.append(None)  # before it looks at `_closed`; `close` does both in the other order, so one sees the other
        if self._closed:
            self._users.pop()
            raise ClosedError(f"the {self.noun} is closed")
        return self.pointer

    def __exit__(self, *_: object) -> None:
        self._users.pop()

    @property
    def closes_below(self) -> bool:
        """Whether this thread is in `close` already: a signal handler or the garbage collector runs inside of that."""
        return bool(self._destroying._is_owned())

    def close(self) -> None:
        """Frees the object, once; whoever calls it meanwhile, or after a signal has cut it short, waits for that too.

        Inside a `close` of the same thread it does nothing, since that goes on afterwards. A forked child only forgets the
        object, which belongs to the parent.
        """
        self._closed = True
        if self.inherited or self.closes_below:
            return
        # Bounded: a signal between the two halves of a `with` may leave a user behind that is none, and a daemon thread
        # never returns once the interpreter is going down. A caller that is still inside C is sent out by destroy.
        limit = Deadline(0 if sys.is_finalizing() else DRAIN_SECONDS)
        while self._users and not self._destroyed and not limit.passed():
            time.sleep(DRAIN_STEP_SECONDS)
        with self._destroying:
            if not self._destroyed:
                if self._stop is not None:
                    self._stop(self.pointer)
                self._destroyed.extend(map(self._destroy, (self.pointer,)))  # by C: no signal comes in between

    def await_closed(self, deadline: Deadline) -> bool:
        """Waits for the end of a `close` that has begun. False: the deadline has passed first, or it is called inside that."""
        if deadline.remaining() is None:
            self.close()  # whoever began it may have been cut short by a signal
        while not self._destroyed and not deadline.passed() and not self.closes_below:
            time.sleep(DRAIN_STEP_SECONDS)
        return bool(self._destroyed)


def call(handle: NativeHandle, function: str, *arguments: Any, name: str = "") -> None:
    """Makes a call that does not wait, with the object as its first argument. `name` is what errors call it."""
    try:
        with handle as pointer:
            PCCLError.check(getattr(_C, function)(pointer, *arguments), name or function)
    except ClosedError as error:
        raise error_for(INVALID_USAGE, name or function, str(error)) from None


class Ticket:
    """A call that waits for others: begun once by a C function, and waited for until its result has been delivered.

    Its arguments, and `keep`, are kept alive as long as it is; `name` is what errors call it.
    """

    __slots__ = ("_arguments", "_begin", "_home", "c", "detail", "keep", "name", "one_caller", "result")

    def __init__(self, name: str, begin: str, *arguments: Any, keep: object = None) -> None:
        self.name = name
        self.c = _ffi.new(_TICKET)
        self.result = TIMED_OUT
        self.detail = ""
        self.one_caller = threading.Lock()  # held by the call that begins it or waits for it
        self._begin = getattr(_C, begin)
        self._home: NativeHandle | None = None  # of the object that it was begun on, which `reconnect` may replace
        self._arguments = arguments
        self.keep = keep

    @property
    def in_flight(self) -> bool:
        """Whether it was begun and has not ended; true at any moment, where `result` may lag behind by a signal."""
        return bool(self.c.kind) and self.c.result == TIMED_OUT

    def begin(self, handle: NativeHandle) -> int:
        """Begins it, unless it was begun."""
        if self.c.kind:
            return SUCCESS
        try:
            with handle as pointer:
                if pointer not in self._arguments:
                    return self._ended(INVALID_USAGE, f"reconnect() has replaced the {handle.noun} meanwhile; repeat the call")
                self._home = handle
                result: int = self._begin(*self._arguments, self.c)
                return self._ended(result, last_detail()) if result != SUCCESS else result
        except ClosedError as error:
            return self._ended(INVALID_USAGE, str(error))

    def proceed(self, handle: NativeHandle, deadline: Deadline = UNBOUNDED, watch: Callable[[], None] | None = None) -> int:
        """Begins it, unless it was begun, and waits for its end."""
        result = self.begin(handle)
        return self.wait(handle, deadline, watch) if result == SUCCESS else result

    def wait(self, handle: NativeHandle, deadline: Deadline = UNBOUNDED, watch: Callable[[], None] | None = None) -> int:
        """Waits for its end; `watch` is called after each slice of the wait.

        Returns its result, however often it is asked, and TIMED_OUT when the deadline came first. Several threads may wait.
        """
        handle = self._home or handle
        while self.c.result == TIMED_OUT:
            try:
                with handle:
                    _C.pccl_ticket_wait(self.c, deadline.slice_ms())
            except ClosedError as error:
                return self._ended(INVALID_USAGE, str(error))
            if self.c.result != TIMED_OUT:
                break
            if watch is not None:
                watch()
            if deadline.passed():
                return self._timed_out(handle)
        result: int = self.c.result
        return self._ended(result, "" if result == SUCCESS else self._text())

    def check(self) -> None:
        """Raises the error for the result, unless it is success."""
        if self.result != SUCCESS:
            raise error_for(self.result, self.name, self.detail)

    def waits_for(self) -> str:
        """What the wait that was cut short was for, as far as it is known, to be followed by more; empty: nothing is known."""
        text = self._text()
        return f"{text}; " if text else ""

    def _timed_out(self, handle: NativeHandle) -> int:
        ends = "close() or reconnect()" if handle.noun == "communicator" else "close()"
        goes_on = f"the call stays in flight; repeat it to wait on, or call {ends} to cancel it"
        return self._ended(TIMED_OUT, self.waits_for() + goes_on)

    def _text(self) -> str:
        text: bytes = _ffi.string(self.c.text)
        return text.decode("utf-8", "replace")

    def _ended(self, result: int, detail: str) -> int:
        self.result, self.detail = result, detail
        return result
