"""torch.compile around the process group: the results of gloo, and of uncompiled code."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def ddp(backend: str, norm: bool, options: dict[str, bool]) -> list[float]:
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 1))
    model = torch.compile(DistributedDataParallel(net, **options), backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(parameter.sum().item() for parameter in net.parameters())]


@pytest.mark.parametrize(
    ("backend", "norm", "options"),
    [
        ("eager", False, {}),
        ("eager", True, {}),
        ("aot_eager", True, {"static_graph": True}),
        ("eager", False, {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
    ],
)
def test_a_compiled_ddp_has_the_losses_of_gloo(backend, norm, options):
    found = [ranks.run(ddp, 2, backend, norm, options, backend=group) for group in ("pccl", "gloo")]
    assert found[0] == found[1]


def broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.broadcast(y, 0)
    return y + 1


def asynchronous(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    dist.barrier()
    return torch.stack(parts).sum(0)


def batch(x: torch.Tensor) -> torch.Tensor:
    other = 1 - dist.get_rank()
    y = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]):
        work.wait()
    return y * 2


def traced(x: torch.Tensor) -> torch.Tensor:
    y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    return y + functional.all_gather_tensor(x, 0, dist.group.WORLD).sum()


def compiled(function, fullgraph: bool) -> tuple[list[float], list[float]]:
    x = torch.arange(4.0) + dist.get_rank()
    plain = function(x.clone())
    made = torch.compile(function, backend="eager", fullgraph=fullgraph)
    made(x.clone())
    return made(x.clone()).tolist(), plain.tolist()


@pytest.mark.parametrize(
    ("function", "fullgraph"), [(broadcast, False), (asynchronous, False), (gather, False), (batch, False), (traced, True)]
)
def test_compiled_functions_make_collectives(function, fullgraph):
    for made, plain in ranks.run(compiled, 2, function, fullgraph):
        assert made == plain


def python_reducer() -> str:
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = "python_reducer"
    model = torch.compile(DistributedDataParallel(nn.Linear(4, 1)), backend="eager")
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss = model(torch.ones(2, 4)).sum()
        with pytest.raises(RuntimeError, match=r'optimize_ddp is .python_reducer.*set it to "ddp_optimizer"'):
            loss.backward()
    return "refused"


def test_the_reducer_in_python_is_refused():
    assert ranks.run(python_reducer, 2) == ["refused"] * 2
