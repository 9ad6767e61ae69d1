"""Programs that begin a run, or join one, with one thing that differs: all members raise the same error, which names it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from performers import PATIENCE
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.optim import SGD, Adam, lr_scheduler

import pccl.distributed
from pccl.data import ElasticSampler, ElasticShards
from pccl.distributed import Elastic, PeerLostError, Snapshots

pytestmark = pytest.mark.timeout(180)


class Net(nn.Module):
    def __init__(self, words: int = 6, more: int = 0, *, tied: bool = False, buffer: str = "mean") -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 4 + more)
        self.out = nn.Linear(4 + more, words, bias=False)
        self.register_buffer(buffer, torch.zeros(2))
        if tied:
            self.out.weight = self.embed.weight


class Wrapper:
    """As frameworks wrap optimizers."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)


def elastic(
    make: Callable[[nn.Module], Any] = lambda net: SGD(net.parameters(), lr=0.01),
    net: nn.Module | None = None,
    change: Callable[[nn.Module], Any] = lambda net: net,
    values: Callable[[Any], dict[str, Any]] = lambda _: {},
    **settings: Any,
) -> Elastic:
    net = Net() if net is None else net
    changed = change(net)
    optimizer = make(net)
    return Elastic(changed if isinstance(changed, nn.Module) else net, optimizer, step=0, **settings, **values(optimizer))


def schedule(gamma: float) -> Callable[[Any], dict[str, Any]]:
    return lambda optimizer: {"schedule": lr_scheduler.StepLR(optimizer, 5, gamma)}


def shards(names: str, batch_size: int = 2) -> dict[str, Any]:
    return {"shards": ElasticShards(names, iter, batch_size)}


def stepped(net: nn.Module) -> Adam:
    """An optimizer that was restored in this process alone."""
    optimizer = Adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def frozen(net: nn.Module) -> None:
    net.embed.weight.requires_grad_(False)


def two_groups(net: nn.Module) -> SGD:
    return SGD([{"params": [one]} for one in net.parameters()], lr=0.01)


BEGINNINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": (
        {},
        {"make": lambda net: SGD(net.parameters(), lr=0.02)},
        "lr of param group 0 of optimizer 0 is 0.01 at A and 0.02 at B",
    ),
    "lr in a tensor": (
        {"make": lambda net: Adam(net.parameters(), lr=torch.tensor(0.5))},
        {"make": lambda net: Adam(net.parameters(), lr=torch.tensor(0.25))},
        "lr of param group 0 of optimizer 0 is 0.5 at A and 0.25 at B",
    ),
    "lr not a number": ({}, {"make": lambda net: SGD(net.parameters(), lr=float("nan"))}, "lr .* is 0.01 at A and nan at B"),
    "betas": (
        {"make": lambda net: Adam(net.parameters())},
        {"make": lambda net: Adam(net.parameters(), betas=(0.9, 0.99))},
        r"betas of param group 0 of optimizer 0 is \(0.9, 0.999\) at A and \(0.9, 0.99\) at B",
    ),
    "momentum": ({}, {"make": lambda net: SGD(net.parameters(), lr=0.01, momentum=0.9)}, "momentum .* is 0 at A and 0.9 at B"),
    "class": (
        {},
        {"make": lambda net: Adam(net.parameters())},
        r"class of optimizer 0 is torch.*\.SGD at A and torch.*\.Adam at B",
    ),
    "two optimizers": (
        {},
        {"make": lambda net: [SGD(net.parameters(), lr=0.01)] * 2},
        "number of optimizers is 1 at A and 2 at B",
    ),
    "groups": ({}, {"make": two_groups}, "number of param groups of optimizer 0 is 1 at A and 2 at B"),
    "order": (
        {},
        {"make": lambda net: SGD([*net.parameters()][::-1], lr=0.01)},
        "parameter 0 of param group 0 of optimizer 0 is embed.weight at A and out.weight at B",
    ),
    "state of an optimizer": (
        {"make": lambda net: Adam(net.parameters())},
        {"make": stepped},
        "state of embed.weight in optimizer 0 is missing at A and .*exp_avg.* at B",
    ),
    "words": ({}, {"net": Net(words=7)}, r"parameter embed.weight is torch.float32 of shape \(6, 4\) at A and .*\(7, 4\) at B"),
    "type": ({}, {"net": Net().to(torch.bfloat16)}, "parameter embed.weight is torch.float32 .* at A and torch.bfloat16 .* at B"),
    "tied": ({}, {"net": Net(tied=True)}, "parameter out.weight is .* at A and missing at B"),
    "frozen": ({}, {"change": frozen}, "requires_grad of embed.weight is True at A and False at B"),
    "wrapped": (
        {},
        {"change": lambda net: nn.ModuleDict({"module": net})},
        r"parameter embed.weight is .* at A and missing at B",
    ),
    "buffer": ({}, {"net": Net(buffer="other")}, "buffer mean is torch.float32 at A and missing at B"),
    "one more value": ({}, {"values": lambda _: {"extra": 1}}, "value 'extra' is missing at A and a plain value at B"),
    "kind of value": (
        {"values": lambda _: {"one": 1}},
        {"values": lambda _: {"one": torch.Generator()}},
        "value 'one' is a plain .*",
    ),
    "shape of value": (
        {"values": lambda _: {"ema": torch.ones(2)}},
        {"values": lambda _: {"ema": torch.ones(3)}},
        r"value 'ema' is torch.float32 of shape \(2,\) at A and torch.float32 of shape \(3,\) at B",
    ),
    "key in a value": (
        {"values": lambda _: {"ema": {"a": torch.ones(2)}}},
        {"values": lambda _: {"ema": {"a": torch.ones(2), "b": {}}}},
        r"value 'ema'\['b'\] is missing at A and dict at B",
    ),
    "shape in a value": (
        {"values": lambda _: {"ema": {"a": [None, 1, torch.ones(2)]}}},
        {"values": lambda _: {"ema": {"a": [3, 2, torch.ones(2, 1)]}}},
        r"value 'ema'\['a'\]\[2\] is torch.float32 of shape \(2,\) at A and .*\(2, 1\) at B",
    ),
    "type in a value": (
        {"values": lambda _: {"ema": [torch.ones(2)]}},
        {"values": lambda _: {"ema": [torch.ones(2, dtype=torch.float64)]}},
        r"value 'ema'\[0\] is torch.float32 .* at A and torch.float64 .* at B",
    ),
    "length of a value": (
        {"values": lambda _: {"log": [1]}},
        {"values": lambda _: {"log": [1, 2]}},
        "value 'log' is list of length 1 at A and list of length 2 at B",
    ),
    "module of a value": (
        {"values": lambda _: {"ema": nn.Linear(2, 2)}},
        {"values": lambda _: {"ema": nn.Linear(2, 3)}},
        r"value 'ema'\['bias'\] is torch.float32 of shape \(2,\) at A and .*\(3,\) at B",
    ),
    "schedule": ({"values": schedule(0.5)}, {"values": schedule(0.1)}, "gamma of value 'schedule' is 0.5 at A and 0.1 at B"),
    "samples": (
        {"values": lambda _: {"data": ElasticSampler(range(9))}},
        {"values": lambda _: {"data": ElasticSampler(range(8))}},
        "number of samples of value 'data' is 9 at A and 8 at B",
    ),
    "seed": (
        {"values": lambda _: {"data": ElasticSampler(range(9))}},
        {"values": lambda _: {"data": ElasticSampler(range(9), seed=4)}},
        "seed of value 'data' is 0 at A and 4 at B",
    ),
    "shards": (
        {"values": lambda _: shards("abc")},
        {"values": lambda _: shards("abd")},
        "name of shard 2 of .* is c at A and d at B",
    ),
    "batch of shards": (
        {"values": lambda _: shards("ab")},
        {"values": lambda _: shards("ab", 3)},
        "batch_size .* is 2 at A and 3 at B",
    ),
    "every": ({}, {"every": 2}, "every is 1 at A and 2 at B"),
    "parity_every": ({"parity_every": 5}, {"parity_every": 10}, "parity_every is 5 at A and 10 at B"),
    "parity": ({"parity_every": 5}, {"parity_every": 5, "parity": "repair"}, "parity is raise at A and repair at B"),
    # What may differ.
    "compiled": ({}, {"change": lambda net: torch.compile(net, backend="eager")}, ""),
    "contents": ({}, {"net": Net(), "values": lambda _: {}}, ""),
    "policy of no parity": ({}, {"parity": "repair"}, ""),
    "wrapper": ({}, {"make": lambda net: [Wrapper(SGD(net.parameters(), lr=0.01))]}, ""),
    "no number": ({"make": lambda net: SGD(net.parameters(), lr=float("nan"))},) * 2 + ("",),
    "type of number": (
        {"make": lambda net: SGD(net.parameters(), lr=1)},
        {"make": lambda net: SGD(net.parameters(), lr=1.0)},
        "",
    ),
    "only one has it": ({"values": lambda _: {"name": "run 7"}}, {"values": lambda _: {"name": None}}, ""),
    "values": ({"values": lambda _: {"best": 1, "log": [1]}}, {"values": lambda _: {"best": 0.5, "log": [2.5]}}, ""),
    "order of keys": ({"values": lambda _: {"one": {"a": 1, "b": "x"}}}, {"values": lambda _: {"one": {"b": "y", "a": 2}}}, ""),
    "only one has a part": ({"values": lambda _: {"one": {"a": None}}}, {"values": lambda _: {"one": {"a": {"b": [1]}}}}, ""),
}
"""Arguments of both ranks, and the error; "" if there is none. A and B stand for what errors call the ranks."""


