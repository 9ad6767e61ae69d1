"""Ops in flight: handles, and what happens to an op whose handle is dropped or whose call is interrupted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pccl
from pccl import Communicator, MasterNode, ReduceOp

PATIENCE = 30.0
PACKAGE = str(Path(pccl.__file__).parent)


class InterruptError(Exception):
    """As a signal handler may raise."""


class Interrupted:
    """In the block, raises where a signal handler could: as the `at`-th function of the package begins, or C function ends.

    Python looks for signals there, and at the ends of loops.
    """

    def __init__(self, at):
        self.left = at
        self.raised = False

    def _see(self, frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE) and not self.raised:
            if self.left == 0:
                self.raised = True
                raise InterruptError
            self.left -= 1

    def __enter__(self):
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


@pytest.fixture
def pair():
    with MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        with Communicator(address) as first, Communicator(address) as second:
            first.connect(1)
            joining = threading.Thread(target=second.connect, args=(1,))
            joining.start()
            first.wait_for_peers(2, timeout=PATIENCE)
            joining.join()
            yield first, second


def launch(comm, tag, value=1.0):
    return comm.all_reduce_async(np.full(100, value), op=ReduceOp.SUM, tag=tag)


def reduce(comm, tag, value=1.0):
    array = np.full(100, value)
    comm.all_reduce(array, op=ReduceOp.SUM, tag=tag, timeout=PATIENCE)
    return array[0]


def vote(first, second):
    """An update of both, once no op is un-awaited: dropped ones are awaited in the background."""
    other = threading.Thread(target=second.update_topology, kwargs={"timeout": PATIENCE})
    other.start()
    end = time.monotonic() + PATIENCE
    while True:
        try:
            first.update_topology(timeout=PATIENCE)
            break
        except pccl.UsageError as error:
            if error.result is not pccl.Result.PENDING_ASYNC_OPS or time.monotonic() > end:
                raise
            time.sleep(0.01)
    other.join()


def test_an_interrupt_as_a_handle_is_dropped_loses_no_op(pair):
    first, second = pair
    for at in range(50):
        handle = launch(first, at)
        with Interrupted(at) as interrupted:
            del handle
        assert reduce(second, at) == 2
        vote(first, second)
        if not interrupted.raised:
            break


def test_an_interrupt_at_any_point_of_a_launch_loses_no_op(pair):
    first, second = pair
    done = 0
    for at in range(300):
        array = np.full(100, 1.0)

        def again(array=array, at=at):
            return first.all_reduce_async(array, op=ReduceOp.SUM, tag=at)

        handle = None
        try:
            with Interrupted(at) as interrupted:
                handle = again()
        except InterruptError:
            if at in first._unfinished:
                handle = again()
        if handle is not None or any(op.tag == at for op in list(first._live_ops)):
            assert reduce(second, at) == 2
        if handle is not None:
            assert handle.wait(timeout=PATIENCE)[0]
            assert (array == 2).all()
        vote(first, second)
        done += 1
        if not interrupted.raised:
            break
    assert 10 < done < 300  # points


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("make", [np.full, torch.full])
def test_an_interrupt_at_any_point_of_a_reduce_is_repeated(pair, make, fresh, retry):
    """Neither the first reduce, nor one that uses the memory of an op before it, is made twice, and none is lost."""
    first, second = pair

    def reduced(comm, array):
        return comm.all_reduce(array, op=ReduceOp.SUM, tag=5, retry=retry)

    for at in range(300):
        mine, other = make((100,), 1.0), make((100,), 2.0 + at)
        thread = threading.Thread(target=reduced, args=(second, other))
        thread.start()
        if fresh:
            first._spares.clear()
        try:
            with Interrupted(at) as interrupted:
                reduced(first, mine)
        except InterruptError:
            info = reduced(first, mine)
            assert info.world_size == 2
            assert [len(one.peers) for one in info.contributors] == [2] * retry
        thread.join()
        assert (mine == 3 + at).all()
        assert not first._unfinished
        assert len(first._spares) <= 4
        assert not first._live_ops
        if not interrupted.raised:
            break
    assert 10 < at < 300  # points


def test_an_interrupt_at_any_point_of_a_wait_is_repeated(pair):
    first, second = pair
    for at in range(300):
        handle = launch(first, at)
        assert reduce(second, at) == 2
        try:
            with Interrupted(at) as interrupted:
                handle.wait(timeout=PATIENCE)
        except InterruptError:
            assert handle.wait(timeout=PATIENCE)[0]
        if at % 2:
            del handle
        vote(first, second)
        if not interrupted.raised:
            break


def test_an_interrupt_at_any_point_of_a_vote_is_repeated(pair):
    first, second = pair
    for at in range(300):
        other = threading.Thread(target=second.update_topology, kwargs={"timeout": PATIENCE})
        other.start()
        try:
            with Interrupted(at) as interrupted:
                first.update_topology(timeout=PATIENCE)
        except InterruptError:
            first.update_topology(timeout=PATIENCE)
        other.join()
        if not interrupted.raised:
            break


def test_an_interrupt_at_any_point_of_a_multiple_is_repeated(pair):
    """Neither the ops nor their end are lost: they would be made again, alone."""
    first, second = pair

    def reduced(comm, array):
        quantization = pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.NONE)
        operand = pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)
        wanted = pccl.ReduceDescriptor(array.size, ReduceOp.SUM, 5, operand, quantization)
        return comm.all_reduce_multiple_with_retry([pccl.ReduceOpDescriptor.from_numpy(array, array, wanted)], timeout=PATIENCE)

    for at in range(300):
        mine, other = np.full(100, 1.0), np.full(100, 1.0)
        thread = threading.Thread(target=reduced, args=(second, other))
        thread.start()
        try:
            with Interrupted(at) as interrupted:
                reduced(first, mine)
        except InterruptError:
            reduced(first, mine)
        thread.join()
        assert (mine == 2).all()
        assert not first._unfinished
        if not interrupted.raised:
            break
    assert 10 < at < 300  # points


def test_an_interrupt_at_any_point_of_a_collective_is_repeated(pair):
    """Neither the collective nor its number is lost: the other member would wait for it."""
    first, second = pair
    for at in range(500):
        part, parts = np.full(5, float(at)), [np.zeros(5), np.zeros(5)]
        thread = threading.Thread(
            target=second.all_gather, args=(part + 1, [np.zeros(5), np.zeros(5)]), kwargs={"timeout": PATIENCE}
        )
        thread.start()
        try:
            with Interrupted(at) as interrupted:
                first.all_gather(part, parts, timeout=PATIENCE)
        except InterruptError:
            first.all_gather(part, parts, timeout=PATIENCE)
        thread.join()
        assert [array.tolist() for array in parts] == [[at] * 5, [at + 1] * 5]
        assert not first._cut_short
        if not interrupted.raised:
            break
    assert 20 < at < 500  # points


def test_a_dropped_op_frees_its_tensors_when_it_has_ended(pair):
    first, second = pair
    handle = launch(first, 3)
    assert len(first._live_ops) == 1
    del handle
    gc.collect()
    assert len(first._live_ops) == 1  # C may write to them
    assert reduce(second, 3) == 2
    vote(first, second)
    assert not first._live_ops


# ---- ops that are used again ----

NUMPY_OF = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def test_a_reduce_has_nothing_of_the_one_before(pair):
    random = np.random.default_rng(7)

    def reduced(comm, turn, rank, ends):
        of = np.random.default_rng(turn)
        dtype, op = of.choice(["int32", "int64", "float32", "float64"]), str(of.choice(list(NUMPY_OF)))
        both = of.integers(1, 5, (2, of.integers(0, 300))).astype(dtype)
        send, recv, tag = both[rank].copy(), np.zeros_like(both[rank]), int(of.integers(0, 3)) << int(of.choice([0, 62]))
        in_place, in_torch, retry = (bool(of.integers(0, 2)) for _ in range(3))
        tensors = [torch.from_numpy(one).clone() if in_torch else one for one in (send, recv)]
        info = comm.all_reduce(*tensors[: 1 if in_place else 2], op=op, tag=tag, retry=retry)
        found = tensors[0 if in_place else 1]
        assert (np.asarray(found) == NUMPY_OF[op](*both)).all()
        assert in_place or (np.asarray(tensors[0]) == both[rank]).all()
        assert info.world_size == 2
        assert [(one.start, one.stop) for one in info.contributors] == [(0, both.shape[1])] * retry
        ends.append(info.tx_bytes)

    for turn in random.integers(0, 1 << 30, 200):
        ends: list[Any] = []
        threads = [threading.Thread(target=reduced, args=(comm, turn, rank, ends)) for rank, comm in enumerate(pair)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(ends) == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tag": -1}, ValueError),
        ({"tag": 1 << 64}, ValueError),
        ({"tag": 1.0}, TypeError),
        ({"op": "mean"}, ValueError),
        ({"op": 1}, TypeError),
        ({"recv": np.zeros(99)}, AssertionError),
        ({"recv": np.zeros(100, np.int64)}, AssertionError),
        ({"recv": torch.zeros(100)}, ValueError),
        ({"send": np.zeros((100, 2))[:, 0]}, AssertionError),
        ({"send": np.zeros(100, np.complex64)}, AssertionError),
        ({"send": torch.zeros(100, dtype=torch.complex64)}, ValueError),
        ({"send": torch.zeros(100, 2)[:, 0]}, AssertionError),
        ({"send": torch.zeros(100, device="meta")}, AssertionError),
        ({"send": np.zeros(100, np.bool_), "op": "avg"}, pccl.PCCLError),
        ({"send": [1.0]}, ValueError),
        ({"retry": True, "survivors": False}, ValueError),
    ],
)
def test_wrong_arguments_are_refused_alike_at_first_and_later(pair, arguments, error):
    first, second = pair
    texts = []
    for _ in range(2):
        with pytest.raises(error) as caught:
            first.all_reduce(**{"send": np.zeros(100), **arguments})
        texts.append(str(caught.value))
        thread = threading.Thread(target=second.all_reduce, args=(np.ones(100),))
        thread.start()
        first.all_reduce(np.ones(100))
        thread.join()
    assert texts[0] == texts[1]
    assert not first._unfinished


def test_a_reduce_after_others_that_fails_leaves_the_input(pair):
    first, second = pair
    array = torch.ones(100)
    for _ in range(2):
        thread = threading.Thread(target=second.all_reduce, args=(np.ones(100, np.float32),))
        thread.start()
        first.all_reduce(array.clone())
        thread.join()
    second.close()
    with pytest.raises((pccl.PeerLostError, pccl.TooFewPeersError)):
        first.all_reduce(array)
    with pytest.raises(pccl.TooFewPeersError):
        first.all_reduce(array)
    assert (array == 1).all()
    first.close()
    with pytest.raises(pccl.UsageError, match="the communicator is closed"):
        first.all_reduce(array)


# ---- handles ----


def test_a_timeout_names_the_members_from_whom_nothing_has_come(pair):
    first, second = pair
    array = np.ones(100)
    missing = r"1 of 2 members have sent nothing for it: peer \S+ \(\w{8}, rank \d\); "
    with pytest.raises(pccl.PCCLTimeoutError, match=missing + "the call stays in flight; repeat it"):
        first.all_reduce(array, op=ReduceOp.SUM, tag=7, timeout=0.2)
    handle = launch(first, 8)
    with pytest.raises(pccl.PCCLTimeoutError, match=missing + "the operation with tag 8 stays in flight"):
        handle.result(timeout=0.2)
    assert [reduce(second, tag) for tag in (7, 8)] == [2, 2]
    first.all_reduce(array, op=ReduceOp.SUM, tag=7, timeout=PATIENCE)
    handle.result(timeout=PATIENCE)


def test_done_and_result(pair):
    first, second = pair
    handle = launch(first, 7)
    assert handle.done() is False
    with pytest.raises(pccl.PCCLTimeoutError, match=r"tag 7 stays in flight; call wait again to wait on, or call close\(\)"):
        handle.result(timeout=0.01)
    assert reduce(second, 7) == 2
    info = handle.result(timeout=PATIENCE)
    assert info.world_size == 2
    assert handle.done() is True
    assert handle.result() is info
    assert handle.wait() == (True, 0, info)


def test_result_raises_what_the_op_failed_with(pair):
    first, second = pair
    handle = launch(first, 1)
    second.close()
    with pytest.raises(pccl.PeerLostError, match="repeat the call"):
        handle.result(timeout=PATIENCE)
    assert handle.done() is True
    with pytest.raises(pccl.PeerLostError):
        handle.result()
    with pytest.raises(pccl.TooFewPeersError):
        launch(first, 1)


def test_in_place_without_saying_so(pair):
    first, second = pair
    handle = launch(first, 0, 3.0)
    assert reduce(second, 0, 4.0) == 7
    assert handle.result(timeout=PATIENCE).world_size == 2


# ---- texts ----


def test_the_text_names_what_was_not_awaited(pair):
    first, second = pair
    handles = [launch(first, tag) for tag in (4, 2)]
    array = np.full(100, 1.0)
    with pytest.raises(pccl.PCCLTimeoutError, match=r"repeat it to wait on, or call close\(\) or reconnect\(\) to cancel it"):
        first.all_reduce(array, op=ReduceOp.SUM, tag=9, timeout=0.01)
    with pytest.raises(pccl.UsageError) as caught:
        first.update_topology()
    assert "wait for the handles of all_reduce_async with tag 2, 4;" in str(caught.value)
    assert "repeat the interrupted reduce with tag 9" in str(caught.value)
    for tag in (2, 4, 9):
        reduce(second, tag)
    first.all_reduce(array, op=ReduceOp.SUM, tag=9, timeout=PATIENCE)
    assert all(handle.done() or handle.result() for handle in handles)
    vote(first, second)


def start(call, *begun):
    """Runs the call in a thread, until all of `begun` are true; a list that gets what it returns or raises."""
    ends = []

    def run():
        try:
            ends.append(call())
        except pccl.PCCLError as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + PATIENCE
    while not all(is_so() for is_so in begun) and time.monotonic() < end:
        time.sleep(0.001)
    return thread, ends


def test_a_reduce_that_another_thread_runs_is_refused_and_goes_on(pair):
    first, second = pair
    array = np.full(100, 1.0)

    def again():
        return first.all_reduce(array, op=ReduceOp.SUM, tag=7, timeout=PATIENCE)

    thread, ends = start(again, lambda: any(op.in_flight for op in list(first._live_ops)))
    with pytest.raises(pccl.UsageError, match="the same reduce, of tag 7, of another thread is running"):
        again()
    with pytest.raises(pccl.UsageError, match="the same reduce"):
        first.all_reduce_async(array, op=ReduceOp.SUM, tag=7)
    assert len(first._live_ops) == 1  # which holds the tensor
    assert reduce(second, 7) == 2
    thread.join(PATIENCE)
    assert ends[0].local_world_size == 2
    assert (array == 2).all()


def test_a_question_that_another_thread_asks_is_refused_and_goes_on(pair):
    first, second = pair
    thread, ends = start(first.are_peers_pending, lambda: "pcclArePeersPending" in first._unfinished)
    with pytest.raises(pccl.UsageError, match="another such call of this communicator is running"):
        first.are_peers_pending(timeout=PATIENCE)
    assert not second.are_peers_pending(timeout=PATIENCE)
    thread.join(PATIENCE)
    assert ends == [False]


CLOSES_IN_THE_MIDST = """
import threading
import numpy as np
import pccl
from pccl import *

with MasterNode("127.0.0.1:0") as master:
    address = f"127.0.0.1:{master.port}"
    first, second = Communicator(address), Communicator(address)
    first.connect()
    joining = threading.Thread(target=second.connect)
    joining.start()
    first.wait_for_peers(2)
    joining.join()
    array = np.ones(4, np.float32)
    as_is = QuantizationOptions(algorithm=QuantizationAlgorithm.NONE)
    kind = ReduceDescriptor(4, ReduceOp.SUM, 1, ReduceOperandDescriptor(DataType.FLOAT), as_is)
    try:
        first.all_reduce_multiple_with_retry([ReduceOpDescriptor.from_numpy(array, array, kind)], timeout=0.1)
    except pccl.PCCLTimeoutError:
        first.close()
    second.close()
print("closed")
"""


def test_many_reduces_that_were_cut_short_outlive_their_communicator():
    # The C library fills what is freed: a lock in it would be waited for for ever.
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "PYTHONPATH": str(Path(PACKAGE).parent)}
    command = [sys.executable, "-c", CLOSES_IN_THE_MIDST]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "closed\n", done.stderr
