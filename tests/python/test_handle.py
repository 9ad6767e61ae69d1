"""A handle whose end several threads look for: no order of their steps leaves a watcher untold."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from performers import PATIENCE

from pccl._core.calls import Deadline
from pccl._core.errors import PCCLTimeoutError
from pccl._ops.handle import Events, Handle

PLACES = ["before the look", "before its first attempt", "after it", "before its second attempt", "after that", "after the look"]


class CountedWakes:
    """Stands in for `Events`."""

    inherited = False

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class Ended(Handle[str]):
    """An operation that has ended, which one thread finds out at leisure: its lock is taken and released where a test says."""

    def __init__(self, events: CountedWakes, taken: int, released: int) -> None:
        super().__init__(cast(Events, events))
        self._steps = {taken: self._take, released: self._release}
        self._entered = threading.Event()
        self._leave = threading.Event()
        self._other = threading.Thread(target=self.wait)

    def _advance(self, deadline: Deadline) -> str:
        if threading.current_thread() is self._other:
            self._entered.set()
            assert self._leave.wait(PATIENCE)
        return "ended"

    def pass_by(self, place: int) -> None:
        if place in self._steps:
            self._steps.pop(place)()

    def _take(self) -> None:
        self._other.start()
        assert self._entered.wait(PATIENCE)

    def _release(self) -> None:
        self._leave.set()
        self._other.join(PATIENCE)


class Interrupted:
    """A lock that lets another thread run before and after each attempt of the watcher to take it."""

    def __init__(self, handle: Ended) -> None:
        self._lock = threading.Lock()
        self._handle = handle
        self._watcher = threading.current_thread()
        self._places = itertools.count(1)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread() is not self._watcher:
            return self._lock.acquire(blocking, timeout)
        self._handle.pass_by(next(self._places))
        taken = self._lock.acquire(blocking, timeout)
        if not taken:
            self._handle.pass_by(next(self._places))
        return taken

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("taken", "released"),
    [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (1, 3), (1, 4), (1, 5)],
    ids=lambda place: PLACES[place],
)
def test_a_watcher_sees_the_end_or_is_woken(taken, released):
    events = CountedWakes()
    handle = Ended(events, taken, released)
    cast(Any, handle)._one_waiter = Interrupted(handle)
    handle.pass_by(0)
    seen = handle.done()
    handle.pass_by(5)
    assert seen or events.wakes > 0
    events.wakes = 0
    assert handle.done()
    assert events.wakes == 0  # or watchers would wake each other for ever


# ---- who is told ----


class FakeNative:
    closed = False
    inherited = False

    def await_closed(self, deadline: Deadline) -> bool:
        return True


class FakeLoop:
    def __init__(self, tell: Callable[[], object] = bool) -> None:
        self.readers: list[Callable[[], object]] = []
        self.tells = [tell]
        self.told: list[object] = []

    def add_reader(self, fd: int, look: Callable[[], object]) -> None:
        self.tells.pop()() if len(self.tells) > 1 else None
        self.readers.append(look)

    def remove_reader(self, fd: int) -> None:
        self.readers.clear()

    def call_soon_threadsafe(self, _: object, future: object) -> None:
        self.tells.pop()() if self.tells else None
        self.told.append(future)


class FakeFuture:
    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def get_loop(self) -> FakeLoop:
        return self._loop

    def set_result(self, result: None) -> None:
        pass


class Simple(Handle[str]):
    """An operation that has ended."""

    def _advance(self, deadline: Deadline) -> str:
        return "ended"


@pytest.fixture
def events(monkeypatch):
    made = Events(cast(Any, FakeNative()))
    made._fd, made._thread_fd = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
    made.wake = functools.partial(os.eventfd_write, made._fd, 1)
    yield made
    cast(Any, made._native).closed = True
    made.closed()
    if made._thread is not None:
        made._thread.join(PATIENCE)
    os.close(made._fd)
    os.close(made._thread_fd)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_callback_runs_though_the_communicator_is_closed_while_it_is_told(events):
    ran = threading.Event()
    handle = Simple(events)
    thread = events._thread = threading.Thread(target=events._run, daemon=True)

    def close() -> None:
        cast(Any, events._native).closed = True
        events.closed()
        thread.join(0.5)  # it ends here, if it sees nothing left to do

    handle._callbacks.append(lambda _: ran.set())
    handle._futures.append(cast(Any, FakeFuture(FakeLoop(close))))
    thread.start()
    events._watched.add(handle)
    events._tell(handle)
    assert ran.wait(PATIENCE)


def test_a_callback_that_is_added_while_others_are_told_runs(events):
    """Another thread has found the lock of the handle taken, and watches it again."""
    ran = threading.Event()
    handle = Simple(events)

    def add() -> None:
        assert events.add_callback(handle, lambda _: ran.set())

    handle._futures.append(cast(Any, FakeFuture(FakeLoop(add))))
    events._watched.add(handle)
    events._tell(handle)
    assert ran.wait(PATIENCE)


def test_who_is_told_after_a_signal_is_told_later(events):
    first, second = FakeLoop(interrupt), FakeLoop()
    handle = Simple(events)
    with events.watched_by(first, handle, FakeFuture(first)), events.watched_by(second, handle, FakeFuture(second)):
        with pytest.raises(KeyboardInterrupt):
            events._look()
        assert os.read(events._fd, 8)  # another watcher looks
        events._look()
        assert first.told
        assert second.told
    assert not events._watched


def test_a_loop_is_watched_though_a_signal_came_at_its_first_task(events):
    loop = FakeLoop()
    loop.tells = [bool, interrupt]
    for attempt in range(2):
        handle = Simple(events)
        try:
            with events.watched_by(loop, handle, FakeFuture(loop)):
                assert loop.readers
                assert attempt == 1
        except KeyboardInterrupt:
            assert attempt == 0
        assert not loop.readers
        assert not events._watched
        assert not events._loops


def test_a_task_may_end_inside_the_lock_of_all(events):
    """As the garbage collector does."""
    loop = FakeLoop()
    ended = threading.Event()

    def end() -> None:
        with events._lock, events.watched_by(loop, Simple(events), FakeFuture(loop)):
            ended.set()

    threading.Thread(target=end, daemon=True).start()
    assert ended.wait(PATIENCE)


def test_a_handle_asked_below_its_own_wait_says_so(events):
    """As by a signal handler."""
    asked: list[object] = []

    class Nested(Handle[str]):
        def _advance(self, deadline: Deadline) -> str:
            asked.append(self.done())
            with pytest.raises(PCCLTimeoutError, match="below a signal handler"):
                self.result()
            return "ended"

    handle = Nested(events)
    assert handle.result() == "ended"
    assert asked == [False]
