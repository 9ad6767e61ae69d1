"""torch's context for uneven inputs, `join`: the results of gloo in all its forms, also where a rank dies."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(options: dict[str, bool], zero: bool = False, dies: int = -1) -> list[list[float]]:
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model.module.weight.fill_(1)
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1) if zero else torch.optim.SGD(model.parameters(), 0.1)
    )
    inputs = [torch.full((1, 3), float(step + rank)) for step in range(2 + rank)]
    with Join([model, optimizer], **options) if zero else model.join(**options):
        for x in inputs:
            optimizer.zero_grad()
            model(x).sum().backward()
            if rank == dies:
                ranks.die()
            optimizer.step()
    return model.module.weight.tolist()


CASES = [(1, False, True), (2, False, False), (2, False, True), (2, True, False), (2, True, True), (3, True, True)]


@pytest.mark.parametrize(("size", "initial", "zero"), CASES)
def test_uneven_inputs_end_as_with_gloo(size, initial, zero):
    options = {"divide_by_initial_world_size": initial}
    found = [ranks.run(train, size, options, zero, backend=backend) for backend in ("pccl", "gloo")]
    assert torch.allclose(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-6)


@pytest.mark.parametrize("initial", [False, True])
def test_uneven_inputs_go_on_after_a_death(initial):
    found = ranks.run(train, 3, {"divide_by_initial_world_size": initial}, False, 1, dead=(1,))
    assert found[0] == found[2]
