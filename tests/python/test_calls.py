"""Calls in slices: deadlines, interruptions, and objects that are closed meanwhile."""

import functools
import gc
import itertools
import math
import os
import threading
import time
from typing import Any

import pytest
from interrupts import alarms, interrupt

import pccl
from pccl._core import calls
from pccl._core.calls import SUCCESS, TIMED_OUT, Deadline, NativeHandle, Ticket

np = pytest.importorskip("numpy")


@pytest.fixture
def handle():
    return NativeHandle("thing", 1, lambda _: 0)


class FakeLibrary:
    """A call of the C library that takes its time, as the test says."""

    def __init__(self, wait, begin=lambda: SUCCESS):
        self.wait = wait
        self.begin = begin
        self.begun = 0

    def pccl_begin_fake(self, first, second, ticket):
        assert (first, second) == (1, 2)
        self.begun += 1
        result = self.begin()
        ticket.kind = result == SUCCESS
        ticket.result = TIMED_OUT
        return result

    def pccl_ticket_wait(self, ticket, _):
        if ticket.result == TIMED_OUT:
            ticket.result = self.wait()
        return ticket.result


def make_ticket(monkeypatch, *wait_and_begin):
    library = FakeLibrary(*wait_and_begin)
    monkeypatch.setattr(calls, "_C", library)
    return Ticket("pcclFake", "pccl_begin_fake", 1, 2), library


def test_deadline():
    assert Deadline(None).remaining() is None
    assert not Deadline(None).passed()
    assert Deadline(None).slice_ms() == 100
    assert Deadline(0).passed()
    assert Deadline(0).slice_ms() == 0
    assert 1 <= Deadline(0.05).slice_ms() <= 51
    assert Deadline(60).slice_ms() == 100
    for longest in (math.inf, 1e300, np.float32(np.inf), threading.TIMEOUT_MAX * 1.01):
        assert Deadline(longest).remaining() is None
    assert threading.Lock().acquire(timeout=Deadline(threading.TIMEOUT_MAX).remaining())
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            Deadline(bad)


def test_slices_go_on_until_there_is_a_result(monkeypatch, handle):
    results = [TIMED_OUT, TIMED_OUT, SUCCESS]
    ticket, library = make_ticket(monkeypatch, lambda: results.pop(0))
    assert not ticket.in_flight
    assert ticket.proceed(handle) == SUCCESS
    assert ticket.check() is None
    assert ticket.proceed(handle) == SUCCESS  # the result is kept
    assert results == []
    assert library.begun == 1


def test_a_deadline_ends_the_wait_but_not_the_call(monkeypatch, handle):
    results = [TIMED_OUT, SUCCESS]
    ticket, library = make_ticket(monkeypatch, lambda: results.pop(0))
    assert ticket.proceed(handle, Deadline(0)) == TIMED_OUT
    assert ticket.in_flight
    with pytest.raises(pccl.PCCLTimeoutError, match="stays in flight"):
        ticket.check()
    assert ticket.proceed(handle, Deadline(0)) == SUCCESS
    assert not ticket.in_flight
    assert library.begun == 1


def test_a_call_that_could_not_be_begun_is_begun_again(monkeypatch, handle):
    results = [pccl.Result.INVALID_USAGE.value, SUCCESS]
    ticket, library = make_ticket(monkeypatch, lambda: SUCCESS, lambda: results.pop(0))
    assert ticket.proceed(handle) == pccl.Result.INVALID_USAGE.value
    with pytest.raises(pccl.UsageError, match=r"^fake: "):
        ticket.check()
    assert ticket.proceed(handle) == SUCCESS
    assert library.begun == 2


@pytest.mark.parametrize("where", ["begin", "wait"])
def test_a_signal_that_comes_with_the_result_loses_nothing(monkeypatch, handle, where):
    """C has written into the ticket, and the exception of the handler comes in place of what its function returned."""

    class InterruptError(Exception):
        pass

    ticket, library = make_ticket(monkeypatch, lambda: SUCCESS)
    function = getattr(library, f"pccl_{where}_fake" if where == "begin" else "pccl_ticket_wait")

    def interrupted(*arguments):
        function(*arguments)
        raise InterruptError

    begin, wait = (interrupted, library.pccl_ticket_wait) if where == "begin" else (library.pccl_begin_fake, interrupted)
    monkeypatch.setattr(ticket, "_begin", begin)
    with monkeypatch.context() as patch:
        patch.setattr(library, "pccl_ticket_wait", wait)
        with pytest.raises(InterruptError):
            ticket.proceed(handle)
    assert ticket.proceed(handle) == SUCCESS
    assert library.begun == 1


def test_interrupts_at_any_moment_make_no_call_twice():
    """Two peers reduce all the time while signals interrupt one of them; repeating what was cut short keeps them in step."""
    rounds = 200
    interruptions = 0

    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        with pccl.Communicator(address) as first, pccl.Communicator(address) as second:
            first.connect(1)
            joining = threading.Thread(target=second.connect, args=(1,))
            joining.start()
            first.wait_for_peers(2, timeout=30)
            joining.join()

            def other():
                for turn in range(1, rounds):
                    array = np.full(100, 2 * turn, np.int64)
                    second.all_reduce(array, array, op=pccl.ReduceOp.SUM)

            thread = threading.Thread(target=other)
            thread.start()
            with alarms():
                for turn in range(1, rounds):
                    array = np.full(100, turn, np.int64)
                    reduce = functools.partial(first.all_reduce, array, array, op=pccl.ReduceOp.SUM, timeout=30)
                    for attempt in itertools.count(1):  # at first too short for any op
                        if not interrupt(reduce, (attempt + turn % 7) * 20e-6):
                            break
                        interruptions += 1
                        if (array == 3 * turn).all() and not first._unfinished:
                            break  # it had returned already, and the signal came after that
                    assert (array == 3 * turn).all()
            thread.join(30)
            assert not thread.is_alive()
    assert interruptions > 0


