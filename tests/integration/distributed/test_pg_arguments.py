"""Wrong and mismatched arguments: every rank gets an error that says what is wrong, none waits, and the group can be used on."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist

import pccl.distributed

PCCL = pccl.PCCLError


def zeros(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype)


def outputs(count: int) -> list[torch.Tensor]:
    return [zeros(count) for _ in range(dist.get_world_size())]


# What rank 0 calls, what the others call, and words that the errors of both have.
MISMATCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "sizes of all_reduce": (lambda: dist.all_reduce(zeros(3)), lambda: dist.all_reduce(zeros(4)), "3|4"),
    "large sizes of all_reduce": (lambda: dist.all_reduce(zeros(900_000)), lambda: dist.all_reduce(zeros(900_001)), "90000"),
    "dtypes of all_reduce": (
        lambda: dist.all_reduce(zeros(4)),
        lambda: dist.all_reduce(zeros(4, torch.int32)),
        "(?i)int32|float",
    ),
    "operations": (
        lambda: dist.all_reduce(zeros(4)),
        lambda: dist.all_reduce(zeros(4), dist.ReduceOp.MAX),
        "(?i)max|sum",
    ),
    "roots of broadcast": (lambda: dist.broadcast(zeros(4), 0), lambda: dist.broadcast(zeros(4), 1), "root"),
    "sizes of broadcast": (lambda: dist.broadcast(zeros(4), 0), lambda: dist.broadcast(zeros(5), 0), "4|5"),
    "different collectives": (lambda: dist.all_reduce(zeros(4)), lambda: dist.broadcast(zeros(4), 0), "all-reduce|broadcast"),
    "sizes of all_gather": (
        lambda: dist.all_gather(outputs(3), zeros(3)),
        lambda: dist.all_gather(outputs(4), zeros(4)),
        "3|4",
    ),
    "sizes of reduce_scatter": (
        lambda: dist.reduce_scatter(zeros(3), outputs(3)),
        lambda: dist.reduce_scatter(zeros(4), outputs(4)),
        "3|4",
    ),
    "sizes of all_to_all": (
        lambda: dist.all_to_all(outputs(3), outputs(3)),
        lambda: dist.all_to_all(outputs(4), outputs(4)),
        "3|4",
    ),
    "a length of another output": (
        lambda: dist.all_gather_into_tensor(zeros(1), zeros(3)),
        lambda: dist.all_gather_into_tensor(zeros(3 * dist.get_world_size()), zeros(3)),
        "all_gather_into_tensor",
    ),
    "a short list": (
        lambda: dist.group.WORLD.allgather([[zeros(3)]], [zeros(3)]).wait(),
        lambda: dist.all_gather(outputs(3), zeros(3)),
        "all_gather",
    ),
}


def mismatched() -> dict[str, str]:
    found = {}
    for name, (by_first, by_others, _) in MISMATCHES.items():
        try:
            by_others() if dist.get_rank() else by_first()
            found[name] = "no error"
        except (PCCL, ValueError) as error:
            found[name] = str(error)
        tensor = torch.ones(5)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [dist.get_world_size()] * 5, f"after {name}"
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_arguments_that_differ_are_an_error_on_all_ranks(size: int) -> None:
    for found in ranks.run(mismatched, size):
        for name, text in found.items():
            words = MISMATCHES[name][2]
            assert re.search(words, text), f"{name}: {text}"


def wrong() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD
    assert isinstance(world, pccl.distributed.ProcessGroup)
    with pytest.raises(ValueError, match=f"needs one output for each of the {size} members of the group, not 1"):
        world.allgather([[zeros(3)]], [zeros(3)])
    with pytest.raises(ValueError, match=r"an output and its input must be of one size, dtype and device|at its own rank"):
        world.allgather([outputs(4)], [zeros(3)])
    with pytest.raises(ValueError, match=f"the output must have {size} times the elements of the input"):
        world.all_gather_single(zeros(3), zeros(3))
    with pytest.raises(ValueError, match=r"split sizes must be"):
        world.all_to_all_single(zeros(4), zeros(4), [1] * size, [9] * size)
    with pytest.raises(ValueError, match="the root must be a rank of the group"):
        world.broadcast([zeros(3)], 17)
    with pytest.raises(TypeError, match="can be sent but not reduced"):
        dist.all_reduce(zeros(3).to(torch.float8_e5m2))
    with pytest.raises(ValueError, match="is not supported; multiply"):
        dist.all_reduce(zeros(3), dist.ReduceOp.PREMUL_SUM(2.0))
    with pytest.raises(ValueError, match="the other rank must be from"):
        world.send([zeros(3)], rank)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 2


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    ranks.run(wrong, 2)


def missing() -> str:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(pccl.distributed.CollectiveTimeoutError) as caught:
            work.wait(timedelta(seconds=0.3))
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, dist.DistBackendError)
        dist.send(torch.zeros(1), 1)
        work.wait(60.0)  # torch takes seconds as well
        return str(caught.value)
    dist.recv(torch.zeros(1), 0)
    dist.all_reduce(torch.ones(3))
    return ""


def test_who_has_not_joined_in_time_is_named_and_the_call_goes_on() -> None:
    text = ranks.run(missing, 2)[0]
    assert "all_reduce: Timed out" in text
    assert "rank 1" in text


def short() -> str:
    if dist.get_rank() == 0:
        try:
            dist.send(torch.zeros(3), 1)
        except PCCL as error:
            return str(error)
    else:
        try:
            dist.recv(torch.zeros(2), 0)
        except PCCL as error:
            return str(error)
    return "no error"


def test_a_message_of_another_size_is_an_error_on_both_sides() -> None:
    for text in ranks.run(short, 2):
        assert "3" in text
        assert "2" in text


def freed(*shape: int) -> torch.Tensor:
    tensor = torch.ones(*shape or (2,)).t()
    tensor.untyped_storage().resize_(0)
    return tensor


def alone(kind: str) -> str:
    """One rank makes a call that is refused; the others make a right one. Gives the kind of error that each got."""
    wrong = dist.get_rank() == 0
    size = dist.get_world_size()
    one = torch.ones(2)
    calls = {
        "AVG of bool": lambda: dist.all_reduce(one.bool() if wrong else one, op=dist.ReduceOp.AVG),
        "BAND of float": lambda: dist.all_reduce(one if wrong else one.int(), op=dist.ReduceOp.BAND),
        "own part": lambda: dist.all_to_all_single(
            torch.empty(size + wrong), torch.ones(size), *(([2] + [1] * (size - 1), [1] * size) if wrong else (None, None))
        ),
        "own part of a list": lambda: dist.all_to_all(
            [torch.empty(1 + (wrong and rank == 0)) for rank in range(size)], [torch.ones(1) for _ in range(size)]
        ),
        "expanded output": lambda: dist.all_gather_into_tensor(
            torch.ones(1).expand(2 * size) if wrong else torch.ones(2 * size), one
        ),
        "freed": lambda: dist.all_reduce(freed() if wrong else one),
        "freed, not contiguous": lambda: dist.all_reduce(freed(2, 3) if wrong else torch.ones(3, 2)),
        "freed source": lambda: dist.broadcast(freed() if wrong else one, 0),
        "freed of several": lambda: dist.all_gather([freed() if wrong else torch.ones(2) for _ in range(size)], one),
        "meta": lambda: dist.broadcast(torch.ones(2, device="meta") if wrong else one, 1),
        "root": lambda: dist.reduce(one.to_sparse() if wrong else one, 1),
    }
    try:
        calls[kind]()
        result = "none"
    except Exception as error:
        result = "timeout" if "imeout" in type(error).__name__ else "error"
    check = torch.ones(1)
    dist.all_reduce(check)
    assert check.item() == size
    return result


KINDS = [
    "AVG of bool",
    "BAND of float",
    "freed",
    "freed, not contiguous",
    "freed source",
    "freed of several",
    "own part",
    "own part of a list",
    "meta",
    "root",
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_rank_refuses_all_hear_at_once(kind):
    assert ranks.run(alone, 3, kind, timeout=60, seconds=30) == ["error"] * 3
