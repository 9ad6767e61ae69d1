"""DDP whose ranks are killed at random moments: equal bits at the survivors, and averages over those that contributed."""

from __future__ import annotations

import random
import threading
import time

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1_500_000


class Known(nn.Module):
    """A model whose gradients are the numbers of its rank, and which has a buffer that rank 0 sends in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.zeros(100))
        self.large = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("seen", torch.zeros(70_000))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.small.sum() + self.large.sum()) * factor


def killed(seed: int, victims: list[int]) -> list[tuple[torch.Tensor, int]]:
    rank = dist.get_rank()
    net = DistributedDataParallel(Known(), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    dist.barrier()
    if rank in victims:
        delay = random.Random(seed + 100 * rank).uniform(0.0, 0.3)
        threading.Timer(delay, ranks.die).start()
    end = time.monotonic() + 60
    found, alone_since = [], 0
    while alone_since < 3 and time.monotonic() < end:
        optimizer.zero_grad()
        net(float(1 + rank)).backward()
        optimizer.step()
        grads = torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()])
        found.append((torch.unique_consecutive(grads), dist.get_world_size()))
        alone_since += dist.get_world_size() == 4 - len(victims)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victims", [[0], [3], [0, 2]])
def test_survivors_have_the_same_right_averages(seed: int, victims: list[int]) -> None:
    results = ranks.run(killed, 4, seed, victims, dead=tuple(victims))
    living = [rank for rank in range(4) if rank not in victims]
    first = results[living[0]]
    assert first[-1][1] == len(living)
    everybody, survivors = sum(range(1, 5)) / 4, sum(1 + rank for rank in living) / len(living)
    allowed = {everybody, survivors}
    for lost in victims:
        left = [1 + rank for rank in range(4) if rank != lost]
        allowed.add(sum(left) / len(left))
    for rank in living:
        assert len(results[rank]) == len(first)
        for (values, size), (others, other_size) in zip(results[rank], first, strict=True):
            assert torch.equal(values, others)
            assert size == other_size
            for value in values.tolist():
                assert min(abs(value - average) for average in allowed) < 1e-5, f"{value} is none of {sorted(allowed)}"
    assert all(abs(value - survivors) < 1e-5 for value in first[-1][0].tolist())
