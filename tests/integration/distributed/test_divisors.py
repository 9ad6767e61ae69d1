"""Who divides a sum by a size that it read before a loss gets the average of the survivors, or PeerLostError on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from pccl.distributed import PeerLostError

SITES, SHARDS = 3, 2


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PeerLostError as error:
        return error.ranks


# ---- FSDP2 on two levels: gloo inside a site, pccl between the sites ----


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))


def inputs(rank: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def gradients(at: int, wanted: list[int]) -> list[torch.Tensor]:
    """The average gradients over some ranks of float64, the rows that rank `at` has."""
    found = []
    model = net().double()
    for rank in wanted:
        model.zero_grad()
        model(inputs(rank)).square().mean().backward()
        found.append([cast(Any, parameter.grad).clone() for parameter in model.parameters()])
    rows: list[Any] = [sum(each) / len(wanted) for each in zip(*found, strict=True)]
    return [row.chunk(SHARDS)[at % SHARDS] for row in rows]


def two_levels(dtype: torch.dtype, factor: float | None, forced: bool) -> list[Any]:
    """For each of four steps: whether each layer has the average; the ranks of the site that was lost where it was refused."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    rank = dist.get_rank()
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (SITES, SHARDS), mesh_dim_names=names, backend_override={"replicate": "pccl"})
    model: Any = net().double()
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    for layer in model.modules():
        if isinstance(layer, FSDPModule):
            layer.set_force_sum_reduction_for_comms(forced)
            if factor is not None:
                layer.set_gradient_divide_factor(factor)
    found: list[Any] = []
    for step in range(4):
        if step == 1 and rank // SHARDS == 1:
            ranks.die()
        model.zero_grad()
        left = [0, 1, 4, 5] if step else list(range(SITES * SHARDS))
        try:
            model(inputs(rank)).square().mean().backward()
        except PeerLostError as error:
            found.append(error.ranks)
            break
        for parameter, wanted in zip(model.parameters(), gradients(rank, left), strict=True):
            assert isinstance(parameter.grad, DTensor)
            scale = wanted.abs().max().item()
            close = torch.finfo(dtype).eps * 8 * scale
            assert (parameter.grad.to_local() - wanted).abs().max().item() <= close, (step, parameter.shape)
        found.append("average")
    return found


@pytest.mark.parametrize(
    ("dtype", "factor", "forced"),
    [
        (torch.float64, None, False),
        (torch.float32, None, False),
        (torch.float16, None, False),
        (torch.bfloat16, None, True),
        (torch.float32, None, True),
        (torch.float64, 6.0, False),
        (torch.float16, 6.0, True),
    ],
)
def test_each_layer_of_fsdp2_has_the_average_of_the_sites_that_are_left(
    dtype: torch.dtype, factor: float | None, forced: bool
) -> None:
    found = ranks.run(two_levels, 6, dtype, factor, forced, backend="gloo", dead=(2, 3))
    assert [one for rank, one in enumerate(found) if rank not in (2, 3)] == [["average"] * 4] * 4


