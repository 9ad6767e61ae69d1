"""Handles of operations in flight: the one interface that all have, with callbacks and under event loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from peers import PeerProcess, address_of, admit, form, on_all, team
from performers import PATIENCE

import pccl
from pccl import Communicator, MasterNode
from pccl._core.calls import Deadline
from pccl._peer.sparse import SparseAverage

uvloop = pytest.importorskip("uvloop")

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SIZES = [3, 1_000_000]
"""Elements: small and large."""


@pytest.fixture
def pair() -> Iterator[tuple[Communicator, Communicator]]:
    with team([0, 0]) as (first, second):
        yield first, second


def sparse(comm: Communicator, size: int, tag: int = 9) -> pccl.Handle[Any]:
    """Sparse averages have no tags: those of a member are numbered."""
    return SparseAverage(np.zeros(size, np.float32)).average_async(comm, np.ones(size, np.float32))


KINDS: dict[str, Callable[..., pccl.Handle[Any]]] = {
    "all_reduce": lambda comm, size, tag=9: comm.all_reduce_async(np.ones(size, np.float32), tag=tag),
    "retry": lambda comm, size, tag=9: comm.all_reduce_async(np.ones(size, np.float32), tag=tag, retry=True),
    "broadcast": lambda comm, size, tag=9: comm.broadcast_async(np.ones(size, np.float32), tag=tag),
    "all_gather": lambda comm, size, tag=9: comm.all_gather_async(
        np.ones(size, np.float32), np.zeros(comm.world_size * size, np.float32), tag=tag
    ),
    "barrier": lambda comm, size, tag=9: comm.barrier_async(tag=tag),
    "sparse": sparse,
}


def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


# ---- all handles ----


@pytest.mark.parametrize("size", SIZES, ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_handle_has_the_interface(pair, kind, size):
    first, second = pair
    handle = KINDS[kind](first, size)
    assert isinstance(handle, pccl.Handle)
    assert not handle.done()
    for ask in (handle.wait, handle.result, handle.exception):
        with pytest.raises(pccl.PCCLTimeoutError):
            ask(timeout=0)
    other = KINDS[kind](second, size)
    info = handle.result(timeout=PATIENCE)
    assert other.exception(timeout=PATIENCE) is None
    assert handle.done()
    assert handle.exception() is None
    assert handle.result() is info
    assert handle.wait() in (info, (True, 0, info))
    assert handle.cancel(timeout=PATIENCE) is False


@pytest.mark.parametrize("kind", KINDS)
def test_every_handle_tells_a_failure_alike(pair, kind):
    first, second = pair
    handle = KINDS[kind](first, 3)
    assert handle.cancel(timeout=PATIENCE)
    assert handle.cancel(timeout=PATIENCE)
    error = handle.exception()
    assert isinstance(error, pccl.OperationCancelledError)
    for _ in range(2):
        with pytest.raises(pccl.OperationCancelledError) as caught:
            handle.result()
        assert str(caught.value) == str(error)
    if kind in ("all_reduce", "retry"):  # the contract of PCCL 1.0
        assert handle.wait()[:2] == (False, pccl.Result.CANCELLED.value)
    else:
        with pytest.raises(pccl.OperationCancelledError):
            handle.wait()

    async def main():
        with pytest.raises(pccl.OperationCancelledError):
            await handle

    asyncio.run(main())
    other = KINDS[kind](second, 3)
    assert isinstance(other.exception(timeout=PATIENCE), pccl.OperationCancelledError)


def test_an_error_keeps_no_tensor_alive(pair):
    array = np.ones(3)
    alive = weakref.ref(array)
    handle = pair[0].broadcast_async(array)
    assert handle.cancel(timeout=PATIENCE)
    with pytest.raises(pccl.OperationCancelledError):
        handle.result()
    gc.disable()
    try:
        del handle, array
        assert alive() is None
    finally:
        gc.enable()


# ---- callbacks ----


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_run_once_and_in_order(pair, kind, caplog):
    first, second = pair
    told: queue.SimpleQueue[tuple[str, Any, str]] = queue.SimpleQueue()

    def note(name):
        return lambda handle: told.put((name, handle, threading.current_thread().name))

    def fail(handle):
        raise ValueError("from the callback")

    def leave(handle):
        sys.exit("from the callback")

    handle = KINDS[kind](first, 3)
    handle.add_done_callback(note("first"))
    handle.add_done_callback(fail)
    handle.add_done_callback(leave)
    handle.add_done_callback(note("second"))
    with caplog.at_level(logging.ERROR, "pccl"):
        KINDS[kind](second, 3).result(timeout=PATIENCE)
        assert [told.get(timeout=PATIENCE) for _ in range(2)] == [
            (name, handle, "pccl:callbacks") for name in ("first", "second")
        ]
    assert "from the callback" in caplog.text
    handle.add_done_callback(note("late"))
    assert told.get_nowait() == ("late", handle, threading.current_thread().name)
    handle.result(timeout=PATIENCE)
    assert told.empty()


def test_callbacks_of_a_thousand_handles_take_one_thread(pair):
    count = 1000
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handles = [pair[0].all_reduce_async(np.ones(2), tag=tag) for tag in range(count)]
    for handle in handles:
        handle.add_done_callback(told.put)
    assert sum(thread.name == "pccl:callbacks" for thread in threading.enumerate()) == 1
    for tag in range(count):
        pair[1].all_reduce_async(np.ones(2), tag=tag)
    assert {id(told.get(timeout=PATIENCE)) for _ in range(count)} == set(map(id, handles))


def test_a_callback_of_a_dropped_handle_runs(pair):
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    pair[0].broadcast_async(np.ones(2)).add_done_callback(lambda handle: told.put(handle.result()))
    gc.collect()
    pair[1].broadcast(np.ones(2))
    assert told.get(timeout=PATIENCE).world_size == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_beside_a_thread_that_waits(pair, kind):
    """The thread in `wait` sees the end, and the one that calls back is told by it."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handle = KINDS[kind](pair[0], 3)
    waiting = threading.Thread(target=handle.exception, args=(PATIENCE,))
    waiting.start()
    handle.add_done_callback(told.put)
    KINDS[kind](pair[1], 3).result(timeout=PATIENCE)
    assert told.get(timeout=PATIENCE) is handle
    waiting.join(PATIENCE)


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_closing_ends_handles_and_their_thread(pair, kind):
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handle = KINDS[kind](pair[0], 3)
    handle.add_done_callback(lambda handle: told.put(handle.exception()))
    pair[0].close()
    assert isinstance(told.get(timeout=PATIENCE), pccl.PCCLError)
    for thread in threading.enumerate():
        if thread.name == "pccl:callbacks":
            thread.join(PATIENCE)
            assert not thread.is_alive()
    handle.add_done_callback(told.put)
    assert told.get_nowait() is handle


