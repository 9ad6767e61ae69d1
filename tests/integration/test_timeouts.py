"""A call that timed out: what it reduces, and what its repeat does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from peers import address_of, form
from performers import PATIENCE

import pccl
from pccl import Communicator, MasterNode, ReduceOp

NONE = pccl.QuantizationAlgorithm.NONE

SIZES = [2, 20_000, 3_000_000]
"""Elements: small (in one frame), small (in several), large."""


def run(*programs: Callable[[Communicator], None]) -> None:
    """Runs each program as a member of one run, in a thread of its own, and raises the first error."""
    errors: list[BaseException] = []
    with MasterNode("127.0.0.1:0") as master:

        def member(program: Callable[[Communicator], None]) -> None:
            try:
                with Communicator(address_of(master)) as comm:
                    comm.connect()
                    form(comm, len(programs))
                    program(comm)
                    comm.barrier(timeout=PATIENCE)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=member, args=(program,), daemon=True) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def all_reduce(comm: Communicator, data: np.ndarray, timeout: float | None, retry: bool, named: bool) -> None:
    group = comm.group(comm.members) if named else None
    comm.all_reduce(data, op=ReduceOp.SUM, retry=retry, timeout=timeout, group=group)


@pytest.mark.parametrize("named", [False, True], ids=["all", "group"])
@pytest.mark.parametrize("retry", [False, True], ids=["plain", "retry"])
@pytest.mark.parametrize("size", SIZES)
def test_a_repeat_with_changed_contents_is_refused(size, retry, named):
    """Both members then have the sum of what was given at first."""
    timed_out, results = threading.Event(), []

    def hasty(comm: Communicator) -> None:
        data = np.full(size, 1, np.float32)
        with pytest.raises(pccl.PCCLTimeoutError):
            all_reduce(comm, data, 0.1, retry, named)
        assert (data == 1).all()
        data[:] = 100
        with pytest.raises(pccl.UsageError, match="input changed"):
            all_reduce(comm, data, 0.1, retry, named)
        timed_out.set()
        data[:] = 1
        all_reduce(comm, data, PATIENCE, retry, named)
        results.append(np.unique(data).tolist())

    def late(comm: Communicator) -> None:
        assert timed_out.wait(PATIENCE)
        data = np.full(size, 10, np.float32)
        all_reduce(comm, data, None, retry, named)
        results.append(np.unique(data).tolist())

    run(hasty, late)
    assert results == [[11.0], [11.0]]


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize("size", SIZES)
def test_a_repeat_of_several_reduces_with_changed_contents_is_refused(size, in_place):
    """All of its tensors are as before the call until it succeeds."""
    timed_out, results = threading.Event(), []

    def reduces(comm: Communicator, value: int, timeout: float | None) -> list[np.ndarray]:
        numbers, wanted = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT), []
        for tag in range(3):
            kind = pccl.ReduceDescriptor(size, ReduceOp.SUM, tag, numbers, pccl.QuantizationOptions(algorithm=NONE))
            send = arrays.setdefault((comm.rank, tag), np.full(size, value + tag, np.float32))
            recv = send if in_place else arrays.setdefault((comm.rank, tag, "result"), np.zeros_like(send))
            wanted.append((recv, pccl.ReduceOpDescriptor.from_numpy(send, recv, kind)))
        comm.all_reduce_multiple_with_retry([one for _, one in wanted], timeout=timeout)
        return [recv for recv, _ in wanted]

    arrays: dict[object, np.ndarray] = {}

    def hasty(comm: Communicator) -> None:
        with pytest.raises(pccl.PCCLTimeoutError):
            reduces(comm, 1, 0.1)
        changed = arrays[comm.rank, 2]
        assert (changed == 3).all()
        changed[-1] = 100
        with pytest.raises(pccl.UsageError, match="input changed"):
            reduces(comm, 1, 0.1)
        timed_out.set()
        changed[-1] = 3
        results.append([np.unique(one).tolist() for one in reduces(comm, 1, PATIENCE)])

    def late(comm: Communicator) -> None:
        assert timed_out.wait(PATIENCE)
        results.append([np.unique(one).tolist() for one in reduces(comm, 10, None)])

    run(hasty, late)
    assert results == [[[11.0], [13.0], [15.0]]] * 2


@pytest.mark.parametrize("size", SIZES[:2])
def test_a_member_sums_what_it_has_sent(size):
    """A program that writes to its tensor while a small operation is in flight does not part the results.

    Which contents count depends on whether the links were there when the operation was posted.
    """
    begun, results = threading.Event(), []

    def writer(comm: Communicator) -> None:
        data = np.full(size, 1, np.float32)
        handle = comm.all_reduce_async(data, op=ReduceOp.SUM)
        data[:] = 100
        begun.set()
        assert handle.wait(timeout=PATIENCE)[0]
        results.append(np.unique(data).tolist())

    def other(comm: Communicator) -> None:
        assert begun.wait(PATIENCE)
        data = np.full(size, 10, np.float32)
        comm.all_reduce(data, op=ReduceOp.SUM)
        results.append(np.unique(data).tolist())

    run(writer, other)
    assert results[0] == results[1]
    assert results[0] in ([11.0], [110.0])