def accumulates(dtype: torch.dtype, where: str) -> list[Any]:
    """As `two_levels`, with two microbatches for each sum between the sites; after the loss the step is repeated."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank = dist.get_rank()
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (SITES, SHARDS), mesh_dim_names=names, backend_override={"replicate": "pccl"})
    model: Any = net().double()
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    found: list[Any] = []
    for step in range(3):
        for _ in range(2):
            model.zero_grad()
            try:
                if step == 1 and rank // SHARDS == 1 and where == "before":
                    ranks.die()
                for last in (False, True):
                    model.set_requires_all_reduce(last)
                    model(inputs(rank)).square().mean().backward()
                    if not last and step == 1 and where == "between":
                        if rank // SHARDS == 1:
                            ranks.die()
                        dist.barrier(mesh.get_group("replicate"))
                break
            except PeerLostError as error:
                found.append(error.ranks)
                model.reset_iter_state()
        left = [0, 1, 4, 5] if step else list(range(SITES * SHARDS))
        for parameter, wanted in zip(model.parameters(), gradients(rank, left), strict=True):
            close = torch.finfo(dtype).eps * 16 * wanted.abs().max().item()
            assert (parameter.grad.to_local() - 2 * wanted).abs().max().item() <= close, (step, parameter.shape)
        found.append("average")
    return found


@pytest.mark.parametrize("where", ["before", "between"])
def test_microbatches_that_fsdp2_has_divided_by_an_earlier_size_are_refused(where: str) -> None:
    found = ranks.run(accumulates, 6, torch.float64, where, backend="gloo", dead=(2, 3))
    assert [found[rank] for rank in (0, 1, 4, 5)] == [["average", (1,), "average", "average"]] * 4


def test_averages_of_microbatches_are_right() -> None:
    found = ranks.run(accumulates, 6, torch.float32, "between", backend="gloo", dead=(2, 3))
    assert [found[rank] for rank in (0, 1, 4, 5)] == [["average"] * 3] * 4


def own_factor(factor: float) -> Any:
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (3, 1), mesh_dim_names=names, backend_override={"replicate": "pccl"})
    model: Any = torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)
    fully_shard(model, mesh=mesh)
    model.set_gradient_divide_factor(factor)
    if dist.get_rank() == 1:
        ranks.die()
    found = []
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 4), 1.0 + dist.get_rank(), dtype=torch.float64)).sum().backward()
        found.append(model.weight.grad.to_local().unique().tolist())
    return found


def test_a_factor_that_is_not_the_size_is_refused() -> None:
    assert ranks.run(refused, 3, own_factor, 5.0, backend="gloo", dead=(1,)) == [(1,), None, (1,)]


def refused(call: Callable[..., Any], *arguments: Any) -> Any:
    return outcome(lambda: call(*arguments))


# ---- what else of torch divides ----


def full(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.full((6,), 1.0 + dist.get_rank(), dtype=dtype)


def fsdp1(strategy: str, victims: tuple[int, ...]) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    rank = dist.get_rank()
    group: Any = None
    if strategy == "HYBRID_SHARD":
        sites = [dist.new_group([site, site + 1]) for site in (0, 2, 4)]
        between = [dist.new_group([shard, shard + 2, shard + 4]) for shard in (0, 1)]
        group = (sites[rank // 2], between[rank % 2])
    model: Any = torch.nn.Linear(4, 4, bias=False)
    model = FullyShardedDataParallel(model, group, ShardingStrategy[strategy], device_id=torch.device("cpu"))
    found = []
    for step in range(4):
        if step == 1 and rank in victims:
            ranks.die()
        model.zero_grad()
        model(torch.full((1, 4), 1.0 + rank)).sum().backward()
        found.append([parameter.grad.unique().tolist() for parameter in model.parameters()])
    return found


def test_fsdp1_divides_by_the_members_that_are_left() -> None:
    found = ranks.run(fsdp1, 3, "NO_SHARD", (1,), dead=(1,))
    assert [found[0], found[2]] == [[[[2.0]]] * 4] * 2


def test_fsdp1_divides_by_the_sites_that_are_left() -> None:
    found = ranks.run(fsdp1, 6, "HYBRID_SHARD", (0, 1), dead=(0, 1))
    assert found[2:] == [[[[3.5]], *[[[4.5]]] * 3]] * 4


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_fsdp1_that_shards_is_refused(strategy: str) -> None:
    assert ranks.run(refused, 3, fsdp1, strategy, (1,), dead=(1,)) == [(1,), None, (1,)]


def hooked(name: str) -> list[list[float]]:
    hook = getattr(default_hooks, name)
    rank, dtype = dist.get_rank(), torch.float32 if "compress" in name else torch.float64
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False, dtype=dtype))
    model.register_comm_hook(None, hook)
    found = []
    for step in range(3):
        if step == 1 and rank == 1:
            ranks.die()
        model.zero_grad()
        model(torch.full((1, 4), 1.0 + rank, dtype=dtype)).sum().backward()
        found.append(model.module.weight.grad.unique().tolist())
    return found


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook"])
def test_hooks_of_ddp_average_those_that_are_left(hook: str) -> None:
    average = [pytest.approx([2.0], rel=1e-2)] * 3
    assert ranks.run(hooked, 3, hook, dead=(1,)) == [average, None, average]


def of_dtensor(kind: str) -> Any:
    mesh = init_device_mesh("cpu", (3,))
    part = DTensor.from_local(full(), mesh, [Partial(kind)])
    if dist.get_rank() == 1:
        ranks.die()
    whole: Any = part.redistribute(mesh, [Replicate()]).to_local()
    return [float(value) for value in whole.unique()]


def test_dtensor_averages_and_refuses_sums_that_lack_a_part() -> None:
    assert ranks.run(refused, 3, of_dtensor, "avg", dead=(1,)) == [[2.0], None, [2.0]]
    assert ranks.run(refused, 3, of_dtensor, "sum", dead=(1,)) == [(1,), None, (1,)]


# ---- sums of the program ----


def asks_first(tensor: Any) -> Any:
    size = dist.get_world_size()
    dist.all_reduce(tensor)
    return tensor / size


def divides_first(tensor: Any) -> Any:
    tensor /= dist.get_world_size()
    dist.all_reduce(tensor)
    return tensor


def asks_only_on_rank_0(tensor: Any) -> Any:
    size = dist.get_world_size() if dist.get_rank() == 0 else 3
    dist.all_reduce(tensor, async_op=True).wait()
    return tensor / size


def reduces(tensor: Any) -> Any:
    size = dist.get_world_size()
    dist.reduce(tensor, 0)
    return tensor / size if dist.get_rank() == 0 else torch.full((6,), 2.0)


def loses_in_between(tensor: Any) -> Any:
    size = dist.get_world_size()
    dist.barrier()
    dist.all_reduce(tensor)
    return tensor / size


def functionally(tensor: Any) -> Any:
    size = dist.get_world_size()
    return cast(Any, functional_collectives).all_reduce(tensor, "sum", dist.group.WORLD) / size


def by_autograd(tensor: Any) -> Any:
    size = dist.get_world_size()
    return cast(Any, dist.nn.functional).all_reduce(tensor) / size


def in_a_loop(function: Callable[[Any], Any], victim: int) -> Any:
    """What four steps return, and what the tensor holds after an error."""
    found: list[Any] = []
    for step in range(4):
        own = dist.get_rank()
        if step == 1 and own == victim and len(found) == 1 and dist.get_world_size() == 3:
            ranks.die()
        tensor = torch.full((6,), [1.0, 3.0, 7.0][own] if step == 0 else 2.0 + 2.0 * own, dtype=torch.float64)
        before = tensor.clone()
        try:
            found.append(function(tensor).unique().tolist())
        except PeerLostError as error:
            kept = function is divides_first or torch.equal(tensor, before)
            found.append((error.ranks, kept, "ask" in str(error)))
    return found


def size_of_all() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def total(tensor: Any) -> Any:
    dist.all_reduce(tensor)
    return tensor


def asks_by_a_helper(tensor: Any) -> Any:
    size = size_of_all()
    if size < 2:
        return tensor
    dist.all_reduce(tensor)
    return tensor / size


def reduced(tensor: Any, size: int) -> Any:
    if size_of_all() > 1:
        dist.all_reduce(tensor)
    return tensor / size


def hands_the_size_over(tensor: Any) -> Any:
    return reduced(tensor, dist.get_world_size())


def divides_the_total(tensor: Any) -> Any:
    size = dist.get_world_size()
    return total(tensor) / size


def totals_what_it_has_divided(tensor: Any) -> Any:
    return total(tensor.clone() / dist.get_world_size())


class Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = dist.get_world_size()

    def forward(self, tensor: Any) -> Any:
        dist.all_reduce(tensor)
        return tensor / self.size


def keeps_the_size(tensor: Any) -> Any:
    return Mean()(tensor)


def by_inner_functions(tensor: Any) -> Any:
    def ask() -> int:
        return dist.get_world_size()

    size = ask()
    (lambda: dist.all_reduce(tensor))()
    return tensor / size


def coalesced(tensor: Any) -> Any:
    size = dist.get_world_size()
    cast(Any, dist).all_reduce_coalesced([tensor])
    return tensor / size


def in_a_callback(tensor: Any) -> Any:
    size = dist.get_world_size()
    work: Any = dist.all_reduce(tensor, async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / size).wait()


FIRST: list[Callable[[Any], Any]] = [asks_first, divides_first, loses_in_between, functionally, by_autograd]
FIRST += [asks_by_a_helper, hands_the_size_over, divides_the_total, totals_what_it_has_divided, keeps_the_size]
FIRST += [by_inner_functions, coalesced, in_a_callback]


@pytest.mark.parametrize("function", FIRST)
def test_who_asks_for_the_size_first_gets_an_error_once(function: Callable[[Any], Any]) -> None:
    found = ranks.run(in_a_loop, 3, function, 1, dead=(1,))
    assert [found[0], found[2]] == [[pytest.approx([11.0 / 3]), ((1,), True, True), [3.0], [3.0]]] * 2


def test_all_ranks_get_the_error_if_one_has_asked() -> None:
    found = ranks.run(in_a_loop, 3, asks_only_on_rank_0, 1, dead=(1,))
    assert [found[0][1][0], found[2][1][0]] == [(1,)] * 2


def test_a_reduce_to_a_rank_that_has_asked_first_is_refused() -> None:
    found = ranks.run(in_a_loop, 3, reduces, 1, dead=(1,))
    assert found[0][1:] == [((1,), True, True), [3.0], [3.0]]
    assert found[2][1][0] == (1,)


def asks_afterwards(tensor: Any) -> Any:
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


def only_compares(tensor: Any) -> Any:
    if dist.get_world_size() > 1:
        dist.all_reduce(tensor)
    return tensor / 2


def counts(tensor: Any) -> Any:
    dist.get_world_size()
    tensor = tensor.long()
    dist.all_reduce(tensor)
    return tensor / 2


def asks_a_helper_afterwards(tensor: Any) -> Any:
    dist.all_reduce(tensor)
    return tensor / size_of_all()


def divides_the_total_afterwards(tensor: Any) -> Any:
    return total(tensor) / size_of_all()


def sums_twice(tensor: Any) -> Any:
    """The second sum comes after a question of the first one, which is no business of this function."""
    divides_the_total_afterwards(tensor.clone())
    asks_a_helper_afterwards(tensor.clone())
    dist.all_reduce(tensor.clone())
    return asks_a_helper_afterwards(tensor)


def only_compares_by_a_helper(tensor: Any) -> Any:
    if size_of_all() > 1:
        dist.all_reduce(tensor)
    return tensor / 2


AFTERWARDS: list[Callable[[Any], Any]] = [asks_afterwards, only_compares, counts, asks_a_helper_afterwards]
AFTERWARDS += [divides_the_total_afterwards, sums_twice, only_compares_by_a_helper]


@pytest.mark.parametrize("function", AFTERWARDS)
def test_other_sums_go_on(function: Callable[[Any], Any]) -> None:
    found = ranks.run(in_a_loop, 3, function, 1, dead=(1,))
    assert [found[0][1:], found[2][1:]] == [[[4.0], [3.0], [3.0]]] * 2


def asks_alone() -> Any:
    if dist.get_rank() == 0:
        ranks.die()
    found: list[Any] = []
    for _ in range(2):
        found.append(outcome(lambda: loses_in_between(full()).unique().tolist()))
    return found


def test_the_last_one_is_told_too() -> None:
    assert ranks.run(asks_alone, 2, dead=(0,))[1] == [(0,), [1.0]]


def in_another_order() -> Any:
    rank = dist.get_rank()
    if rank == 1:
        ranks.die()
    dist.get_world_size()
    tensors = [full() for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    order = (0, 1, 2) if rank == 0 else (2, 1, 0)
    found = {place: outcome(works[place].wait) for place in order}
    dist.barrier()
    return [found[place] for place in range(3)]


def test_sums_may_be_awaited_in_any_order() -> None:
    assert ranks.run(in_another_order, 3, dead=(1,)) == [[(1,), True, True], None, [(1,), True, True]]


def test_fixed_membership_is_right_for_who_asks_first() -> None:
    fixed = {"PCCL_MEMBERSHIP": "fixed"}
    found = ranks.run(in_a_loop, 3, asks_first, 1, dead=(1,), environment=fixed)
    assert found[0][1:] == [[4.0]] * 3
