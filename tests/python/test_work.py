"""Works and futures of calls that end in odd ways: interrupted, with errors where none is expected, in the garbage collector."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from interrupts import alarms, interrupt
from performers import PATIENCE

torch = pytest.importorskip("torch")

from pccl import Result  # noqa: E402
from pccl.distributed import CollectiveError, CollectiveTimeoutError, _calls  # noqa: E402
from pccl.distributed._calls import ENDED, CoreCall, Once, finished  # noqa: E402
from pccl.distributed._tensors import POOLED_LEAST, _Pool  # noqa: E402
from pccl.distributed._work import _LEAST_SECONDS, Completer, Future, Work  # noqa: E402


class FakeCall:
    """A call that has ended when `may_end` is set."""

    origin = None

    def __init__(self, asked: Callable[[], object] | None = None) -> None:
        self.may_end = threading.Event()
        self._asked = asked

    def wait(self, timeout: float | None) -> None:
        if not self.may_end.wait(timeout):
            raise timed_out()

    def done(self) -> bool:
        if self._asked is not None:
            self._asked()
        return self.may_end.is_set()


@pytest.fixture
def completer():
    made = Completer()
    yield made
    made.stop()


def work_of(completer: Completer, *calls: Any) -> Work:
    return Work(completer, calls, PATIENCE, [torch.ones(1)])


def timed_out() -> Exception:
    return CollectiveTimeoutError(Result.TIMED_OUT, "wait", "not yet")


# ---- futures ----


def test_an_error_of_one_call_ends_no_other_future(completer):
    def fail() -> None:
        raise CollectiveError(Result.RANK_CONNECTION_LOST, "broadcast", "in vain")

    first, second, third = FakeCall(), FakeCall(fail), FakeCall()
    futures = [work_of(completer, call).get_future() for call in (first, second, third)]
    third.may_end.set()
    assert futures[2].wait()[0].item() == 1
    with pytest.raises(CollectiveError, match="in vain"):
        futures[1].wait()
    first.may_end.set()
    futures[0].wait()


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_follows_a_callback_is_complete_however_the_callback_ends(ending):
    future = Future(None)

    def callback(_: object) -> None:
        raise ending("of the callback")

    following = future.then(callback)
    future.set_result([torch.ones(1)])
    assert following.done()
    with pytest.raises(ending if ending is ValueError else RuntimeError, match="of the callback"):
        following.wait()


def test_a_future_whose_completion_is_cut_short_is_completed_by_the_next_wait(completer, monkeypatch):
    call = FakeCall()
    work = work_of(completer, call)
    future = work._plain = work._future = Future(None)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "set_result", Mock(side_effect=KeyboardInterrupt))
        call.may_end.set()
        with pytest.raises(KeyboardInterrupt):
            work.wait()
    assert not future.done()
    assert work.wait()
    assert future.done()


def test_a_wait_inside_the_completion_of_its_future_returns(completer, monkeypatch):
    """As in a signal handler: the future is complete once the handler has returned."""
    work = work_of(completer, ENDED)
    future = work._plain = work._future = Future(None)
    real = Future.set_result
    monkeypatch.setattr(Future, "set_result", lambda self, result: (work.wait(), real(self, result)))
    assert work.wait()
    assert future.done()


@pytest.mark.long
def test_signals_leave_waits_possible(completer):
    """Signals come at every place of a wait: afterwards it ends, and so does its future."""
    interruptions = 0
    with alarms():
        for place in range(1000):
            work = work_of(completer, ENDED)
            work._plain = work._future = Future(None)
            interruptions += interrupt(work.wait, 1e-6 + place % 100 * 1e-6)
            assert not work._one_waiter.locked()
            assert work.wait()
            assert work._plain.done()
    assert interruptions > 0


def test_an_op_that_ends_while_it_is_asked_about_is_not_done_before_its_agreement(monkeypatch):
    monkeypatch.setattr(_calls, "_unfinished", {})
    op = Mock(done=Mock(side_effect=[False, True, True, True]), c=Mock(result=Result.RANK_CONNECTION_LOST.value))
    agreement = Mock(done=Mock(return_value=False))
    losses = Mock(strict=False, guard=None)
    call = CoreCall(losses, lambda *_: agreement, "broadcast", 1, Mock(), op, None, None, survivors=False)
    assert not call.done()
    assert not call.done()
    agreement.done.return_value = True
    op.done.side_effect = None
    assert call.done()


# ---- results ----


def test_a_result_is_written_once():
    written: list[int] = []
    call = finished(ENDED, lambda: written.append(1))
    call.wait(None)
    call.wait(None)
    assert written == [1]


def test_a_result_that_a_signal_cut_short_is_an_error_of_every_later_wait(completer):
    written: list[int] = []

    def write() -> None:
        written.append(1)
        raise KeyboardInterrupt

    work = work_of(completer, finished(ENDED, write))
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    for _ in range(2):
        with pytest.raises(CollectiveError, match="the tensors of the result are undefined"):
            work.wait()
    assert written == [1]


def test_what_is_written_takes_arguments():
    written: list[object] = []
    once = Once("all_reduce", written.append)
    once(3)
    once(4)
    assert written == [3]


# ---- dropped works ----


@pytest.mark.parametrize("nested", [False, True], ids=["call", "work"])
def test_a_work_that_cannot_end_here_is_left_to_the_thread(completer, nested):
    """The garbage collector may drop it in any thread, which must not wait for others."""
    ended = threading.Event()

    class Elsewhere(FakeCall):
        def done(self) -> bool:
            return True

        def wait(self, timeout: float | None) -> None:
            if threading.current_thread() is threading.main_thread():
                assert timeout == _LEAST_SECONDS
                raise timed_out()
            ended.set()

    work_of(completer, work_of(completer, Elsewhere()) if nested else Elsewhere())
    assert ended.wait(PATIENCE)


def test_the_pool_of_lists_may_be_used_inside_itself():
    """As by the garbage collector. Nobody gets memory that another one has, or of another size."""
    pool = _Pool()
    tensors = [torch.ones(POOLED_LEAST)]

    class Reentered(list[Any]):
        def pop(self, *place: Any) -> Any:
            found = super().pop(*place)
            if self.armed:
                self.armed = False
                pool.give(torch.empty(3 * POOLED_LEAST))
                nested.append(pool.take(tensors))
            return found

        armed = False

    nested: list[Any] = []
    free = Reentered()
    pool._free = free
    for _ in range(3):
        pool.give(torch.empty(POOLED_LEAST))
    free.armed = True
    outer = pool.take(tensors)
    assert nested[0].data_ptr() != outer.data_ptr()
    assert outer.nbytes == nested[0].nbytes == tensors[0].nbytes
    assert not free.armed
