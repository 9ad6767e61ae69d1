"""When a loss is seen, and calls whose members wait for them in other orders, with timeouts, or not at all."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

import pccl.distributed
from pccl.distributed import _calls


def group_of_all() -> Any:
    return dist.group.WORLD


def reduced_with_other_divisors() -> float:
    """As if one rank had heard of a loss before it divided its gradient, and the other one had not."""
    rank = dist.get_rank()
    if rank == 2:
        ranks.die()
    divisor = (3, 2)[rank]
    gradient = torch.full((5,), (12.0, 24.0)[rank] / divisor)
    (call,) = group_of_all()._all_reduce([gradient], None, divisor)
    call.wait(None)
    return gradient[0].item()


def test_ranks_that_divided_by_different_sizes_have_the_same_average() -> None:
    assert ranks.run(reduced_with_other_divisors, 3, dead=(2,))[:2] == [pytest.approx(18.0)] * 2


def heard_in_a_future() -> tuple[int, int, int, list[int]]:
    if dist.get_rank() == 2:
        ranks.die()
    group = group_of_all()
    within: list[int] = []

    def first(gradient: torch.Tensor) -> None:
        within.extend((group.getSize(), group.size()))
        dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        within.extend((group.getSize(), group.size()))

    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(first)
    leaf.sum().backward()
    in_view = group._launcher.view.size
    return in_view, dist.get_world_size(), group.getSize(), within


def test_a_loss_heard_by_the_thread_of_futures_is_seen_after_the_backward_pass() -> None:
    assert ranks.run(heard_in_a_future, 3, dead=(2,))[:2] == [(3, 2, 2, [3, 3, 3, 3])] * 2


def dropped_then_awaited() -> tuple[int, int]:
    if dist.get_rank() == 2:
        ranks.die()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        pass
    del work
    before = dist.get_world_size()
    dist.barrier()
    return before, dist.get_world_size()


def test_a_loss_in_a_dropped_call_is_seen_at_the_next_one_that_is_awaited() -> None:
    assert ranks.run(dropped_then_awaited, 3, dead=(2,))[:2] == [(3, 2)] * 2


def polled(dead: bool) -> list[float]:
    if dead and dist.get_rank() == 0:
        ranks.die()
    tensor = torch.full((2,), float(dist.get_rank()))
    work = dist.broadcast(tensor, 0, async_op=True)
    while not work.is_completed():
        pass
    work.wait()
    return tensor.tolist()


def test_a_broadcast_ends_for_who_only_asks() -> None:
    assert ranks.run(polled, 2, False) == [[0.0, 0.0]] * 2


def test_a_broadcast_from_a_dead_rank_0_ends_for_who_only_asks() -> None:
    assert ranks.run(polled, 3, True, dead=(0,))[1:] == [[1.0, 1.0]] * 2


def begin(kind: str) -> Any:
    mine = torch.full((2,), float(dist.get_rank()))
    if kind == "broadcast":
        return dist.broadcast(mine, 0, async_op=True), mine
    return dist.all_gather([torch.zeros(2) for _ in range(3)], mine, async_op=True), mine


def ended(work: Any, tensor: torch.Tensor) -> object:
    try:
        work.wait()
    except pccl.distributed.PeerLostError as error:
        return error.ranks
    return tensor.tolist()


def in_other_orders(kind: str) -> object:
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    begun = [begin(kind) for _ in range(3)]
    found = [ended(*each) for each in (begun if rank == 1 else reversed(begun))]
    dist.barrier()
    return found, dist.get_world_size(), len(_calls._unfinished)


@pytest.mark.parametrize(("kind", "result"), [("broadcast", [1.0, 1.0]), ("all_gather", (0,))])
def test_calls_cut_short_by_a_loss_may_be_awaited_in_any_order(kind: str, result: object) -> None:
    assert ranks.run(in_other_orders, 3, kind, dead=(0,))[1:] == [([result] * 3, 2, 0)] * 2


def with_timeouts(kind: str) -> object:
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    work, tensor = begin(kind)
    while rank == 1 and not work._ended:
        with contextlib.suppress(pccl.distributed.CollectiveTimeoutError):
            work.complete(0.0)
    found = ended(work, tensor)
    dist.barrier()
    return found


@pytest.mark.parametrize(("kind", "result"), [("broadcast", [1.0, 1.0]), ("all_gather", (0,))])
def test_what_follows_a_loss_may_time_out_and_be_awaited_again(kind: str, result: object) -> None:
    assert ranks.run(with_timeouts, 3, kind, dead=(0,))[1:] == [result] * 2


def coalesced_after_death() -> object:
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(3)]
    work = group_of_all().allgather_coalesced(outputs, [torch.ones(2), torch.ones(3)])
    with pytest.raises(pccl.distributed.PeerLostError):
        work.wait()
    return len(_calls._unfinished)


def test_all_parts_of_a_call_are_awaited_though_the_first_ends_with_an_error() -> None:
    assert ranks.run(coalesced_after_death, 3, dead=(0,))[1:] == [0, 0]


def refused_on_one() -> list[float]:
    size = 3 if dist.get_rank() == 0 else 2  # of the second input; the output at rank 0 does not fit
    outputs = [[torch.zeros(2), torch.zeros(2)] for _ in range(2)]
    with pytest.raises((ValueError, dist.DistBackendError)):
        group_of_all().allgather_coalesced(outputs, [torch.ones(2), torch.ones(size)]).wait()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor.tolist()


def test_a_refused_call_of_several_parts_leaves_the_numbers_of_calls_equal() -> None:
    assert ranks.run(refused_on_one, 2) == [[2.0] * 4] * 2


def futures_at_shutdown() -> bool:
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
        with pytest.raises(pccl.distributed.PeerLostError):
            dist.recv(torch.zeros(1), 0)
        return True
    group = group_of_all()
    begun = [dist.barrier(async_op=True) for _ in range(2)]
    before = begun[0].get_future()
    dist.send(torch.zeros(1), 1)
    group.shutdown()
    for future in (before, begun[1].get_future()):
        with pytest.raises(RuntimeError):
            future.wait()
    return group._completer._thread is None


def test_futures_end_with_the_group() -> None:
    assert ranks.run(futures_at_shutdown, 2) == [True, True]


def futures_after_an_agreement_in_vain() -> object:
    """Rank 0 is lost in calls that rank 2 never makes, so that rank 1 waits for an agreement with it, and gives up."""
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
        ranks.die()
    if rank == 2:
        with pytest.raises(RuntimeError):
            dist.recv(torch.zeros(1), 1)
        return True
    group = group_of_all()
    works = [begin("broadcast")[0] for _ in range(3)]
    futures = [work.get_future() for work in works]
    dist.send(torch.zeros(1), 0)
    while any(work._calls[0]._agreement is None for work in works):
        assert not any(work.is_completed() for work in works)
    group.shutdown()
    for future in futures:
        with pytest.raises(RuntimeError):
            future.wait()
    return True


def test_futures_end_though_their_agreement_does_not() -> None:
    assert ranks.run(futures_after_an_agreement_in_vain, 3, dead=(0,))[1:] == [True, True]


def lost_twice(call: str) -> object:
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    dist.barrier()  # those that are left close up: rank 2 is 1
    if rank == 2:
        ranks.die()
    with pytest.raises(pccl.distributed.PeerLostError) as caught:
        getattr(dist, call)(torch.zeros(1), 1)
    return caught.value.ranks


@pytest.mark.parametrize("call", ["recv", "broadcast"])
def test_errors_name_the_ranks_at_the_call(call: str) -> None:
    assert ranks.run(lost_twice, 3, call, dead=(0, 2))[1] == (1,)


def replace_while_reduced() -> list[float]:
    """The memory that the reduce reads and writes must not become another tensor's."""
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.full((2_000_000,), 1.0 + dist.get_rank())
    if dist.get_rank() == 1:
        store.wait(["replaced"])
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 0:
        tensor.data = torch.zeros(3)
    others = [torch.full((2_000_000,), 7.0) for _ in range(4)]
    store.set("replaced", "")
    work.wait()
    return [float(one.min()) for one in others] + [float(one.max()) for one in others] + tensor.unique().tolist()


def test_a_tensor_that_is_replaced_while_it_is_reduced() -> None:
    results = ranks.run(replace_while_reduced, 2)
    assert results == [[7.0] * 8 + [0.0], [7.0] * 8 + [3.0]]