# ---- handles that are dropped ----


def await_no_live_ops(comms: Iterable[Communicator]) -> None:
    while any(comm._live_ops for comm in comms):
        time.sleep(0.001)


def test_dropped_collectives_are_awaited_in_the_background(pair):
    """Else they stay live: no vote can begin, and 1,024 of them are too many."""
    values = [np.full(3, float(rank)) for rank in range(2)]
    for comm, value in zip(pair, values, strict=True):
        for tag in range(2100):
            comm.barrier_async(tag=tag)
        comm.broadcast_async(value, root=1)
    gc.collect()
    await_no_live_ops(pair)
    for comm in pair:
        for tag in range(2100):
            comm.barrier_async(tag=tag)
    await_no_live_ops(pair)
    assert all((value == 1).all() for value in values)
    on_all(pair, lambda comm, rank: comm.update_topology(timeout=PATIENCE))


def test_a_dropped_collective_goes_on_after_a_loss():
    with team([0, 0, 0]) as comms:
        comms[0].barrier_async()
        gc.collect()
        handle = comms[1].barrier_async()
        comms[2].close()
        assert handle.result(timeout=PATIENCE).world_size == 2
        await_no_live_ops(comms[:2])


def test_a_dropped_collective_gives_its_tensors_free_at_its_end(pair):
    for comm in pair:
        value = np.zeros(3)
        gone = weakref.ref(value)
        comm.broadcast_async(value, root=0)
        del value
    while gone() is not None:
        time.sleep(0.001)


