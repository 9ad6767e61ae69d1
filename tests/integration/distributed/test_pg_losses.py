"""What a death does to a process group: who goes on, with which numbers, and what ends with which error."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed

STRICT = {"PCCL_STRICT": "1"}


def numbers() -> tuple[int, int, list[int]]:
    return dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(dist.group.WORLD)


def reduce_after_death(victim: int) -> object:
    rank = dist.get_rank()
    if rank == victim:
        ranks.die()
    tensor = torch.full((1000,), 1.0 + rank)
    dist.all_reduce(tensor)
    after = numbers()
    average = torch.full((3,), 10.0 * after[0])
    dist.all_reduce(average, dist.ReduceOp.AVG)
    dist.barrier()
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, rank)
    return tensor.unique().tolist(), after, average.tolist(), gathered


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_reductions_go_on_among_the_survivors(victim: int) -> None:
    results = ranks.run(reduce_after_death, 3, victim, dead=(victim,))
    left = [rank for rank in range(3) if rank != victim]
    for place, rank in enumerate(left):
        assert results[rank] == ([2.0 + sum(left)], (place, 2, [0, 1]), [5.0] * 3, left)


def last_one() -> object:
    if dist.get_rank() == 0:
        ranks.die()
    tensor = torch.full((4,), 3.0)
    dist.all_reduce(tensor)
    after = numbers()
    dist.barrier()
    dist.broadcast(tensor, 0)
    outputs = [torch.zeros(4)]
    dist.all_gather(outputs, tensor)
    return tensor.tolist(), after, outputs[0].tolist()


def test_the_last_one_goes_on_alone() -> None:
    assert ranks.run(last_one, 2, dead=(0,))[1] == ([3.0] * 4, (0, 1, [0]), [3.0] * 4)


def sharded_after_death() -> object:
    rank = dist.get_rank()
    if rank == 1:
        ranks.die()
    output = torch.zeros(6)
    try:
        dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    except pccl.distributed.PeerLostError as error:
        found = error.ranks, isinstance(error, dist.DistBackendError), str(error)
    after = numbers()
    output = torch.zeros(4)
    dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    return found, after, output.tolist()


def test_what_carries_shards_ends_with_an_error_that_names_the_lost() -> None:
    results = ranks.run(sharded_after_death, 3, dead=(1,))
    for place, rank in enumerate((0, 2)):
        (lost, torch_error, text), after, output = results[rank]
        assert (lost, torch_error) == ((1,), True)
        assert "all_gather_into_tensor" in text
        assert "1" in text
        assert (after, output) == ((place, 2, [0, 1]), [0.0, 0.0, 2.0, 2.0])


def broadcast_of_dead(root: int, count: int) -> object:
    rank = dist.get_rank()
    tensor = torch.full((count,), float(rank))
    if rank == root:
        ranks.die()
    try:
        dist.broadcast(tensor, root)
    except pccl.distributed.PeerLostError as error:
        assert dist.get_world_size() == 2
        return error.ranks
    return tensor.unique().tolist()


@pytest.mark.parametrize("count", [3, 200_000])
def test_a_broadcast_from_rank_0_is_made_again_from_the_next(count: int) -> None:
    assert ranks.run(broadcast_of_dead, 3, 0, count, dead=(0,)) == [None, [1.0], [1.0]]


def test_a_broadcast_from_another_dead_rank_is_an_error() -> None:
    assert ranks.run(broadcast_of_dead, 3, 1, 5, dead=(1,)) == [(1,), None, (1,)]


def received_from_dead() -> object:
    if dist.get_rank() == 0:
        ranks.die()
    with pytest.raises(pccl.distributed.PeerLostError):
        dist.recv(torch.zeros(3), 0)
    return True


def test_a_receive_from_a_dead_member_ends() -> None:
    assert ranks.run(received_from_dead, 3, dead=(0,)) == [None, True, True]


def strictly() -> object:
    rank = dist.get_rank()
    if rank == 1:
        ranks.die()
    found = []
    for _ in range(2):
        try:
            dist.all_reduce(torch.ones(10))
        except pccl.distributed.PeerLostError as error:
            found.append(error.ranks)
    return found, numbers()


def test_in_strict_mode_a_loss_is_an_error_of_every_call() -> None:
    results = ranks.run(strictly, 3, environment=STRICT, dead=(1,))
    for rank in (0, 2):
        found, after = results[rank]
        assert [1 in lost for lost in found] == [True, True]  # the other one may have ended meanwhile
        assert after == (rank, 3, [0, 1, 2])


def trained(victim: int, at_step: int, where: str) -> object:
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 300), nn.BatchNorm1d(300), nn.Linear(300, 1)), bucket_cap_mb=0.001)
    if where == "backward" and rank == victim:
        calls: list[int] = []

        def dying(grad: torch.Tensor) -> None:
            calls.append(1)
            if len(calls) > at_step:
                ranks.die()

        net.module[1].weight.register_hook(dying)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for step in range(4):
        if rank == victim and step == at_step and where == "forward":
            ranks.die()
        optimizer.zero_grad()
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        net(data).square().mean().backward()
        optimizer.step()
        gradients.append(net.module[0].weight.grad.clone())
    return [parameter.detach().clone() for parameter in net.module.parameters()], gradients, dist.get_world_size()


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("victim", [0, 2])
def test_ddp_goes_on_with_equal_bits(victim: int, where: str) -> None:
    results = ranks.run(trained, 3, victim, 1, where, dead=(victim,))
    one, other = (results[rank] for rank in range(3) if rank != victim)
    assert one[2] == other[2] == 2
    for mine, theirs in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
        assert torch.equal(mine, theirs)


def averaged(victim: int) -> list[float]:
    """Gradients of which the average over the contributors is known."""
    rank = dist.get_rank()
    layer = nn.Linear(1, 5, bias=False)
    net = DistributedDataParallel(layer)
    found = []
    for step in range(3):
        if rank == victim and step == 1:
            ranks.die()
        net.zero_grad()
        net(torch.full((1, 1), 1.0 + rank)).sum().backward()
        found.append(layer.weight.grad[0, 0].item())
    return found


@pytest.mark.parametrize("victim", [0, 1])
def test_ddp_averages_over_those_that_contributed(victim: int) -> None:
    results = ranks.run(averaged, 3, victim, dead=(victim,))
    left = [1.0 + rank for rank in range(3) if rank != victim]
    for rank in range(3):
        if rank != victim:
            assert results[rank] == pytest.approx([2.0, sum(left) / 2, sum(left) / 2])


def dropped() -> int:
    tensors = [torch.ones(4) for _ in range(6000)]  # more than the core has room for
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    return sum(tensor.tolist() == [2.0] * 4 for tensor in tensors)


def test_calls_that_nobody_waits_for_take_no_room() -> None:
    assert ranks.run(dropped, 2) == [6000, 6000]


class _Twice(torch.autograd.Function):
    """Ends rank 1 between the reduces of two buckets."""

    @staticmethod
    def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        dist.barrier()  # the survivor learns of the loss, and goes on alone
        return gradient


def alone_in_the_middle_of_a_step() -> list[float]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.second(_Twice.apply(self.first(batch)))

    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=1e-5)
    model(torch.ones(1, 4)).sum().backward()
    net.zero_grad()
    loss = model(torch.ones(1, 4)).sum()
    if dist.get_rank() == 1:
        ranks.die()
    loss.backward()
    alone = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    net(torch.ones(1, 4)).sum().backward()
    return [float((one - parameter.grad).abs().max()) for one, parameter in zip(alone, net.parameters(), strict=True)]


def test_what_was_divided_for_two_is_an_average_of_the_one_that_is_left() -> None:
    assert ranks.run(alone_in_the_middle_of_a_step, 2, dead=(1,))[0] == [0.0, 0.0]


def named_loss() -> object:
    rank = dist.get_rank()
    changes: list[pccl.distributed.Change] = []
    pccl.distributed.on_change(changes.append)
    if rank == 1:
        ranks.die()
    try:
        dist.all_gather_into_tensor(torch.zeros(6), torch.full((2,), float(rank)))
    except pccl.distributed.PeerLostError as error:
        [change] = changes
        return error.names, error.reasons, str(error), [change.names[one] for one in change.lost], list(change.names.values())
    raise AssertionError("no error")


def test_a_loss_is_told_by_name() -> None:
    results = ranks.run(named_loss, 3, dead=(1,), environment={"PCCL_PEER_NAME": "host-a"})
    for rank in (0, 2):
        names, reasons, text, lost, all_names = results[rank]
        assert reasons == (pccl.LossReason.DIED,)
        assert names == ("host-a",)
        assert "rank 1 (host-a, " in text
        assert "died" in text
        assert lost == ["host-a"]
        assert all_names == ["host-a"] * 3
