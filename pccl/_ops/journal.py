"""Calls that wait for other members several times, and go on where a timeout or Ctrl-C cut them short."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self, TypeVar

from pccl._core.calls import INVALID_USAGE, take
from pccl._core.errors import PCCLError, PCCLTimeoutError, error_for

Result = TypeVar("Result")


class Journal:
    """The steps of a call that was cut short, for its repetition.

    A member that has ended a step waits for the others in the next one, so a repetition must not begin again. It gets the results
    of the steps that have ended from here. The step that was cut short waits on with the tensor of the first call, since the
    operation in flight has that one.

    The journal belongs to an object of one communicator, such as a sampler. It is empty unless a call was cut short, by
    PCCLTimeoutError or by a signal. Entries go when the call ends, with success or with any other error. After `close` and
    `reconnect`, which cancel all operations, they have no effect, and the next call drops them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by the call
        self._comm: weakref.ref[Any] | None = None
        self._peer: object = None  # the uuid, which changes with each connection
        self._call = "", ""
        self._steps: list[_Step] = []
        self._next = 0
        self._is_cut = False
        self._binds = True

    @property
    def cut_short(self) -> str:
        """The name of the call that was cut short and waits for its repetition; empty if there is none."""
        if not self._steps or not self._binds or self._lock.locked() or self._comm is None:
            return ""
        comm = self._comm()
        return "" if comm is None or comm._handle.closed or comm.uuid != self._peer else self._call[0]

    @contextlib.contextmanager
    def call(self, comm: Any, name: str, of: str = "") -> Iterator[Self]:
        """Begins a call, or goes on with the same one that was cut short.

        `of` tells apart calls of one `name`. UsageError: another call was cut short, or another thread is inside of one.
        """
        taken: list[bool] = []
        try:
            if not take(taken, self._lock, 0):
                raise error_for(INVALID_USAGE, name, "another thread makes the same call; make one at a time")
            self._begin(comm, name, of)
            try:
                yield self
            except Exception as error:
                if not self._is_cut and not isinstance(error, PCCLTimeoutError):
                    self._clear()
                raise
            self._clear()
        finally:
            if taken:
                self._lock.release()

    def _begin(self, comm: Any, name: str, of: str) -> None:
        peer = None if comm._handle.closed else comm.uuid
        is_same = self._comm is not None and self._comm() is comm and self._peer == peer
        if self._call != (name, of) and self._steps and self._binds and is_same:
            self._refuse(name)
        if self._call != (name, of) or not is_same:
            self._clear()
        self._comm, self._peer, self._call = weakref.ref(comm), peer, (name, of)
        self._next, self._is_cut = 0, False

    def require_whole(self, name: str) -> None:
        """UsageError, as one of the call `name`: a call was cut short."""
        if self.cut_short:
            self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        cut = " ".join(filter(None, self._call))
        text = f"{cut} was cut short by a timeout or a signal, and other members wait for it; repeat it, or call reconnect()"
        raise error_for(INVALID_USAGE, name, text)

    def _clear(self) -> None:
        self._steps = []
        self._binds = True

    def step(self, call: Callable[[Any, float | None], Result], values: Any, timeout: float | None) -> tuple[Result, Any]:
        """Returns what `call(values, timeout)` returns, and the tensor whose content it has replaced by the result.

        In a repetition these are the result and the tensor of the call that was cut short.
        """
        step = self._enter(values)
        if not step.results:
            try:
                step.results.extend(itertools.starmap(call, [(step.values, timeout)]))  # by C: no signal comes in between
            except BaseException as error:
                # The handler of a signal raises errors of other kinds, and then the operation goes on.
                self._is_cut = not isinstance(error, PCCLError | TypeError | ValueError)
                raise
        return step.results[0], step.values

    def once(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Returns what `call` returns; in a repetition, what it returned at first."""
        step = self._enter(None)
        if not step.results:
            step.results.extend(itertools.starmap(call, [arguments]))
        found: Result = step.results[0]
        return found

    def release(self) -> None:
        """Notes that no member waits for the rest of the call. A repetition goes on with it, and any other call replaces it."""
        self._binds = False

    def drop_released(self) -> None:
        """Drops the entries of a call that no member waits for: the next call is no repetition of it."""
        if not self._binds and not self._lock.locked():
            self._clear()

    def _enter(self, values: Any) -> _Step:
        if self._next == len(self._steps):
            self._steps.append(_Step(values))
        self._next += 1
        return self._steps[self._next - 1]


class _Step:
    __slots__ = ("results", "values")

    def __init__(self, values: Any) -> None:
        self.values = values
        self.results: list[Any] = []  # one, once it has ended