def test_a_callback_is_free_after_its_call(pair):
    first, second = pair
    value = np.zeros(3)
    gone = weakref.ref(value)
    first.barrier_async().add_done_callback(lambda _, kept=value: None)
    del value
    second.barrier_async().result(timeout=PATIENCE)
    while gone() is not None:
        time.sleep(0.001)


def test_a_dropped_collective_keeps_no_communicator():
    with team([0]) as comms:
        fresh = Communicator(str(comms[0]._endpoint))
        admit(comms, fresh)
        fresh.barrier_async()
        gone = weakref.ref(fresh)
        del fresh
        while gone() is not None:
            time.sleep(0.001)
            gc.collect()


# ---- event loops ----


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_hundred_handles_awaited_together(pair, loop):
    """On one loop for both members, by no thread."""

    async def main():
        before = threading.active_count()
        mine = [pair[0].all_reduce_async(np.full(size, 1.0), tag=size) for size in range(1, 51)]
        mine += [pair[0].broadcast_async(np.ones(30_000), tag=tag) for tag in range(50)]
        waiting = [asyncio.ensure_future(asyncio.gather(*mine))]
        await asyncio.sleep(0)
        theirs = [pair[1].broadcast_async(np.ones(30_000), tag=tag) for tag in range(50)]
        theirs += [pair[1].all_reduce_async(np.full(size, 2.0), tag=size) for size in range(1, 51)]
        waiting.append(asyncio.ensure_future(asyncio.gather(*theirs)))
        infos = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        assert [len(some) for some in infos] == [100, 100]
        assert [info.world_size for info in infos[0][:50]] == [2] * 50
        # the background of dropped handles: one thread of each communicator, started by its first launch
        assert threading.active_count() <= before + 2
        assert not any(comm._events._loops for comm in pair)

    run(loop, main)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_other_tasks_run_while_one_awaits(pair, loop):
    async def main():
        turns: list[str] = []

        async def awaits():
            await pair[0].barrier_async(tag=1)
            turns.append("barrier")

        task = asyncio.create_task(awaits())
        for _ in range(3):
            await asyncio.sleep(0)
            turns.append("other")
        handle = pair[1].barrier_async(tag=1)
        await asyncio.wait_for(task, PATIENCE)
        await handle
        assert turns == ["other"] * 3 + ["barrier"]

    run(loop, main)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_timeout_leaves_the_operation(pair, loop, kind):
    async def main():
        handle = KINDS[kind](pair[0], 3)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await handle
        task = asyncio.ensure_future(handle)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not handle.done()
        other = KINDS[kind](pair[1], 3)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(handle, other, handle)

    run(loop, main)


@pytest.mark.parametrize("first_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("second_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_two_loops_await_handles_of_one_communicator(pair, first_loop, second_loop):
    """Either may read the event of the other."""
    rounds = 100
    errors: list[BaseException] = []

    def thread(loop, parity):
        async def main():
            for number in range(rounds):
                tag = 2 * number + parity
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(
                        pair[0].all_reduce_async(np.ones(2), tag=tag), pair[1].all_reduce_async(np.ones(2), tag=tag)
                    )

        try:
            run(loop, main)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread, args=pair) for pair in ((first_loop, 0), (second_loop, 1))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(2 * PATIENCE)
    assert not errors
    assert not any(one.is_alive() for one in threads)


def test_one_handle_awaited_by_two_loops_a_callback_and_a_thread(pair):
    handle = pair[0].broadcast_async(np.ones(2))
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    handle.add_done_callback(lambda handle: told.put("callback"))

    def awaits(loop):
        async def main():
            async with asyncio.timeout(PATIENCE):
                await handle
            told.put("loop")

        run(loop, main)

    threads = [threading.Thread(target=awaits, args=(loop,)) for loop in LOOPS]
    threads.append(threading.Thread(target=lambda: (handle.wait(PATIENCE), told.put("thread"))))
    for one in threads:
        one.start()
    pair[1].broadcast(np.ones(2))
    assert sorted(told.get(timeout=PATIENCE) for _ in range(4)) == ["callback", "loop", "loop", "thread"]
    for one in threads:
        one.join(PATIENCE)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "sparse"])
