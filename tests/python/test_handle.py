"""A handle whose end several threads look for: no order of their steps leaves a watcher untold."""

from __future__ import annotations

import itertools
import threading
from typing import Any, cast

import pytest
from performers import PATIENCE

from pccl._calls import Deadline
from pccl._handle import Events, Handle

PLACES = ["before the look", "before its first attempt", "after it", "before its second attempt", "after that", "after the look"]


class CountedWakes:
    """Stands in for `Events`."""

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
        self._waiter = threading.Thread(target=self.wait)

    def _advance(self, deadline: Deadline) -> str:
        if threading.current_thread() is self._waiter:
            self._entered.set()
            assert self._leave.wait(PATIENCE)
        return "ended"

    def pass_by(self, place: int) -> None:
        if place in self._steps:
            self._steps.pop(place)()

    def _take(self) -> None:
        self._waiter.start()
        assert self._entered.wait(PATIENCE)

    def _release(self) -> None:
        self._leave.set()
        self._waiter.join(PATIENCE)


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
