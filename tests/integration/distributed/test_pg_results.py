"""What each collective results in: a table of dtype x operation x shape x blocking or not, against gloo's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (70_001,)]
OPS = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
BITWISE = {dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR}


def given(rank: int, shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """What a rank puts in: small numbers, so that sums are exact in any order, and a shifted element shows."""
    count = 1
    for length in shape:
        count *= length
    numbers = (torch.arange(count) * 7 + 3 * rank + salt) % 5 + 1
    if dtype is torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    return numbers.to(torch.float32).to(dtype).reshape(shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype is other.dtype and one.shape == other.shape and torch.equal(raw(one), raw(other))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def call(function: Callable[..., Any], *arguments: Any, waits: bool, **options: Any) -> None:
    work = function(*arguments, async_op=not waits, **options)
    if not waits:
        work.wait()


def compare(
    name: str, ours: Any, gloo: dist.ProcessGroup, theirs: Callable[[dist.ProcessGroup], Any], expected: Any
) -> list[str]:
    """Where our result is not what gloo's is, or what follows from the inputs where gloo refuses them."""
    found = []
    for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
        if not same(one, other):
            found.append(f"{name}: result {number} is {one.reshape(-1)[:6]}, and not {other.reshape(-1)[:6]}")
    try:
        of_gloo = theirs(gloo)
    except (RuntimeError, TypeError, ValueError):
        return found
    for one, other in zip(ours, of_gloo, strict=True):
        if not same(one, other):
            found.append(f"{name}: gloo has {other.reshape(-1)[:6]}, and we {one.reshape(-1)[:6]}")
    return found


def each() -> Iterator[tuple[tuple[int, ...], bool]]:
    for shape in SHAPES:
        for waits in (True, False):
            yield shape, waits


def reductions() -> list[str]:
    size, own, gloo = dist.get_world_size(), dist.get_rank(), dist.new_group(backend="gloo")
    found: list[str] = []
    for dtype in FLOATS + INTEGERS:
        for op, pairwise in OPS.items():
            if op in BITWISE and dtype.is_floating_point:
                continue
            for shape, waits in each():
                inputs = [given(rank, shape, dtype) for rank in range(size)]
                expected = reduce(pairwise, inputs)
                name = f"{op} {dtype} {shape} {'blocking' if waits else 'async'}"

                def all_reduce(group: dist.ProcessGroup | None, op: Any = op, waits: bool = waits, own: Any = inputs[own]) -> Any:
                    tensor = own.clone()
                    call(dist.all_reduce, tensor, op, waits=waits, group=group)
                    return [tensor]

                found += compare(f"all_reduce {name}", all_reduce(None), gloo, all_reduce, [expected])
                tensor = inputs[own].clone()
                call(dist.reduce, tensor, size - 1, op, waits=waits)
                if own == size - 1 and not same(tensor, expected):
                    found.append(f"reduce {name}: {tensor.reshape(-1)[:6]}, and not {expected.reshape(-1)[:6]}")
                if not shape:
                    continue
                parts = [[given(rank, shape, dtype, salt) for salt in range(size)] for rank in range(size)]
                expected = reduce(pairwise, [part[own] for part in parts])
                output = torch.empty(shape, dtype=dtype)
                call(dist.reduce_scatter, output, parts[own], op, waits=waits)
                flat = torch.empty(shape, dtype=dtype)
                call(dist.reduce_scatter_tensor, flat, torch.cat(parts[own]), op, waits=waits)
                for result, form in ((output, "reduce_scatter"), (flat, "reduce_scatter_tensor")):
                    if not same(result, expected):
                        found.append(f"{form} {name}: {result.reshape(-1)[:6]}, and not {expected.reshape(-1)[:6]}")
    return found


def averages() -> list[str]:
    size, own = dist.get_world_size(), dist.get_rank()
    found = []
    for dtype in [*FLOATS, torch.complex64]:
        inputs = [given(rank, (1001,), dtype) * size for rank in range(size)]
        expected = reduce(torch.add, [given(rank, (1001,), dtype) for rank in range(size)])
        tensor = inputs[own].clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        if not same(tensor, expected):
            found.append(f"AVG {dtype}: {tensor[:6]}, and not {expected[:6]}")
    return found