def test_closed_handles(monkeypatch):
    destroyed: list[Any] = []
    handle = NativeHandle("thing", "pointer", destroyed.append)
    with handle as pointer:
        assert pointer == "pointer"
    handle.close()
    handle.close()
    assert destroyed == ["pointer"]
    ticket, library = make_ticket(monkeypatch, lambda: SUCCESS)
    ticket.proceed(handle)
    with pytest.raises(pccl.UsageError) as caught:
        ticket.check()
    assert caught.value.detail == "the thing is closed"
    assert library.begun == 0
    with pytest.raises(pccl.UsageError, match="the thing is closed"):
        calls.call(handle, "pccl_begin_fake")


def test_a_call_begins_on_no_other_object_than_its_own(monkeypatch, handle):
    """Another thread has replaced the object meanwhile, as `reconnect` does, and freed the one that C would get."""
    ticket, library = make_ticket(monkeypatch, lambda: SUCCESS)
    other = NativeHandle("thing", 3, lambda _: 0)
    ticket.proceed(other)
    with pytest.raises(pccl.UsageError, match="has replaced the thing meanwhile; repeat the call"):
        ticket.check()
    assert library.begun == 0


def test_a_call_is_waited_for_on_the_object_where_it_began(monkeypatch, handle):
    ticket, _ = make_ticket(monkeypatch, lambda: TIMED_OUT)
    assert ticket.begin(handle) == SUCCESS
    handle.close()
    assert ticket.wait(NativeHandle("thing", 3, lambda _: 0)) == pccl.Result.INVALID_USAGE.value
    assert ticket.detail == "the thing is closed"


def test_a_forked_child_is_told_so():
    with pccl.Communicator("127.0.0.1:1") as comm:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                comm.connect()
            except pccl.UsageError as error:
                os.write(writer, error.detail.encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert "after the fork" in told.read()
        os.waitpid(child, 0)


def test_closing_waits_for_calls_in_other_threads():
    ends = []
    handle = NativeHandle("thing", "pointer", lambda _: ends.append("destroyed") or 0)
    inside = threading.Event()

    def use():
        with handle:
            inside.set()
            time.sleep(0.2)
            ends.append("left")

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    handle.close()
    thread.join()
    assert ends == ["left", "destroyed"]


def test_closing_inside_closing_frees_once():
    """As by a signal handler, or by the garbage collector, on the thread that closes: what it closes is in use below it."""
    ends: list[Any] = []

    def stop(pointer: object) -> None:
        assert thing.closes_below
        thing.close()
        ends.append(thing.await_closed(Deadline(60)))
        ends.append(thing.await_closed(Deadline(None)))

    thing = NativeHandle("thing", "pointer", lambda _: ends.append("destroyed") or 0, stop)
    assert not thing.closes_below
    thing.close()
    assert ends == [False, False, "destroyed"]
    thing.close()
    assert thing.await_closed(Deadline(0))
    assert ends[3:] == []


def test_closing_that_an_exception_cut_short_can_be_repeated():
    destroyed: list[Any] = []
    stops: list[BaseException] = [KeyboardInterrupt()]

    def stop(pointer: object) -> None:
        if stops:
            raise stops.pop()

    handle = NativeHandle("thing", "pointer", destroyed.append, stop)
    with pytest.raises(KeyboardInterrupt):
        handle.close()
    assert destroyed == []
    handle.close()
    assert destroyed == ["pointer"]


@pytest.mark.long
def test_signals_leave_no_lock_taken():
    """Signals come at every place of the attempt: afterwards the lock is free."""

    lock = threading.Lock()
    interruptions = 0

    def attempt() -> None:
        taken: list[bool] = []
        try:
            calls.take(taken, lock, 1)
        finally:
            if taken:
                lock.release()

    with alarms():
        for place in range(2000):
            interruptions += interrupt(attempt, 1e-6 + place % 40 * 1e-6)
            assert not lock.locked()
    assert interruptions > 0


def test_a_lock_that_is_not_free_is_not_taken():
    lock = threading.Lock()
    taken: list[bool] = []
    assert calls.take(taken, lock)
    assert taken
    late: list[bool] = []
    assert not calls.take(late, lock, 0)
    assert not calls.take(late, lock, 0.01)
    assert not late


def test_a_forgotten_user_does_not_hold_up_closing_for_ever(monkeypatch):
    monkeypatch.setattr(calls, "DRAIN_SECONDS", 0.1)
    destroyed: list[Any] = []
    handle = NativeHandle("thing", "pointer", destroyed.append)
    handle.__enter__()
    handle.close()
    assert destroyed == ["pointer"]


def test_a_failed_constructor_is_dropped_quietly(capfd):
    for wrong in ("nothing", "host:port"):
        with pytest.raises((AssertionError, ValueError)):
            pccl.Communicator(wrong)
        with pytest.raises((AssertionError, ValueError)):
            pccl.MasterNode(wrong)
    gc.collect()
    said = capfd.readouterr().err
    assert "ignored" not in said  # as Python says of an exception in __del__
    assert "Traceback" not in said
