"""Calls in slices: deadlines, interruptions, and objects that are closed meanwhile."""

import gc
import os
import signal
import threading
import time

import pytest

import pccl
from pccl import _calls
from pccl._calls import SUCCESS, TIMED_OUT, Deadline, NativeCall, NativeHandle

np = pytest.importorskip("numpy")


class FakeLibrary:
    """A function of the C library that takes its time, as the test says."""

    def __init__(self, *results):
        self.results = list(results)
        self.slices = []

    def pccl_fake(self, *_):
        return self.results.pop(0)


@pytest.fixture
def handle():
    return NativeHandle("thing", object(), lambda _: 0)


def make_call(monkeypatch, function):
    monkeypatch.setattr(_calls, "_C", type("Fake", (), {"pccl_fake": staticmethod(function)}))
    return NativeCall("pccl_fake", 1, 2)


def test_deadline():
    assert Deadline(None).remaining() is None
    assert not Deadline(None).passed()
    assert Deadline(None).slice_ms() == 100
    assert Deadline(0).passed()
    assert Deadline(0).slice_ms() == 1
    assert 1 <= Deadline(0.05).slice_ms() <= 51
    assert Deadline(60).slice_ms() == 100
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            Deadline(bad)


def test_slices_go_on_until_there_is_a_result(monkeypatch, handle):
    results = [TIMED_OUT, TIMED_OUT, SUCCESS]
    call = make_call(monkeypatch, lambda *_: results.pop(0))
    assert call.proceed(handle) == SUCCESS
    assert call.check() is None
    assert call.proceed(handle) == SUCCESS  # the result is kept
    assert results == []


def test_a_deadline_ends_the_wait_but_not_the_call(monkeypatch, handle):
    results = [TIMED_OUT, SUCCESS]
    call = make_call(monkeypatch, lambda *_: results.pop(0))
    assert call.proceed(handle, Deadline(0)) == TIMED_OUT
    with pytest.raises(pccl.PCCLTimeoutError):
        call.check()
    assert call.proceed(handle, Deadline(0)) == SUCCESS


def test_a_result_is_not_lost_to_a_signal_that_comes_with_it(monkeypatch, handle):
    """The handler runs as soon as the C function has returned: the call looks interrupted, but has been made."""
    made = []

    def succeed_with_a_signal(*_):
        made.append(1)
        signal.raise_signal(signal.SIGINT)
        return SUCCESS

    call = make_call(monkeypatch, succeed_with_a_signal)
    # A Python function would take the signal inside; a C function does not. So it is delivered right after `extend`.
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        assert call.proceed(handle) == SUCCESS
        assert call.proceed(handle) == SUCCESS
    finally:
        signal.signal(signal.SIGINT, previous)
    assert made == [1]


def test_interrupts_at_any_moment_make_no_call_twice():
    """Two peers reduce all the time while signals interrupt one of them; repeating what was cut short keeps them in step."""
    rounds = 200
    interruptions = 0

    class InterruptError(Exception):
        pass

    def interrupt(*_):
        raise InterruptError

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
            previous = signal.signal(signal.SIGALRM, interrupt)
            try:
                for turn in range(1, rounds):
                    array = np.full(100, turn, np.int64)
                    while True:
                        try:
                            signal.setitimer(signal.ITIMER_REAL, 0.0001 + turn % 7 * 0.0001)
                            first.all_reduce(array, array, op=pccl.ReduceOp.SUM, timeout=30)
                            signal.setitimer(signal.ITIMER_REAL, 0)
                            break
                        except InterruptError:
                            interruptions += 1
                            if (array == 3 * turn).all() and not first._unfinished_ops:
                                break  # it had returned already, and the signal came after that
                    assert (array == 3 * turn).all()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, previous)
            thread.join(30)
            assert not thread.is_alive()
    assert interruptions > 0


def test_closed_handles(monkeypatch):
    destroyed = []
    handle = NativeHandle("thing", "pointer", destroyed.append)
    with handle as pointer:
        assert pointer == "pointer"
    handle.close()
    handle.close()
    assert destroyed == ["pointer"]
    call = make_call(monkeypatch, lambda *_: SUCCESS)
    call.proceed(handle)
    with pytest.raises(pccl.UsageError) as caught:
        call.check()
    assert caught.value.detail == "the thing is closed"


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
    handle = NativeHandle("thing", "pointer", lambda _: ends.append("destroyed"))
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


def test_a_forgotten_user_does_not_hold_up_closing_for_ever(monkeypatch):
    monkeypatch.setattr(_calls, "DRAIN_SECONDS", 0.1)
    destroyed = []
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


def test_raw_calls_are_not_sliced():
    """After calls of the package, the same thread's calls of the raw library wait without a bound again."""
    with pccl.MasterNode("127.0.0.1:0") as master:
        with pytest.raises(pccl.PCCLTimeoutError):
            master.wait(timeout=0.01)
        threading.Timer(0.4, master.interrupt).start()
        assert pccl._pccl.C.pcclMasterAwaitTermination(master._pointer) == SUCCESS
