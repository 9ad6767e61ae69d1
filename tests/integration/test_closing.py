"""A peer that closes its communicator in the middle of an op: nobody takes what its program does with the memory for a sum."""

from __future__ import annotations

import gc
import ipaddress
import random
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from interrupts import alarms, interrupt
from peers import PATIENCE, Background, address_of, on_all, team, until

from pccl import AsyncReduceHandle, Communicator, MasterNode, PeerLostError, ReduceOp, TooFewPeersError, UsageError
from pccl._ops.handle import Events

COUNT = 2_000_000


def reduce_until_done(comm: Communicator, value: int, results: dict[int, np.ndarray]) -> None:
    array = np.full(COUNT, value, np.int64)
    while True:
        try:
            comm.all_reduce(array, array, op=ReduceOp.SUM, timeout=PATIENCE)
        except PeerLostError:
            assert (array == value).all(), "the input has changed"
            continue
        results[value] = array
        return


@pytest.mark.parametrize("seed", range(12))
def test_closing_in_the_middle_of_an_op(seed):
    rng = random.Random(seed)
    with team([0, 0, 0]) as comms:
        leaver = np.full(COUNT, 100, np.int64)
        results: dict[int, np.ndarray] = {}
        workers = [
            threading.Thread(target=reduce_until_done, args=(comm, value, results))
            for comm, value in zip(comms, (1, 10), strict=False)
        ]
        handle = comms[2].all_reduce_async(leaver, leaver, op=ReduceOp.SUM)
        for worker in workers:
            worker.start()
        time.sleep(rng.random() * 0.02)
        comms[2].close()
        leaver[:] = -7
        for worker in workers:
            worker.join()
        assert set(np.unique(results[1])) in ({11}, {111})
        assert np.array_equal(results[1], results[10])
        del handle


def begin_waited(comm: Communicator) -> tuple[AsyncReduceHandle, threading.Thread, weakref.ref[np.ndarray]]:
    """An op that a thread has begun to wait for: its handle, the thread, and the array, which nobody else holds."""
    array = np.ones(COUNT, np.int64)
    handle = comm.all_reduce_async(array, array, op=ReduceOp.SUM)
    waiter = threading.Thread(target=handle.wait)
    waiter.start()
    time.sleep(0.13)
    return handle, waiter, weakref.ref(array)


def test_close_that_a_signal_cuts_short_is_finished_by_the_next():
    """Until then nothing of the op is let go: C still reads and writes its memory."""
    with team([0, 0]) as comms:
        handle, waiter, held = begin_waited(comms[0])  # whose waiter keeps `close` waiting for the end of its slice

        with alarms():
            interrupt(comms[0].close, 0.01)
        comms[0].close()
        waiter.join()
        with pytest.raises((PeerLostError, TooFewPeersError)):
            comms[1].all_reduce(np.ones(COUNT, np.int64), op=ReduceOp.SUM, timeout=PATIENCE)
        del handle, waiter
        gc.collect()
        assert held() is None


def test_a_waiter_lets_go_of_nothing_before_the_communicator_is_destroyed():
    with team([0, 0]) as comms:
        handle, waiter, held = begin_waited(comms[0])
        seen: list[bool] = []
        native = comms[0]._handle
        destroy = native._destroy

        def look_and_destroy(pointer: object) -> int:
            seen.append(held() is not None)
            return destroy(pointer)

        native._destroy = look_and_destroy
        comms[0].close()
        assert seen == [True]
        waiter.join()
        assert handle.wait()[0] is False


def test_an_op_that_had_ended_is_told_so_after_its_communicator_was_closed():
    """What it has reduced in place would be reduced twice by a program that repeats it."""
    for retry in (False, True):
        with team([0, 0]) as comms:
            arrays = [np.full(COUNT, value, np.int64) for value in (1, 10)]
            pairs = list(zip(comms, arrays, strict=True))
            handles = [comm.all_reduce_async(array, array, op=ReduceOp.SUM, retry=retry) for comm, array in pairs]
            handles[1].result(timeout=PATIENCE)
            # The verdict on a later op comes after that on the first, which is on its way to all.
            later = [comm.all_reduce_async(array.copy(), op=ReduceOp.SUM, tag=1) for comm, array in pairs]
            for handle in later:
                handle.result(timeout=PATIENCE)
            comms[0].close()
            success, status, info = handles[0].wait()
            assert (success, status, info.world_size) == (True, 0, 2)
            assert [len(part.peers) for part in info.contributors] == ([2] if retry else [])
            assert (arrays[0] == 11).all()