def test_closing_wakes_a_task(pair, loop, kind):
    async def main():
        task = asyncio.ensure_future(KINDS[kind](pair[0], 3))
        await asyncio.sleep(0)
        closing = asyncio.get_running_loop().run_in_executor(None, pair[0].close)
        with pytest.raises(pccl.PCCLError):
            await asyncio.wait_for(task, PATIENCE)
        await closing

    run(loop, main)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_a_peer_killed_while_its_operations_are_awaited(loop):
    """Operations that go on among survivors succeed; the others raise PeerLostError. None hangs."""
    outcomes = {"all_reduce": pccl.PeerLostError, "retry": None, "broadcast": None, "all_gather": pccl.PeerLostError}
    outcomes |= {"barrier": None, "sparse": None}
    with MasterNode("127.0.0.1:0") as master, contextlib.ExitStack() as stack:
        comms = [stack.enter_context(Communicator(address_of(master))) for _ in range(2)]
        comms[0].connect()
        admit(comms[:1], comms[1])
        victim = PeerProcess(address_of(master))
        stack.callback(victim.kill)
        victim.tell("join", 3)
        on_all(comms, lambda comm, rank: form(comm, 3))
        assert victim.answer() == 3

        async def main():
            for tag, (kind, expected) in enumerate(outcomes.items()):
                handles = [KINDS[kind](comm, 1000, tag) for comm in comms]
                tasks.append((kind, expected, asyncio.gather(*handles, return_exceptions=True)))
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, victim.kill)
            for kind, expected, task in tasks:
                for ended in await asyncio.wait_for(task, PATIENCE):
                    assert isinstance(ended, expected or (pccl.ReduceInfo, tuple)), (kind, ended)

        tasks: list[Any] = []
        run(loop, main)


def is_waited_for(handle: pccl.Handle[Any]) -> bool:
    """Whether another thread is inside a wait."""
    if free := handle._one_waiter.acquire(blocking=False):
        handle._one_waiter.release()
    return not free


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_a_signal_handler_may_cancel_what_its_thread_waits_for(pair, kind):
    handle = KINDS[kind](pair[0], 3)

    def cancel(*_: object) -> None:
        with pytest.raises(pccl.PCCLTimeoutError, match="below a signal handler"):
            handle.cancel()

    main = threading.get_ident()

    def interrupt() -> None:
        while not is_waited_for(handle):
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGALRM)

    previous = signal.signal(signal.SIGALRM, cancel)
    interrupter = threading.Thread(target=interrupt, daemon=True)
    try:
        interrupter.start()
        assert isinstance(handle.exception(PATIENCE), pccl.OperationCancelledError)
        interrupter.join(PATIENCE)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert isinstance(KINDS[kind](pair[1], 3).exception(PATIENCE), pccl.OperationCancelledError)


@pytest.mark.parametrize("kind", ["broadcast", "sparse"])
def test_a_forked_child_is_told_so_though_a_thread_of_its_parent_launches(pair, kind):
    held, let_go = threading.Event(), threading.Event()
    handle: Any = KINDS[kind](pair[0], 3)

    def launch() -> None:
        op = getattr(handle._op, "_op", handle._op)
        op._claim.run(lambda: (held.set(), let_go.wait(PATIENCE)), Deadline(None))

    launcher = threading.Thread(target=launch)
    launcher.start()
    assert held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        ended = os.EX_SOFTWARE
        try:
            with pytest.raises(pccl.UsageError, match="forked from"):
                handle.result()
            with pytest.raises(pccl.UsageError, match="forked from"):
                KINDS[kind](pair[0], 3)
            ended = os.EX_OK
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    let_go.set()
    launcher.join(PATIENCE)
    KINDS[kind](pair[1], 3).result(PATIENCE)
    handle.result(PATIENCE)


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "sparse"])
def test_a_forked_child_is_told_so_though_a_thread_of_its_parent_waits(pair, kind):
    handle = KINDS[kind](pair[0], 3)
    waiter = threading.Thread(target=handle.exception)
    waiter.start()
    while not is_waited_for(handle):
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        ended = os.EX_SOFTWARE
        try:
            for _ in range(2):
                with pytest.raises(pccl.UsageError, match="forked from"):
                    handle.result()
            ended = os.EX_OK
        finally:
            os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0
    KINDS[kind](pair[1], 3).result(PATIENCE)
    waiter.join(PATIENCE)
