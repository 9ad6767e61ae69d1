"""pccl.torchft: the tests of a process group in torchft's wheel, and torchft's Manager with replicas that die and come back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from launched import Launched
from peers import Background

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'pccl[torchft]'")
pytest.importorskip("parameterized")

import torch
import torch.distributed as dist
from parameterized import parameterized
from torchft import process_group_test as wheel
from torchft.coordination import LighthouseServer

import pccl.torchft
from pccl.distributed import CollectiveError, CollectiveTimeoutError
from pccl.lab.ports import free_ports

REPLICA = Path(__file__).with_name("torchft_replica.py")
LIMIT = timedelta(seconds=20)
LOST = r"are lost|the communicator is dead"
"""The second, where the lost one had the master."""


class TestsOfTheWheel(wheel.MultiPgBaseTest):
    """All of torchft's collectives among three groups of this process, also after the loss of one of them.

    The wheel lists what gloo and NCCL say of a loss, and pccl's errors contain it.
    """

    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend):
        return pccl.torchft.ProcessGroup(LIMIT)

    @parameterized.expand(wheel._ALL_COLLECTIVES)
    def test_collective(self, collective):
        self._run_parallel(collective)

    @parameterized.expand(wheel._ALL_COLLECTIVES)
    def test_collective_with_resiliency(self, collective):
        self._run_with_resiliency(collective)


@pytest.fixture
def address():
    """Of a store; a new prefix each time that it is called."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    numbers = iter(range(100))
    return lambda: f"127.0.0.1:{store.port}/prefix/{next(numbers)}"


@contextlib.contextmanager
def groups(address, count):
    made = [pccl.torchft.ProcessGroup(LIMIT) for _ in range(count)]
    configure(made, address)
    try:
        yield made
    finally:
        for group in made:
            group.shutdown()


def configure(made, address):
    together([lambda rank=rank, one=one: one.configure(address, "0", rank, len(made)) for rank, one in enumerate(made)])


def together(calls):
    return [begun.result() for begun in [Background(call) for call in calls]]


def reduced(group, value):
    tensor = torch.full((1000,), value)
    group.allreduce([tensor], dist.ReduceOp.SUM).wait()
    return tensor[0].item()


def test_a_group_of_one(address):
    with groups(address(), 1) as [group]:
        assert (group.size(), group.rank()) == (1, 0)
        wheel._test_pg(group, torch.tensor([2]))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4), process_group=group)
        model(torch.rand(2, 3)).sum().backward()


def test_reduce_scatter(address):
    """Which the wheel tests with CUDA only."""
    with groups(address(), 2) as made:
        outs = [torch.zeros(2) for _ in made]
        inputs = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
        together(
            [
                lambda out=out, one=one: one.reduce_scatter([out], [inputs], wheel.ReduceScatterOptions()).wait()
                for out, one in zip(outs, made, strict=True)
            ]
        )
        assert [out.tolist() for out in outs] == [[2.0, 4.0], [6.0, 8.0]]


def test_it_is_configured_again_with_more_and_with_fewer(address):
    with groups(address(), 3) as made:
        assert together([lambda one=one: reduced(one, 1.0) for one in made]) == [3.0] * 3
        configure(made[1:], address())
        assert [one.rank() for one in made[1:]] == [0, 1]
        assert together([lambda one=one: reduced(one, 1.0) for one in made[1:]]) == [2.0] * 2
        configure(made, address())
        assert together([lambda one=one: reduced(one, 1.0) for one in made]) == [3.0] * 3


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("way", ["wait", "future"])
def test_a_loss_is_an_error_of_the_call_that_waits(address, lost, way):
    with groups(address(), 3) as made:
        survivors = [one for rank, one in enumerate(made) if rank != lost]
        works = [one.allreduce([torch.ones(1000)], dist.ReduceOp.SUM) for one in survivors]
        ends = [Background(work.wait if way == "wait" else work.get_future().wait) for work in works]
        made[lost].shutdown()
        for end in ends:
            with pytest.raises(CollectiveError, match=LOST):
                end.result()
        assert [one.errored() for one in survivors] == [None, None]  # told already
        for one in survivors:
            with pytest.raises(RuntimeError):
                reduced(one, 1.0)


def test_abort_ends_own_calls_and_is_told(address):
    with groups(address(), 2) as [first, second]:
        waiting = Background(first.allreduce([torch.ones(1000)], dist.ReduceOp.SUM).wait)
        first.abort()
        with pytest.raises(RuntimeError):
            waiting.result()
        assert "aborted" in str(first.errored())
        configure([first, second], address())
        assert first.errored() is None
        assert together([lambda one=one: reduced(one, 1.0) for one in (first, second)]) == [2.0] * 2


