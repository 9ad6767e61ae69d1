"""Notices that this process has to go soon: signals, a file, or a callable that asks the cloud, as examples/spot.py has some.

A member that has a notice leaves between two steps: `Communicator.leaves_on`, `pccl.distributed.Elastic(leaves_on=)`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from numbers import Real
from types import FrameType
from typing import Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger("pccl")

SAME_NOTICE_SECONDS = 2.0
"""Signals within them are of one notice."""

LOOK_SECONDS = 1.0
"""After them a wait looks again. Another one wakes it, unless an exception ends that one first."""

T = TypeVar("T")


class _Once(Generic[T]):
    """A value that is set once, as a `threading.Event` is, but also by a handler of a signal.

    A handler may interrupt whoever holds a lock, that of an Event included. So each change is one call that never blocks.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[T]] = {}
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self, value: T) -> bool:
        """Sets it, unless it is set. Returns whether this call has."""
        made = [value]
        if self._values.setdefault("value", made) is not made:
            return False
        self._unset.release()
        return True

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def value(self) -> T:
        """KeyError: it is not set."""
        return self._values["value"][0]

    def wait(self, timeout: float | None) -> bool:
        """Waits until it is set, at most `timeout` seconds. Returns whether it is."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self:
            left = until - time.monotonic()
            if self._unset.acquire(timeout=min(max(left, 0), LOOK_SECONDS)):
                self._unset.release()  # for the next one that waits; it looks again if an exception comes before this line
            elif left <= 0:
                break
        return bool(self)


class Notice:
    """Whether this process has to go soon. It is given once, by the first of its sources.

    `signals`: the first one gives the notice. One that comes 2 s later or more does what it would have done without; sooner, it
    belongs to the same notice, since a scheduler and a launcher may each send one. Several notices of one signal all hear it. In
    a process that was forked since, such as a worker of a DataLoader, signals do what they would have done without. ValueError:
    the constructor is called with signals, and not in the main thread; or one is SIGKILL or SIGSTOP. TypeError: one is no
    signal, or `poll` is not callable.

    `file`: the notice is given when this file exists. `poll`: a callable that returns False or None while there is no notice;
    then True, or in how many seconds the process has to be gone. It may block. An exception, and any other answer, count as no
    notice; the first one is logged. Both are looked at every `every` seconds, each in a thread of its own.

    `within`: how many seconds there are after a signal or the file; None: that is not known.
    """

    def __init__(
        self,
        *signals: signal.Signals,
        file: str | os.PathLike[str] | None = None,
        poll: Callable[[], float | bool | None] | None = None,
        every: float = 1.0,
        within: float | None = None,
    ) -> None:
        for number in signals:
            if number not in signal.valid_signals():
                raise TypeError(f"signals must be of the module signal, such as signal.SIGTERM, not {number!r}")
            if number in (signal.SIGKILL, signal.SIGSTOP):
                raise ValueError(
                    f"no process can catch {signal.Signals(number).name}; pass another signal, such as signal.SIGTERM"
                )
        if signals and threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "a notice of signals has to be made in the main thread, which handles them; make it there, and pass it"
            )
        if poll is not None and not callable(poll):
            raise TypeError(f"poll must be a callable that returns False, True or a number of seconds, not {poll!r}")
        if not every > 0:
            raise ValueError(f"every must be a positive number of seconds, not {every!r}")
        if within is not None and not 0 <= within < math.inf:
            raise ValueError(f"within must be a number of seconds, not {within!r}")
        if file is not None and not os.fspath(file):
            raise ValueError("file must name a file, not be empty")
        self._every = every
        self._within = within
        self._listeners: deque[Callable[[Notice], None]] = deque()
        self._given: _Once[tuple[str, float | None]] = _Once()
        self._closed: _Once[None] = _Once()
        self._signal = 0
        self._signalled = 0.0
        self._pid = os.getpid()
        # A handler of signals does no more than wake a thread. A put never blocks, even in a put.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            if signals:
                for number in signals:
                    _hearing.append((_installed(number), self))
                threading.Thread(target=self._watch_signals, name="pccl:notice", daemon=True).start()
            if file is not None:
                threading.Thread(target=self._look, args=(os.fsdecode(file),), name="pccl:notice-file", daemon=True).start()
            if poll is not None:
                threading.Thread(target=self._ask, args=(poll,), name="pccl:notice-poll", daemon=True).start()
        except BaseException:  # such as a thread that the system refuses; nobody could close the notice
            self.close()
            raise

    @property
    def given(self) -> bool:
        """Whether the process has to go. A signal counts from the moment when it has interrupted the main thread."""
        self._give_if_signalled()
        return bool(self._given)

    def __bool__(self) -> bool:
        return self.given

    @property
    def reason(self) -> str:
        """What has given it, such as "SIGTERM"; "" before."""
        return self._given.value[0] if self._given else ""

    @property
    def seconds_left(self) -> float | None:
        """In how many seconds the process has to be gone, 0 at least; None: not known, or no notice was given."""
        at = self._given.value[1] if self._given else None
        return None if at is None else max(0.0, at - time.monotonic())

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is given, at most `timeout` seconds. Whether it was."""
        return self._given.wait(timeout)

    def give(self, reason: str, within: float | None = None) -> None:
        """Gives it, unless it was given, for a `reason` that logs tell: the process has `within` seconds, if that is known.

        A handler of a signal may call it. The listeners run in the thread that calls it, so in such a handler they must take no
        lock that the main thread may hold; logging takes those of its handlers.
        """
        if self._given.set((reason, None if within is None else time.monotonic() + within)):
            _log.warning("notice: %s: this process leaves at the next step boundary", reason)
            self._tell()

    def _tell(self) -> None:
        """Calls each listener that nobody has called."""
        while True:
            try:
                listener = self._listeners.popleft()
            except IndexError:
                return
            try:
                listener(self)
            except Exception as error:
                _log.warning("notice: a listener failed: %s: %s", type(error).__name__, error)

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Calls `listener` with this notice once it is given, in the thread that gives it; at once, in this one, if it was."""
        self._listeners.append(listener)
        if self._given:
            self._tell()

    def close(self) -> None:
        """Stops looking, and gives the signals their handlers back. Idempotent.

        Outside the main thread the handlers stay installed, and do what the signals would have done without.
        """
        self._closed.set(None)
        for entry in [entry for entry in _hearing if entry[1] is self]:
            with contextlib.suppress(ValueError):  # a signal has just interrupted this, and its handler closed the notice
                _hearing.remove(entry)
            entry[0].uninstall()
        self._wakes.put(None)

    def _close_unless_given(self) -> None:
        """Leaves a given one open: more of its signals may come while this process ends."""
        if not self.given:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Notice: {self.reason or 'not given'}>"

    # ---- sources ----

    def _hear(self, number: int) -> bool:
        """Returns whether a signal belongs to this notice: the first one does, and those soon after it."""
        if self._signal:
            return time.monotonic() - self._signalled <= SAME_NOTICE_SECONDS
        self._signalled = time.monotonic()
        self._signal = number
        self._wakes.put(None)
        return True

    def _watch_signals(self) -> None:
        self._wakes.get()  # a signal, or close
        self._give_if_signalled()

    def _give_if_signalled(self) -> None:
        if self._signal and not self._given:
            self.give(signal.Signals(self._signal).name, self._within)

    def _look(self, file: str) -> None:
        while not self._closed.wait(self._every) and not self.given:
            if os.path.exists(file):
                self.give(f"file {file}", self._within)

    def _ask(self, poll: Callable[[], float | bool | None]) -> None:
        has_failed = False
        while not self._closed.wait(self._every) and not self.given:
            try:
                answer = poll()
                if answer is None or answer is False:
                    continue
                if not isinstance(answer, Real) or not math.isfinite(answer):
                    raise ValueError(f"it returned {answer!r}, which is no number of seconds")
            except (Exception, SystemExit) as error:
                if not has_failed:
                    _log.warning("notice: the query failed, which counts as no notice: %s: %s", type(error).__name__, error)
                has_failed = True
                continue
            self.give("the query", self._within if answer is True else max(0.0, float(answer)))


class _Handler:
    """Handles a signal while notices hear it. All open notices of this process do, whichever handler of this class gets it.

    The handler before is one of the program, never another of this class, so a signal goes to each notice once.
    """

    def __init__(self, number: int, before: signal.Handlers | Callable[..., object] | int | None) -> None:
        self.number = number
        self._before = signal.SIG_DFL if before is None else before  # one in C cannot be restored

    def __call__(self, number: int, frame: FrameType | None) -> None:
        notices = [notice for handler, notice in tuple(_hearing) if handler.number == number]
        heard = [notice._hear(number) for notice in notices if notice._pid == os.getpid()]
        if any(heard):
            return
        if callable(self._before):
            self._before(number, frame)
        elif self._before == signal.SIG_DFL and (notices or self._is_installed()):
            # Otherwise a handler of the program called this one, and all notices are closed.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _is_installed(self) -> bool:
        return signal.getsignal(self.number) is self

    def uninstall(self) -> None:
        """Gives the signal back to the handler before, unless a notice of this process needs this one."""
        is_needed = any(handler is self and notice._pid == os.getpid() for handler, notice in tuple(_hearing))
        if not is_needed and self._is_installed() and threading.current_thread() is threading.main_thread():
            signal.signal(self.number, self._before)


_hearing: list[tuple[_Handler, Notice]] = []
"""The notices that hear a signal, those of the processes from which this one was forked included, and the handler of each.

Handlers read it at any moment, so each change is one call.
"""


def _installed(number: int) -> _Handler:
    """Returns the handler of a signal, which it installs unless it is there."""
    before = signal.getsignal(number)
    if isinstance(before, _Handler):
        return before
    handler = _Handler(number, before)
    signal.signal(number, handler)
    return handler


def weakly(method: Callable[[Notice], None]) -> Callable[[Notice], None]:
    """A listener that calls a bound method as long as its object is there, and does not keep it."""
    weak = weakref.WeakMethod(method)

    def listener(notice: Notice) -> None:
        found = weak()
        if found is not None:
            found(notice)

    return listener


def as_notice(source: Notice | signal.Signals) -> Notice:
    """A notice as it is, or one of a signal."""
    return source if isinstance(source, Notice) else Notice(signal.Signals(source))