def begin_each() -> list[str]:
    return [_refusal(elastic(**pair[dist.get_rank()])) for pair in BEGINNINGS.values()]


def _refusal(run: Any) -> str:
    try:
        run.sync(timeout=PATIENCE)
    except ValueError as error:
        return str(error)
    return ""


def check(told: list[str], text: str) -> None:
    """All have the same error, and it is the one of the table."""
    assert len(set(told)) == 1, told
    if not text:
        assert told[0] == ""
        return
    label = r"rank {} \(.+, [0-9a-f]{{8}}\)"
    wanted = re.sub(r"\bat ([AB])\b", lambda found: "at " + label.format("AB".index(found[1])), text)
    assert re.search(wanted + ".*; give the same to all", told[0]), (wanted, told[0])


def test_a_training_begins_with_what_is_alike():
    found = ranks.run(begin_each, 2)
    for told, (_, _, text) in zip(zip(*found, strict=True), BEGINNINGS.values(), strict=True):
        check(list(told), text)


# ---- sharded ----


def sharded(
    lr: float = 0.01,
    rows: int = 8,
    dim: int = 0,
    make: Callable[..., Any] = SGD,
    snapshots: Snapshots | None = None,
    **settings: Any,
) -> Elastic:
    net = nn.Sequential(nn.Linear(8, rows), nn.Linear(rows, 8))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net, mesh=mesh, shard_placement_fn=lambda one: Shard(dim) if one.ndim > 1 else None)
    return Elastic(net, make(net.parameters(), lr=lr), step=0, snapshots=snapshots, **settings)


def replicated(**settings: Any) -> Elastic:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    return Elastic(net, SGD(net.parameters(), lr=0.01), step=0, **settings)


WHOLE = {"is": "replicated"}
"""In the place of arguments of `sharded`."""

SHARDED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": ({}, {"lr": 0.02}, "lr of param group 0 of optimizer 0 is 0.01 at A and 0.02 at B"),
    "class": ({}, {"make": Adam}, r"class of optimizer 0 is .*SGD at A and .*Adam at B"),
    "rows": (
        {},
        {"rows": 9},
        r"parameter 0.weight is torch.float32 of shape \(8, 8\) at A and torch.float32 of shape \(9, 8\) at B",
    ),
    "placement": ({}, {"dim": 1}, r"placements of 0.weight is .*0.* at A and .*1.* at B"),
    "one more value": ({}, {"extra": 1}, "value 'extra' is missing at A and a plain value at B"),
    "every": ({}, {"every": 3}, "every is 1 at A and 3 at B"),
    "snapshots": ({}, {"snapshots": Snapshots(holder=False)}, "snapshots is none at A and some at B"),
    "every of snapshots": (
        {"snapshots": Snapshots(every=4, holder=False)},
        {"snapshots": Snapshots(every=5, holder=False)},
        "every of Snapshots is 4 at A and 5 at B",
    ),
    "copies": (
        {"snapshots": Snapshots(holder=False)},
        {"snapshots": Snapshots(code=(2, 2), holder=False)},
        r"copies or code of Snapshots is \(1, 1\) at A and \(2, 2\) at B",
    ),
    "sharded or not": ({}, WHOLE, r"model is sharded \(FSDP2\) at A and replicated at B"),
    "replicated or not": (WHOLE, {}, r"model is replicated at A and sharded \(FSDP2\) at B"),
    "alike": ({"snapshots": Snapshots(copies=1, holder=False)}, {"snapshots": Snapshots(holder=False)}, ""),
}


def begin_each_sharded(folder: str) -> list[str]:
    """An error closes the communicator, so that each beginning has a group of its own."""
    found, rank = [], dist.get_rank()
    for number, pair in enumerate(SHARDED.values()):
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/{number}", 2)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
        run = sharded(**pair[rank]) if pair[rank] != WHOLE else replicated()
        found.append(_refusal(run))
        run.close()
    return found


def test_a_sharded_training_begins_with_what_is_alike(tmp_path):
    found = ranks.run(begin_each_sharded, 2, str(tmp_path))
    for told, (_, _, text) in zip(zip(*found, strict=True), SHARDED.values(), strict=True):
        check(list(told), text)


