"""Calls of the C library that may wait: in slices, so that Ctrl-C works, and never on an object that is being freed.

A call that was cut short, by a signal or by the caller's own timeout, goes on inside the library. Python raises such a signal
as soon as the C function has returned, before its result can be stored in a variable: a call that had just succeeded would
look as if it had never been made, and making it again would be a second vote, alone. So the C functions are called
through `map` into a list, which no signal can come between, and the `NativeCall` is kept until its result has been delivered.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pccl._errors import error_for, last_detail
from pccl._loader import load_native_module

if TYPE_CHECKING:
    from pccl._types import Contributors

_, _C = load_native_module()
_set_wait_slice = _C.pccl_ext_set_wait_slice

SLICE_MS = 100
"""The longest time that a signal waits for its handler."""

DRAIN_SECONDS = 1.0
"""How long closing waits for threads that are inside a call: ten slices."""

DRAIN_STEP_SECONDS = 0.001

SUCCESS: int = _C.pcclSuccess
TIMED_OUT: int = _C.pcclTimedOut
INVALID_USAGE: int = _C.pcclInvalidUsage


class Deadline:
    """The end of a wait; `timeout` in seconds, None = no bound."""

    __slots__ = ("_end",)

    def __init__(self, timeout: float | None) -> None:
        try:
            fits = timeout is None or timeout >= 0
        except TypeError:
            raise TypeError(f"timeout must be None or a number of seconds, not {timeout!r}") from None
        if not fits:
            raise ValueError(f"timeout must be None or a number of seconds that is not negative, not {timeout!r}")
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, at least 0; None = no bound."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Whether no time is left."""
        return self._end is not None and time.monotonic() >= self._end

    def slice_ms(self) -> int:
        """The next piece of the wait, in milliseconds, at least 1."""
        if self._end is None:
            return SLICE_MS
        return max(1, min(SLICE_MS, int((self._end - time.monotonic()) * 1000) + 1))

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not beyond the deadline."""
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

    __slots__ = ("_closed", "_destroy", "_lock", "_owner", "_pointer", "_users", "noun")

    def __init__(self, noun: str, pointer: Any, destroy: Callable[[Any], int]) -> None:
        self.noun = noun
        self._pointer = pointer
        self._destroy = destroy
        self._owner = _forks
        self._lock = threading.Lock()  # protects _users and _closed
        self._users = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
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
        return f"the {self.noun} is that of the process that this one was forked from: create one after the fork"

    def __enter__(self) -> Any:
        if self.inherited:  # asked without the lock, which a thread of the parent may have held
            raise ClosedError(self.inherited_text)
        with self._lock:
            if self._closed:
                raise ClosedError(f"the {self.noun} is closed")
            self._users += 1
        return self._pointer

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1

    def close(self) -> None:
        """Frees the object, once. A forked child only forgets it: the object belongs to the parent."""
        if self.inherited:
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        # Bounded: a signal between the two halves of a `with` may leave a user behind that is none, and a daemon thread
        # never returns once the interpreter is going down. A caller that is still inside C is sent out by destroy.
        limit = Deadline(0 if sys.is_finalizing() else DRAIN_SECONDS)
        while self._users and not limit.passed():
            time.sleep(DRAIN_STEP_SECONDS)
        self._destroy(self._pointer)


class NativeCall:
    """One call of a C function; its arguments, and `keep`, are kept alive as long as it is.

    `name` is what errors call it, if that is not the function's own name.
    """

    __slots__ = ("_columns", "_function", "_keep", "_name", "_results", "_why", "arguments", "detail", "result")

    def __init__(self, function: str, *arguments: Any, name: str = "", keep: object = None) -> None:
        self.arguments = arguments
        self.result = TIMED_OUT
        self.detail = ""
        self._name = name or function
        self._function = getattr(_C, function)
        self._columns = tuple(zip(arguments, strict=True))
        self._keep = keep
        self._results: list[int] = []
        self._why = ""

    @property
    def known(self) -> int:
        """Its result, TIMED_OUT while there is none; true at any moment, where `result` may lag behind by a signal."""
        return self._results[0] if self._results else TIMED_OUT

    def proceed(self, handle: NativeHandle, deadline: Deadline = UNBOUNDED, watch: Callable[[], None] | None = None) -> int:
        """Makes the call, or waits on for it; `watch` is called after each slice of the wait.

        Returns its result, TIMED_OUT when the deadline came first.
        """
        results = self._results
        while True:
            if not results:
                try:
                    with handle:
                        self._run_slice(deadline.slice_ms())
                except ClosedError as error:
                    self.detail = str(error)
                    results.append(INVALID_USAGE)
            self.result = results[0]
            if self.result != TIMED_OUT:
                return self.result
            results.clear()
            if watch is not None:
                watch()
            if deadline.passed():
                ends = "close() or reconnect()" if handle.noun == "communicator" else "close()"
                self._why = last_detail()
                self.detail = f"{self.waits_for()}what it waited for goes on: repeat the call to wait on, or {ends} to cancel it"
                return self.result

    def check(self, contributors: tuple[Contributors, ...] = ()) -> None:
        """Raises the error for the result, unless it is success."""
        if self.result != SUCCESS:
            error = error_for(self.result, self._name, self.detail)
            error.contributors = contributors
            raise error

    def waits_for(self) -> str:
        """What the wait that was cut short was for, as far as it is known, to be followed by more; empty: nothing is known."""
        return f"{self._why}; " if self._why else ""

    def _run_slice(self, milliseconds: int) -> None:
        results = self._results
        _set_wait_slice(milliseconds)
        try:
            results.extend(map(self._function, *self._columns))
        finally:
            if results and results[0] not in (SUCCESS, TIMED_OUT):
                self.detail = last_detail()
            _set_wait_slice(0)
