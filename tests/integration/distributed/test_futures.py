"""Futures and waits: each keeps its own limit, and a future is complete when a wait returns."""

from __future__ import annotations

import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

from pccl import Result
from pccl.distributed import CollectiveTimeoutError
from pccl.distributed._work import seconds_of


def expires_behind_a_patient_one(kind: str) -> bool:
    impatient = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)  # until the other one has seen its limit
        return True
    patient = dist.all_reduce(torch.ones(2), async_op=True)
    first = patient.get_future() if kind == "future" else None
    if kind == "dropped":
        del patient
    future = dist.all_reduce(torch.ones(2), group=impatient, async_op=True).get_future()
    with pytest.raises(CollectiveTimeoutError):
        future.wait()
    assert first is None or not first.done()
    dist.send(torch.zeros(1), 1)
    return True


@pytest.mark.parametrize("kind", ["future", "dropped", "waited for"])
def test_a_future_keeps_its_own_limit(kind):
    assert ranks.run(expires_behind_a_patient_one, 2, kind, timeout=60) == [True, True]


def complete_after_wait() -> bool:
    for _ in range(200):
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        ran: list[float] = []
        future.then(lambda done, ran=ran: ran.append(done.value()[0].sum().item()))
        work.wait()
        assert future.done()
        late: list[int] = []
        work.get_future().then(lambda done, late=late: late.append(threading.get_ident()))
        assert late == [threading.get_ident()]
        end = time.monotonic() + 20
        while not ran:
            assert time.monotonic() < end
        assert ran == [4.0 * dist.get_world_size()]
    return True


def test_a_future_is_complete_when_wait_returns():
    assert ranks.run(complete_after_wait, 2) == [True, True]


def wait_after_a_future_has_expired() -> float:
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
        x = torch.ones(2)
        dist.all_reduce(x, group=dist.new_group(timeout=timedelta(seconds=20)))
        return x.sum().item()
    x = torch.ones(2)
    group = dist.new_group(timeout=timedelta(seconds=20))
    group.set_timeout(timedelta(seconds=1))
    work = dist.all_reduce(x, group=group, async_op=True)
    with pytest.raises(CollectiveTimeoutError):
        work.get_future().wait()
    dist.send(torch.zeros(1), 1)
    work.wait(timedelta(seconds=20))
    return x.sum().item()


def test_a_call_can_be_waited_for_after_its_future_has_expired():
    assert ranks.run(wait_after_a_future_has_expired, 2) == [4.0, 4.0]


def limits() -> list[str]:
    group: Any = dist.group.WORLD
    found = []
    group.set_timeout(float("inf"))
    for limit in (None, 0, timedelta(0), 5, float("inf"), timedelta.max):
        dist.all_reduce(torch.ones(1), async_op=True).wait(limit)
    for limit in (None, 0, timedelta(0), -1, timedelta(seconds=-1), float("nan"), True):
        with pytest.raises((TypeError, ValueError), match="timeout") as caught:
            group.set_timeout(limit)
        found.append(caught.type.__name__)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(ValueError, match="timeout"):
        work.wait(-1)
    work.wait()
    with pytest.raises(ValueError, match="timeout"):
        work.wait(-1)  # also when it has ended
    return found


def test_limits_are_numbers_or_timedeltas():
    kinds = [*["ValueError"] * 6, "TypeError"]
    assert ranks.run(limits, 2, timeout=60) == [kinds, kinds]


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [(None, 0.0), (0, 0.0), (2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (float("inf"), threading.TIMEOUT_MAX)],
)
def test_a_limit_in_seconds(limit, seconds):
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize(
    ("limit", "error", "named"),
    [
        ("5", TypeError, "not str"),
        (True, TypeError, "not bool"),
        ([1], TypeError, "not list"),
        (-1, ValueError, "-1"),
        (timedelta(seconds=-1), ValueError, "-1 day"),
        (float("nan"), ValueError, "nan"),
    ],
)
def test_what_is_no_limit_is_refused(limit, error, named):
    with pytest.raises(error, match=named):
        seconds_of(limit)


class Late:
    """A call whose end this rank notices later than the other one."""

    def __init__(self, call: Any) -> None:
        self._call, self._from, self.origin = call, time.monotonic() + 0.5, call.origin

    def wait(self, timeout: float | None) -> None:
        if time.monotonic() < self._from:
            time.sleep(0.01)
            raise CollectiveTimeoutError(Result.TIMED_OUT, "all_reduce", "it is late")
        self._call.wait(timeout)

    def done(self) -> bool:
        return time.monotonic() >= self._from and self._call.done()


def callbacks_that_wait() -> list[float]:
    """As those of PowerSGD: each waits for a call that it makes, and the calls of two buckets end in any order."""

    def again(done: Any) -> torch.Tensor:
        dist.all_reduce(torch.ones(2), async_op=True)  # dropped
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    begun = [dist.all_reduce(torch.full((3,), number), async_op=True) for number in (1.0, 2.0)]
    if dist.get_rank() == 0:
        begun[0]._calls = [Late(call) for call in begun[0]._calls]
    ends = [work.get_future().then(again) for work in begun]
    return [end.wait().unique().item() for end in ends]


def test_callbacks_run_in_the_order_of_the_calls():
    assert ranks.run(callbacks_that_wait, 2, timeout=10) == [[4.0, 8.0]] * 2


def ends_in_the_thread() -> None:
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    time.sleep(0.2 * dist.get_rank())  # so that the first one's call has not ended when its future is asked for
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    del tensor
    while gone() is not None:
        time.sleep(0.001)


def test_the_tensors_of_the_last_future_are_free_at_its_end():
    ranks.run(ends_in_the_thread, 2, timeout=10)