def test_a_call_that_is_given_no_limit_has_that_of_the_group(address):
    with groups(address(), 2) as [first, _]:
        first.set_timeout(timedelta(seconds=0.1))
        with pytest.raises(CollectiveTimeoutError):
            first.allreduce([torch.ones(1000)], dist.ReduceOp.SUM).wait()
        with pytest.raises(CollectiveTimeoutError):
            first.allreduce([torch.ones(1000)], dist.ReduceOp.SUM).get_future().wait()


@pytest.mark.parametrize("rank", [0, 1])
def test_configure_ends_when_others_do_not_come(address, rank):
    group = pccl.torchft.ProcessGroup(timedelta(seconds=0.1))
    with pytest.raises(RuntimeError, match=f"rank {rank} of 2 did not join the group of the quorum"):
        group.configure(address(), "0", rank, 2)


def test_shutdown_ends_a_configure_that_waits(address):
    group = pccl.torchft.ProcessGroup(LIMIT)
    begun = threading.Event()
    take = pccl.torchft._Seat.take

    def note(seat):
        begun.set()
        return take(seat)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pccl.torchft._Seat, "take", note)
        waiting = Background(group.configure, address(), "0", 0, 2)
        assert begun.wait(30)
        group.shutdown()
        with pytest.raises(RuntimeError, match="did not join the group"):
            waiting.result()


def test_functional_collectives(address):
    wheel.dummy_init_pg()
    group = pccl.torchft.ProcessGroup(LIMIT).register("functional")
    try:
        group.configure(address(), "0", 0, 1)
        tensor = torch.distributed._functional_collectives.all_reduce(torch.ones(3), "sum", group)
        assert tensor.tolist() == [1.0] * 3
    finally:
        group.shutdown()
        group.unregister()
        dist.destroy_process_group()


# ---- the Manager ----

START = 120
"""Seconds that a replica may take to start on a busy machine."""

DID = r"replica (\d) did step (\d+) of (\d): sum (\d+), weights (\w+)"


class Replicas:
    def __init__(self, stack, lighthouse):
        self._stack = stack
        self._lighthouse = lighthouse
        self._weights = {}

    def start(self, number, *options):
        command = [sys.executable, str(REPLICA), self._lighthouse, str(number), *options]
        return self._stack.enter_context(Launched(command, {"TORCHFT_TIMEOUT_SEC": "20"}))

    def expect_step(self, replica, members):
        """Waits for a step of these members, and checks all sums and weights on the way. The number of the step."""
        while True:
            [match] = replica.expect(DID, timeout=START)
            step, count, total, weights = int(match[2]), int(match[3]), int(match[4]), match[5]
            assert total.bit_count() == count, match[0]
            assert self._weights.setdefault(step, (total, weights)) == (total, weights), match[0]
            if total == sum(1 << member for member in members):
                return step


@pytest.fixture
def replicas():
    [port] = free_ports(1)
    # It waits for all that live: whoever it did not wait for would begin a quorum with one of the others.
    server = LighthouseServer(
        bind=f"127.0.0.1:{port}", min_replicas=2, join_timeout_ms=10_000, quorum_tick_ms=20, heartbeat_timeout_ms=1000
    )
    try:
        with contextlib.ExitStack() as stack:
            yield Replicas(stack, f"http://127.0.0.1:{port}")
    finally:
        server.shutdown()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("victim", [0, 2], ids=["that-has-the-master", "that-has-not"])
def test_a_replica_dies_in_a_step_and_comes_back(replicas, victim):
    survivors = [number for number in range(3) if number != victim]
    running = {number: replicas.start(number, *["kill"] * (number == victim)) for number in range(3)}
    [died] = running[victim].expect(rf"replica {victim} dies in step (\d+)", timeout=START)
    for number in survivors:
        # the latter, if the step in which all three met was its first one
        running[number].expect(rf"replica {number} drops step ({died[1]}|0) of 3")
        replicas.expect_step(running[number], survivors)
    back = replicas.start(victim)
    replicas.expect_step(back, range(3))
    for number in survivors:
        replicas.expect_step(running[number], range(3))
    os.kill(running[survivors[0]].process.pid, signal.SIGKILL)
    left = [victim, survivors[1]]
    step = replicas.expect_step(back, left)
    assert replicas.expect_step(running[survivors[1]], left) <= step + 1
