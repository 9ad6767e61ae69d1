"""Cancelled operations: one outcome on all members, whatever they do meanwhile."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from peers import address_of, form
from test_timeouts import SIZES, run

import pccl
from pccl import Communicator, MasterNode, ReduceOp

PATIENCE = 60.0
SEEDS = 5


@pytest.mark.parametrize("retry", [False, True], ids=["plain", "retry"])
@pytest.mark.parametrize("size", SIZES)
def test_a_member_that_calls_later_gets_the_error(size, retry):
    """Both can use the tag again at once."""
    cancelled, results = threading.Event(), []

    def canceller(comm: Communicator) -> None:
        data = np.full(size, 1, np.float32)
        handle = comm.all_reduce_async(data, op=ReduceOp.SUM, retry=retry)
        assert handle.cancel(timeout=PATIENCE)
        assert (data == 1).all()
        with pytest.raises(pccl.OperationCancelledError):
            handle.result(timeout=PATIENCE)
        assert handle.cancel(timeout=PATIENCE)
        cancelled.set()
        comm.all_reduce(data, op=ReduceOp.SUM, retry=retry)
        results.append(np.unique(data).tolist())

    def late(comm: Communicator) -> None:
        assert cancelled.wait(PATIENCE)
        data = np.full(size, 10, np.float32)
        with pytest.raises(pccl.OperationCancelledError):
            comm.all_reduce(data, op=ReduceOp.SUM, retry=retry)
        assert (data == 10).all()
        comm.all_reduce(data, op=ReduceOp.SUM, retry=retry)
        results.append(np.unique(data).tolist())

    run(canceller, late)
    assert results == [[11.0], [11.0]]


def test_calls_that_timed_out():
    """`Communicator.cancel` ends them by their tag; without one by None."""
    cancelled = threading.Event()

    def canceller(comm: Communicator) -> None:
        data = np.ones(4, np.float32)
        for tag in (None, 7):
            with pytest.raises(pccl.PCCLTimeoutError):
                comm.broadcast(data, tag=tag, timeout=0.1)
            assert comm.cancel(tag, timeout=PATIENCE)
        with pytest.raises(pccl.PCCLTimeoutError):
            comm.all_reduce(data, op=ReduceOp.SUM, tag=3, timeout=0.1)
        assert comm.cancel(3, timeout=PATIENCE)
        with pytest.raises(pccl.UsageError, match="in flight"):
            comm.cancel(3)
        cancelled.set()
        comm.barrier(timeout=PATIENCE)

    def late(comm: Communicator) -> None:
        assert cancelled.wait(PATIENCE)
        data = np.ones(4, np.float32)
        for tag in (None, 7):
            with pytest.raises(pccl.OperationCancelledError):
                comm.broadcast(data, tag=tag)
        with pytest.raises(pccl.OperationCancelledError):
            comm.all_reduce(data, op=ReduceOp.SUM, tag=3)
        comm.barrier(timeout=PATIENCE)

    run(canceller, late)


def test_a_reduce_whose_handle_was_dropped():
    """The reaper waits for it, too: its memory is free only once it has ended."""
    rounds = 4
    dropped, cancelled = threading.Barrier(2), threading.Barrier(2)

    def canceller(comm: Communicator) -> None:
        for number in range(rounds):
            data = np.full(100_000, 1, np.float32)
            comm.all_reduce_async(data, op=ReduceOp.SUM, tag=number)
            while comm._reaper._dropped.qsize():  # until the reaper has it
                pass
            assert comm.cancel(number, timeout=PATIENCE)
            assert (data == 1).all()
            assert not comm._live_ops
            dropped.wait(PATIENCE)
            cancelled.wait(PATIENCE)

    def late(comm: Communicator) -> None:
        for number in range(rounds):
            dropped.wait(PATIENCE)
            with pytest.raises(pccl.OperationCancelledError):
                comm.all_reduce(np.ones(100_000, np.float32), op=ReduceOp.SUM, tag=number)
            cancelled.wait(PATIENCE)

    run(canceller, late)


def test_a_cancelled_call_of_the_dead_is_not_one_with_newcomers():
    """The only survivor never made that call; its next one with this tag is another one, with a newcomer."""
    alone = threading.Event()

    def gone(address: str) -> None:
        with Communicator(address) as comm:
            comm.connect()
            form(comm, 2)
            handle = comm.all_reduce_async(np.ones(4, np.float32), op=ReduceOp.SUM, tag=3)
            assert handle.cancel(timeout=PATIENCE)

    def total(comm: Communicator) -> list[float]:
        form(comm, 2)
        data = np.ones(4, np.float32)
        comm.all_reduce(data, op=ReduceOp.SUM, tag=3, timeout=PATIENCE)
        return data.tolist()

    def survivor(address: str) -> list[float]:
        with Communicator(address) as comm:
            comm.connect()
            form(comm, 2)
            with pytest.raises(pccl.PeerLostError):
                comm.all_reduce(np.ones(4, np.float32), op=ReduceOp.SUM, tag=4, timeout=PATIENCE)
            alone.set()
            return total(comm)

    def newcomer(address: str) -> list[float]:
        assert alone.wait(PATIENCE)
        with Communicator(address) as comm:
            comm.connect()
            return total(comm)

    with MasterNode("127.0.0.1:0") as master, ThreadPoolExecutor() as pool:
        _, *results = [pool.submit(part, address_of(master)) for part in (gone, survivor, newcomer)]
        assert [result.result(2 * PATIENCE) for result in results] == [[2.0] * 4] * 2


def play(seed: int, steps: int = 6) -> None:
    """Three members make the same calls, with random timeouts, cancellations and writes to their tensors."""
    outcomes: dict[int, list[object]] = defaultdict(list)
    errors: list[BaseException] = []
    sizes = [random.Random(seed * 1000 + step).choice([2, 500, 20_000, 200_000, 1_000_000]) for step in range(steps)]

    def attempt(comm: Communicator, rng: random.Random, step: int) -> object:
        data = np.full(sizes[step], rng.randint(1, 9), np.float32)
        given = data.copy()
        retry = step % 2 == 1
        asynchronous = rng.random() < 0.3
        if asynchronous:
            handle = comm.all_reduce_async(data, op=ReduceOp.SUM, retry=retry)
            if rng.random() < 0.5:
                handle.cancel(timeout=PATIENCE)
            handle.result(timeout=PATIENCE)
            return data.tobytes()
        while True:
            timeout = rng.choice([0.0, 0.001, 0.02, PATIENCE])
            try:
                comm.all_reduce(data, op=ReduceOp.SUM, retry=retry, timeout=timeout)
                return data.tobytes()
            except pccl.PCCLTimeoutError:
                chance = rng.random()
                if chance < 0.3:
                    if comm.cancel(0, timeout=PATIENCE):
                        return "cancelled"
                    return data.tobytes()
                if chance < 0.6:
                    data[rng.randrange(len(data))] += 100
                    continue
            except pccl.UsageError:
                data[:] = given

    def member(rank: int, address: str) -> None:
        rng = random.Random(seed * 10 + rank)
        try:
            with Communicator(address) as comm:
                comm.connect()
                form(comm, 3)
                for step in range(steps):
                    try:
                        outcomes[step].append(attempt(comm, rng, step))
                    except pccl.OperationCancelledError:
                        outcomes[step].append("cancelled")
                comm.barrier(timeout=PATIENCE)
        except BaseException as error:
            errors.append(error)

    with MasterNode("127.0.0.1:0") as master:
        threads = [threading.Thread(target=member, args=(rank, f"127.0.0.1:{master.port}"), daemon=True) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
        assert not any(thread.is_alive() for thread in threads), f"seed {seed} hangs"
    if errors:
        raise errors[0]
    for step in range(steps):
        assert len(outcomes[step]) == 3, f"seed {seed}, step {step}"
        assert len(set(outcomes[step])) == 1, f"seed {seed}, step {step}: {[str(one)[:40] for one in outcomes[step]]}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed):
    play(seed)