def movements() -> list[str]:
    size, own, gloo = dist.get_world_size(), dist.get_rank(), dist.new_group(backend="gloo")
    last = size - 1
    found: list[str] = []
    for dtype in FLOATS + INTEGERS + OTHERS:
        for shape, waits in each():
            inputs = [given(rank, shape, dtype) for rank in range(size)]
            table = [[given(rank, shape, dtype, salt) for salt in range(size)] for rank in range(size)]

            def blank(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.zeros(shape, dtype=dtype)

            def broadcast(group: Any, inputs: Any = inputs, waits: bool = waits) -> Any:
                tensor = inputs[own].clone()
                call(dist.broadcast, tensor, last, waits=waits, group=group)
                return [tensor]

            def all_gather(group: Any, inputs: Any = inputs, waits: bool = waits, blank: Any = blank) -> Any:
                outputs = [blank() for _ in range(size)]
                call(dist.all_gather, outputs, inputs[own], waits=waits, group=group)
                return outputs

            def gather(group: Any, inputs: Any = inputs, waits: bool = waits, blank: Any = blank) -> Any:
                outputs = [blank() for _ in range(size)] if own == last else None
                call(dist.gather, inputs[own], outputs, last, waits=waits, group=group)
                return outputs or []

            def scatter(group: Any, table: Any = table, waits: bool = waits, blank: Any = blank) -> Any:
                output = blank()
                call(dist.scatter, output, table[last] if own == last else None, last, waits=waits, group=group)
                return [output]

            def all_to_all(group: Any, table: Any = table, waits: bool = waits, blank: Any = blank) -> Any:
                outputs = [blank() for _ in range(size)]
                call(dist.all_to_all, outputs, table[own], waits=waits, group=group)
                return outputs

            name = f"{dtype} {shape} {'blocking' if waits else 'async'}"
            crossed = [row[own] for row in table]
            found += compare(f"broadcast {name}", broadcast(None), gloo, broadcast, [inputs[last]])
            found += compare(f"all_gather {name}", all_gather(None), gloo, all_gather, inputs)
            found += compare(f"gather {name}", gather(None), gloo, gather, inputs if own == last else [])
            found += compare(f"scatter {name}", scatter(None), gloo, scatter, [table[last][own]])
            found += compare(f"all_to_all {name}", all_to_all(None), gloo, all_to_all, crossed)
            if shape:
                output = torch.cat([blank() for _ in range(size)])
                call(dist.all_gather_into_tensor, output, inputs[own], waits=waits)
                if not same(output, torch.cat(inputs)):
                    found.append(f"all_gather_into_tensor {name}")
                call(dist.all_to_all_single, output, torch.cat(table[own]), waits=waits)
                if not same(output, torch.cat(crossed)):
                    found.append(f"all_to_all_single {name}")
    return found


def unequal() -> list[str]:
    size, own = dist.get_world_size(), dist.get_rank()
    found = []
    for dtype in (torch.float32, torch.bool, torch.complex64):
        inputs = [given(rank, (2 * rank, 3), dtype) for rank in range(size)]
        outputs = [torch.zeros_like(part) for part in inputs]
        dist.all_gather(outputs, inputs[own])
        found += [f"all_gather {dtype}" for one, other in zip(outputs, inputs, strict=True) if not same(one, other)]

        table = [[given(rank, (rank + 2 * to, 3), dtype) for to in range(size)] for rank in range(size)]
        crossed = [row[own] for row in table]
        outputs = [torch.zeros_like(part) for part in crossed]
        dist.all_to_all(outputs, table[own])
        found += [f"all_to_all {dtype}" for one, other in zip(outputs, crossed, strict=True) if not same(one, other)]
        output = torch.zeros_like(torch.cat(crossed))
        dist.all_to_all_single(output, torch.cat(table[own]), [len(part) for part in crossed], [len(part) for part in table[own]])
        if not same(output, torch.cat(crossed)):
            found.append(f"all_to_all_single {dtype}")
    parts = [[given(rank, (to + 1,), torch.float32) for to in range(size)] for rank in range(size)]
    output = torch.zeros(own + 1)
    dist.reduce_scatter(output, parts[own])
    if not same(output, reduce(torch.add, [row[own] for row in parts])):
        found.append("reduce_scatter")
    return found


def strides() -> list[str]:
    """Tensors whose elements do not lie in order: views and transposed ones."""
    size, own = dist.get_world_size(), dist.get_rank()
    found = []
    grids = [given(rank, (4, 6), torch.float32) for rank in range(size)]
    tensor = grids[own].clone().t()
    dist.all_reduce(tensor)
    if not same(tensor, reduce(torch.add, grids).t()):
        found.append("all_reduce of a transposed tensor")
    whole = torch.zeros(8, 6)
    dist.broadcast(whole[::2], 0) if own else dist.broadcast(grids[0], 0)
    if own and not (same(whole[::2], grids[0]) and not whole[1::2].any()):
        found.append("broadcast into every second row")
    outputs = [torch.zeros(6, 4) for _ in range(size)]
    dist.all_gather(outputs, grids[own].t())
    if not all(same(one, other.t()) for one, other in zip(outputs, grids, strict=True)):
        found.append("all_gather of a transposed tensor")
    flat = torch.zeros(size * 5)
    dist.all_gather(list(flat.chunk(size)), given(own, (5,), torch.float32))
    if not same(flat, torch.cat([given(rank, (5,), torch.float32) for rank in range(size)])):
        found.append("all_gather into the chunks of one tensor")
    return found


def overlaps() -> list[str]:
    """Results that lie in what a call reads, as the shard that a rank has of a flat gradient."""
    size, own, found = dist.get_world_size(), dist.get_rank(), []
    inputs = [given(rank, (5 * size,), torch.float32) for rank in range(size)]
    rows = [one.chunk(size) for one in inputs]
    expected = {
        "reduce_scatter_tensor": reduce(torch.add, [row[own] for row in rows]),
        "reduce_scatter": reduce(torch.add, [row[own] for row in rows]),
        "scatter": rows[size - 1][own],
        "gather": torch.cat([row[0] for row in rows]),
        "all_gather": torch.cat([row[0] for row in rows]),
        "all_to_all_single": torch.cat([row[own] for row in rows]),
        "all_to_all": torch.cat([row[own] for row in rows]),
    }
    for name, right in expected.items():
        whole = inputs[own].clone()
        parts = list(whole.chunk(size))
        result = whole
        if name == "reduce_scatter_tensor":
            result = parts[own]
            dist.reduce_scatter_tensor(result, whole)
        elif name == "reduce_scatter":
            result = parts[own]
            dist.reduce_scatter(result, parts)
        elif name == "scatter":
            result = parts[0]
            dist.scatter(result, parts if own == size - 1 else None, size - 1)
        elif name == "gather":
            dist.gather(parts[0], parts if own == size - 1 else None, size - 1)
            right = right if own == size - 1 else inputs[own]
        elif name == "all_gather":
            dist.all_gather_into_tensor(whole, parts[0])
        elif name == "all_to_all_single":
            dist.all_to_all_single(whole, whole)
        else:
            dist.all_to_all(parts, list(whole.chunk(size)))
        if not same(result, right):
            found.append(f"{name}: {result}, and not {right}")
        if name.startswith("reduce_scatter") and not all(
            same(part, before) for at, (part, before) in enumerate(zip(parts, rows[own], strict=True)) if at != own
        ):
            found.append(f"{name} has changed other parts of its input")
    return found + overlaps_in_batches()


def overlaps_in_batches() -> list[str]:
    """Outputs that lie in what another call of the same batch reads."""
    size, own, world = dist.get_world_size(), dist.get_rank(), dist.group.WORLD

    def scattered(group: Any, step: int) -> list[torch.Tensor]:
        """Returns outputs of which each is in the other's input, or every second element of it."""
        first, second = given(own, (6 * size,), torch.float32), given(own, (6 * size,), torch.float32, 1)
        outputs = [second[: 6 * step : step], first[: 6 * step : step]]
        with dist.distributed_c10d._coalescing_manager(group):
            for output, input in zip(outputs, (first.clone() if step > 1 else first, second), strict=True):
                dist.reduce_scatter_tensor(output, input, group=group)
        return outputs

    def gathered(group: Any, lists: bool) -> list[torch.Tensor]:
        first, second = torch.zeros(size, 70_000), torch.zeros(size, 70_000)
        inputs = [given(own, (70_000,), torch.float32), first[0].copy_(given(own, (70_000,), torch.float32, 1))]
        if lists:
            lists_of_outputs = [list(pair) for pair in zip(first, second, strict=True)]
            group.allgather_coalesced(lists_of_outputs, inputs).wait()
        else:
            group.allgather_into_tensor_coalesced([first.view(-1), second.view(-1)], inputs).wait()
        return [first, second]

    gloo, found = dist.new_group(backend="gloo"), []
    for name, make, option in (
        ("reduce_scatter", scattered, 1),
        ("reduce_scatter strided", scattered, 2),
        ("all_gather", gathered, False),
        ("all_gather lists", gathered, True),
    ):
        for at, (one, other) in enumerate(zip(make(world, option), make(gloo, option), strict=True)):
            if not same(one, other):
                found.append(f"{name} in a batch: result {at} is {one.reshape(-1)[:6]}, and not {other.reshape(-1)[:6]}")
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("cases", [reductions, averages, movements, unequal, strides, overlaps])
def test_results_are_those_of_gloo(cases: Callable[[], list[str]], size: int) -> None:
    for rank, found in enumerate(ranks.run(cases, size)):
        assert not found, f"rank {rank}: {len(found)} differ, the first of them: " + "; ".join(found[:5])


def with_pending_results() -> list[list[float]]:
    """Results of functional collectives that nobody has waited for, as inputs and outputs of others."""
    world = dist.group.WORLD
    pending = functional.all_reduce(torch.full((3,), 1.0 + dist.get_rank()), "sum", world)
    dist.all_reduce(pending)
    outputs = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, functional.all_reduce(torch.ones(3), "sum", world))
    return [pending.tolist(), *(output.tolist() for output in outputs)]


def test_pending_results_are_waited_for() -> None:
    assert ranks.run(with_pending_results, 2) == [[[6.0] * 3, [2.0] * 3, [2.0] * 3]] * 2