# ---- newcomers ----

JOINS = [
    *("class", "two optimizers", "groups", "order", "words", "type", "tied", "buffer", "one more value", "kind of value"),
    *("samples", "seed", "shards", "every", "parity_every"),
]
"""Of the beginnings: those whose other rank is refused as a newcomer, too. It takes numbers over."""


def join_each(folder: str) -> list[str]:
    """The third rank joins the other two in each case, and ends there."""
    path, rank = Path(folder), dist.get_rank()
    dist.destroy_process_group()
    if rank == 2:
        return [_joined(path, name) for name in [*JOINS, "lr"]]
    store = dist.FileStore(f"{folder}/two", 2)
    dist.init_process_group("pccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
    for name in [*JOINS, "lr"]:
        run = elastic(**BEGINNINGS[name][0])
        if rank == 0:
            (path / f"begun {name}.part").write_text(f"{pccl.distributed.masters()} {pccl.distributed.keys()}")
            (path / f"begun {name}.part").rename(path / f"begun {name}")
        over = torch.zeros(1)
        while not over.item():
            run.sync(timeout=PATIENCE)
            run.step += 1
            over = torch.tensor(float(rank == 0 and (path / f"over {name}").exists()))
            dist.all_reduce(over)
        assert run.step > 0
    return [str(dist.get_world_size())] * len([*JOINS, "lr"])


def _joined(path: Path, name: str) -> str:
    while not (path / f"begun {name}").exists():
        time.sleep(0.01)
    masters, _, keys = (path / f"begun {name}").read_text().partition(" ")
    pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
    run = elastic(**BEGINNINGS[name][1])
    told = ""
    try:
        run.sync(timeout=PATIENCE)
        assert [group["lr"] for one in run._training.optimizers for group in one.param_groups] == [0.01]
    except pccl.distributed.JoinError as error:
        told = str(error)
    dist.destroy_process_group()
    (path / f"over {name}").touch()
    return told


def test_a_newcomer_that_differs_is_refused_and_the_members_go_on(tmp_path):
    *members, newcomer = ranks.run(join_each, 3, str(tmp_path))
    assert all(one == ["2"] * len(newcomer) for one in members)
    for told, name in zip(newcomer, JOINS, strict=False):
        text = re.sub(r"\bat A", r"at rank 0 \\(.+\\)", BEGINNINGS[name][2])
        text = re.sub(r"\bat B", r"at rank 2 \\(.+\\)", text) + r".*; give the same to all \(INVALID_USAGE\)$"
        assert re.search(text, told), (name, told)
    assert newcomer[-1] == ""


MEMBERS = {"replicated": replicated, "sharded": sharded}


def join_other_kind(folder: str) -> list[int | str]:
    """A third rank whose model is sharded joins two whose is not, and the other way round."""
    path, rank = Path(folder), dist.get_rank()
    dist.destroy_process_group()
    told: list[int | str] = []
    for kind, make in MEMBERS.items():
        if rank == 2:
            told.append(_joined_as_other_kind(path, kind))
            continue
        store = dist.FileStore(f"{folder}/{kind} two", 2)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
        run = make()
        run.sync()
        if rank == 0:
            (path / f"{kind}.part").write_text(f"{pccl.distributed.masters()} {pccl.distributed.keys()}")
            (path / f"{kind}.part").rename(path / kind)
        over = torch.zeros(1)
        while not over.item():
            with contextlib.suppress(PeerLostError):
                run.sync()
                over = torch.tensor(float(rank == 0 and (path / f"{kind} over").exists()))
                dist.all_reduce(over, dist.ReduceOp.MAX)
        told.append(dist.get_world_size())
        run.close()
        dist.destroy_process_group()
    return told


def _joined_as_other_kind(path: Path, kind: str) -> str:
    while not (path / kind).exists():
        time.sleep(0.01)
    masters, _, keys = (path / kind).read_text().partition(" ")
    pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
    told = ""
    try:
        MEMBERS["sharded" if kind == "replicated" else "replicated"]().sync()
    except pccl.distributed.JoinError as error:
        told = str(error)
    dist.destroy_process_group()
    (path / f"{kind} over").touch()
    return told


def test_a_newcomer_whose_model_is_sharded_otherwise_is_refused_alone(tmp_path):
    *members, newcomer = ranks.run(join_other_kind, 3, str(tmp_path))
    assert members == [[2, 2]] * 2
    assert re.search(r"model is replicated at rank [01] .* and sharded \(FSDP2\) at rank 2 ", newcomer[0]), newcomer
    assert re.search(r"model is sharded \(FSDP2\) at rank [01] .* and replicated at rank 2 ", newcomer[1]), newcomer
