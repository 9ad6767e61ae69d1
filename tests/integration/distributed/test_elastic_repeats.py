"""A sync of Elastic that timed out, since a member came late, is repeated."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from performers import PATIENCE
from torch import nn
from torch.distributed.fsdp import fully_shard

from pccl import PCCLTimeoutError
from pccl.data import ElasticSampler
from pccl.distributed import Elastic

SIZE = 40

SHORT = 0.3


def sync(run: Elastic, late: Path) -> int:
    """Syncs; at rank 1 only when rank 0 has timed out twice, also at once. Returns how often this rank has."""
    if dist.get_rank() == 1:
        while not late.exists():
            time.sleep(SHORT / 10)
    for cut in itertools.count():
        if cut == 2:
            late.touch()
        try:
            assert run.sync((SHORT, 0)[cut] if cut < 2 and dist.get_rank() == 0 else PATIENCE) is False
        except PCCLTimeoutError:
            continue
        return cut
    raise AssertionError


def trained(kind: str, folder: Path) -> tuple[list[int], list[int]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    if kind == "sharded":
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = ElasticSampler(range(SIZE), shuffle=False)
    values: dict[str, Any] = {"sampler": sampler} if kind == "data" else {}
    run = Elastic(model, optimizer, parity_every=1 if kind == "parity" else None, **values)
    run.sync()
    cuts, left = [], []
    indices = iter(sampler)
    for number in range(3):
        for _ in range(4):
            next(indices)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        cuts.append(sync(run, folder / str(number)))
        left.append(sampler.remaining)
    dist.barrier()
    return cuts, left


@pytest.mark.parametrize("kind", ["plain", "parity", "data", "sharded"])
def test_a_sync_waits_on_for_a_late_member(kind, tmp_path):
    for rank, (cuts, left) in enumerate(ranks.run(trained, 2, kind, tmp_path)):
        assert cuts == ([2] * 3 if rank == 0 else [0] * 3)
        assert left == ([32, 24, 16] if kind == "data" else [SIZE] * 3)