def test_the_input_is_back_when_a_wait_beside_a_close_returns():
    """The buffer is read at once: half of it may have been reduced when the op was cancelled."""
    ended: set[bool] = set()
    for seed in range(20):
        rng = random.Random(seed)
        with team([0, 0]) as comms:
            arrays = [[np.full(COUNT // 8, value, np.int64) for _ in range(8)] for value in (1, 10)]
            handles = [
                [comm.all_reduce_async(array, array, op=ReduceOp.SUM, tag=tag) for tag, array in enumerate(mine)]
                for comm, mine in zip(comms, arrays, strict=True)
            ]
            delay = rng.random() * 0.02
            closer = threading.Thread(target=lambda comm=comms[0], delay=delay: (time.sleep(delay), comm.close()))
            closer.start()
            for handle, array in zip(handles[0], arrays[0], strict=True):
                success = handle.wait(timeout=PATIENCE)[0]
                ended.add(success)
                assert np.unique(array).tolist() == [11 if success else 1]
            closer.join()
            for handle, array in zip(handles[1], arrays[1], strict=True):
                success = handle.wait(timeout=PATIENCE)[0]
                assert np.unique(array).tolist() == [11 if success else 10]
    assert False in ended


LOOPBACK = [ipaddress.ip_address(host) for host in ("127.0.0.1", "127.0.1.1")]
"""Two addresses of one master."""


def closes(comm: Communicator) -> bool:
    """Whether a communicator is closed, and stays so."""
    with pytest.raises(UsageError, match="closed"):
        comm.reconnect(1)
    return comm._handle.closed and "closed" in repr(comm)


def test_close_ends_a_connect_that_has_another_address_to_try(monkeypatch):
    with MasterNode("0.0.0.0:0") as master, Communicator(address_of(master)) as first:
        first.connect()
        monkeypatch.setattr("pccl._peer.connection.resolve", lambda *_: LOOPBACK)
        comm = Communicator(f"two.example:{master.port}")
        joining = Background(comm.connect, 1)
        until(first.are_peers_pending)
        comm.close()
        error = joining.error()
        assert isinstance(error, UsageError)
        assert "closed" in error.detail
        assert closes(comm)
        first.update_topology(timeout=PATIENCE)
        assert first.world_size == 1


@pytest.mark.parametrize("names", [["one.example"], ["one.example", "two.example"]])
def test_close_while_connect_looks_the_name_up(monkeypatch, names):
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(",".join(f"{name}:{master.port}" for name in names))

        def close_and_resolve(*_: object) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
            comm.close()
            return LOOPBACK[:1]

        monkeypatch.setattr("pccl._peer.connection.resolve", close_and_resolve)
        with pytest.raises(UsageError, match="closed"):
            comm.connect(1)
        assert closes(comm)


def test_close_between_the_creation_and_the_use_of_another_address(monkeypatch):
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(f"one.example:{master.port}")
        monkeypatch.setattr("pccl._peer.connection.resolve", lambda *_: LOOPBACK[:1])
        create = comm._create

        def create_and_close(*arguments: object) -> object:
            made = create(*arguments)
            comm.close()
            return made

        monkeypatch.setattr(comm, "_create", create_and_close)
        with pytest.raises(UsageError, match="closed"):
            comm.connect(1)
        assert closes(comm)


def test_close_beside_reconnect(monkeypatch):
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(address_of(master))
        comm.connect()
        closed = Events.closed

        def close_again(events: Events) -> None:
            monkeypatch.setattr(Events, "closed", closed)
            comm.close()
            closed(events)

        monkeypatch.setattr(Events, "closed", close_again)
        with pytest.raises(UsageError, match="closed"):
            comm.reconnect(1)
        assert closes(comm)


@pytest.mark.parametrize("method", ["connect", "close"])
def test_a_thread_that_the_system_refuses_to_connect(monkeypatch, method):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "pccl:stacks":
            raise RuntimeError("can't start new thread")
        start(thread)

    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(address_of(master))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                comm.connect(1)
        if method == "connect":
            comm.connect(1)
            assert "pccl:stacks" in {thread.name for thread in threading.enumerate()}
        comm.close()
        assert comm._handle._destroyed


class Emptied(dict[Any, Any]):
    """A dict that another thread empties as soon as a key was found in it, as `close` does."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        if found is not default:
            self.clear()
        return found


def test_a_call_that_has_ended_gives_its_result_beside_a_close():
    with team([0, 0]) as comms:
        comms[0]._unfinished = Emptied()
        comms[0]._cut_short = Emptied()
        on_all(comms, lambda comm, _: comm.update_topology(timeout=PATIENCE))
        arrays = [np.ones(4, np.float32) for _ in comms]
        infos = on_all(comms, lambda comm, rank: comm.all_reduce(arrays[rank], timeout=PATIENCE))
        infos += on_all(comms, lambda comm, rank: comm.all_reduce(arrays[rank]))
        infos += on_all(comms, lambda comm, _: comm.barrier(timeout=PATIENCE))
        assert [info.world_size for info in infos] == [2] * 6
        assert (arrays[0] == 4).all()
        assert not comms[0]._unfinished
        assert not comms[0]._cut_short


LEAVING = """
import threading
import numpy as np
import pccl

with pccl.MasterNode("127.0.0.1:0") as master:
    comms = [pccl.Communicator(f"127.0.0.1:{master.port}") for _ in range(2)]
    comms[0].connect()
    joining = threading.Thread(target=comms[1].connect)
    joining.start()
    while not comms[0].are_peers_pending():
        pass
    comms[0].update_topology()
    joining.join()
    array = np.ones(10)
    handle = comms[0].all_reduce_async(array, array, op=pccl.ReduceOp.SUM)
"""


def test_a_program_ends_that_has_never_awaited_its_op():
    subprocess.run([sys.executable, "-c", LEAVING], timeout=PATIENCE, check=True)
