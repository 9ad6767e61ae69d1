"""DistributedDataParallel on the process group: gradients are those of the whole batch in one process, in every way to use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
ROWS = 4


class Net(nn.Module):
    """Layers of several sizes, one of which some steps leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.branch = nn.Linear(64, 64)
        self.last = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = torch.relu(self.first(x))
        if branch:
            x = self.branch(x)
        result: torch.Tensor = self.last(x)
        return result


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def reference(size: int, branches: Callable[[int], bool], optimizer: Any = torch.optim.SGD) -> list[torch.Tensor]:
    """The parameters after the steps, when one process has all batches."""
    torch.manual_seed(1)
    net = Net()
    optimizer = optimizer(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        whole = torch.cat([batch(step, rank) for rank in range(size)])
        net(whole, branches(step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def trained(way: str) -> list[torch.Tensor]:
    torch.manual_seed(1 + dist.get_rank())  # DDP brings the parameters of rank 0 to all
    if dist.get_rank() == 0:
        torch.manual_seed(1)
    ways: dict[str, dict[str, Any]] = {
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
        "small buckets": {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True},
    }
    net = DistributedDataParallel(Net(), **ways.get(way, {}))
    if way == "hook":
        net.register_comm_hook(None, default_hooks.allreduce_hook)
    if way == "fp16 hook":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if way == "fp16 wrapper":
        net.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    if way == "built-in fp16":
        net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    if way == "built-in":
        net._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    if way == "zero":
        optimizer: Any = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        own = batch(step, dist.get_rank())
        if way == "no_sync":
            with net.no_sync():
                (net(own[: ROWS // 2]).square().mean() / 2).backward()
            (net(own[ROWS // 2 :]).square().mean() / 2).backward()
        else:
            net(own, branches(way)(step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def branches(way: str) -> Callable[[int], bool]:
    return (lambda step: step % 2 == 0) if way == "unused" else (lambda step: True)


WAYS = ["plain", "static", "unused", "small buckets", "no_sync", "hook"]
WAYS += ["fp16 hook", "fp16 wrapper", "built-in", "built-in fp16", "zero"]


def every_way() -> list[list[torch.Tensor]]:
    return [trained(way) for way in WAYS]


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_are_those_of_the_whole_batch(size: int) -> None:
    results = ranks.run(every_way, size)
    for number, way in enumerate(WAYS):
        optimizer = torch.optim.Adam if way == "zero" else torch.optim.SGD
        expected = reference(size, branches(way), optimizer)
        rough = {"rtol": 0.05, "atol": 0.01} if "16" in way else {"rtol": 1e-4, "atol": 1e-5}
        for rank, result in enumerate(results):
            for parameter, other, first in zip(result[number], expected, results[0][number], strict=True):
                torch.testing.assert_close(parameter, other, **rough, msg=lambda text, way=way: f"{way}: {text}")
                assert torch.equal(parameter, first), f"{way}: rank {rank} has other bits than rank 0"


def with_power_sgd() -> torch.Tensor:
    net = DistributedDataParallel(nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(4):
        net(torch.randn(ROWS, 64, generator=torch.Generator().manual_seed(step + dist.get_rank()))).square().mean().backward()
    return net.module.weight.grad.clone()


def test_a_hook_that_waits_for_futures_inside_of_futures() -> None:
    one, other = ranks.run(with_power_sgd, 2)
    assert torch.equal(one, other)


def with_calls_in_callbacks() -> list[torch.Tensor]:
    """A callback runs where the call is waited for, or at once if it has ended: earlier on one rank than on another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ends = []
    for number in range(60):
        first = dist.all_reduce(torch.full((100,), float(number)), async_op=True).get_future()
        if (number + rank) % 3 == 0:
            first.wait()

        def again(done: Any, number: int = number) -> torch.Tensor:
            (summed,) = done.value()
            return dist.all_reduce(summed + number * 1000, async_op=True).get_future().wait()[0]

        ends.append(first.then(again).then(lambda done: done.value() * 2))
    return [end.wait() - 2 * size * (size * number + number * 1000) for number, end in enumerate(ends)]


def test_calls_in_callbacks_meet_those_of_the_same_callback() -> None:
    for rests in ranks.run(with_calls_in_callbacks, 3):
        assert all(not rest.any() for rest in rests)


def with_batch_norm() -> list[torch.Tensor]:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    for step in range(STEPS):
        net(batch(step, dist.get_rank())).square().mean().backward()
    net(batch(0, 0))
    return [buffer.clone() for buffer in net.buffers()]


def test_buffers_are_those_of_rank_0() -> None:
    one, other = ranks.run(with_batch_norm, 2)
    for buffer, twin in zip(one, other, strict=True):
        torch.testing.assert_close(buffer, twin)


def with_embedding() -> torch.Tensor:
    net = DistributedDataParallel(nn.EmbeddingBag(10, 3, sparse=True))
    net(torch.tensor([[1, 2], [3, dist.get_rank() + 4]])).sum().backward()
    return net.module.weight.grad.to_dense()


def test_sparse_gradients() -> None:
    one, other = ranks.run(with_embedding, 2)
    assert torch.equal(one, other)
    assert one[:, 0].tolist() == [0, 0.5, 0.5, 0.5, 0.25, 0.25, 0, 0, 0, 0]


def uneven() -> list[torch.Tensor]:
    net = DistributedDataParallel(nn.Linear(8, 1))
    with net.join():
        for step in range(2 + dist.get_rank()):
            net(batch(step, dist.get_rank())).sum().backward()
    return [parameter.detach().clone() for parameter in net.parameters()]


def test_join_of_ranks_with_uneven_inputs() -> None:
    one, other = ranks.run(uneven, 2)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def backward_of_a_sum_that_fails(way: str) -> bool:
    net = DistributedDataParallel(torch.nn.Linear(200, 2), bucket_cap_mb=0.001)
    if way == "hook":
        net.register_comm_hook(None, default_hooks.allreduce_hook)
    if way == "fp16 hook":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if way == "built-in fp16":
        net._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    for _ in range(2):  # the second forward makes the buckets anew
        net(torch.ones(1, 200)).sum().backward()
    tensors = [torch.ones(7), torch.ones(7)]
    fails = (lambda: dist.all_gather(tensors, torch.ones(7))) if dist.get_rank() == 1 else net(torch.ones(1, 200)).sum().backward
    with pytest.raises(RuntimeError, match="all-gather"):
        fails()
    return True


@pytest.mark.parametrize("way", ["reducer", "hook", "fp16 hook", "built-in fp16"])
def test_a_backward_raises_what_its_sum_ended_with(way: str) -> None:
    """torch reads the future of the sum in C++, where the exception of a Python future looks like a value."""
    assert ranks.run(backward_of_a_sum_that_fails, 2, way) == [True, True]
