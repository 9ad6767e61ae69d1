"""Whose sums are rescaled after a loss: those of what torch ships that divides by the size of the group first."""

from __future__ import annotations

import ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

import pccl.distributed

assert pccl.distributed


def averaged_parameters() -> object:
    rank = dist.get_rank()
    if rank == 1:
        ranks.die()
    parameter = torch.nn.Parameter(torch.full((5,), 1.0 + rank))
    found = []
    for _ in range(2):
        parameter.data.fill_(1.0 + rank)
        average_parameters(iter([parameter]), dist.group.WORLD)
        found.append(parameter.unique().tolist())
    own = torch.full((5,), 1.0 + rank)
    dist.all_reduce(own)
    return found, own.unique().tolist()


def test_model_averaging_is_over_those_that_contributed() -> None:
    results = ranks.run(averaged_parameters, 3, dead=(1,))
    assert results == [([[2.0], [2.0]], [4.0]), None, ([[2.0], [2.0]], [4.0])]
