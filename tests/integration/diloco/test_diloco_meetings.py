"""Peers that begin a run of DiLoCo, or join one, with one thing that differs: an error names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from performers import PATIENCE
from torch import nn
from torch.optim import SGD, AdamW

import pccl
from pccl.data import ElasticSampler
from pccl.diloco import AsyncDiLoCo, DiLoCo, StreamingDiLoCo

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def master() -> Iterator[str]:
    with pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30) as node:
        yield f"127.0.0.1:{node.port}"


def made(
    master: str,
    kind: type[Any] = DiLoCo,
    width: int = 4,
    inner: Callable[..., torch.optim.Optimizer] = SGD,
    lr: float = 0.1,
    change: Callable[[nn.Module], object] = lambda net: None,
    sampler: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    net = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4))
    change(net)
    comm = pccl.Communicator(master)
    if sampler is not None:
        settings["state"] = {"data": ElasticSampler(range(8), communicator=comm, **sampler)}
    return kind(net, comm, inner(net.parameters(), lr=lr), **{"sync_every": 2, "peers": 2, **settings})


def momentum(value: float) -> Callable[..., torch.optim.Optimizer]:
    return lambda parameters: SGD(parameters, lr=0.7, momentum=value)


def freeze(net: nn.Module) -> None:
    net[0].weight.requires_grad_(False)


ALWAYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": ({}, {"lr": 0.2}, "lr of param group 0 of inner optimizer 0 is 0.1 at A and 0.2 at B"),
    "class": ({}, {"inner": AdamW}, r"class of inner optimizer 0 is .*\.SGD at A and .*\.AdamW at B"),
    "width": (
        {},
        {"width": 5},
        r"parameter 0.weight is torch.float32 of shape \(4, 4\) at A and torch.float32 of shape \(5, 4\) at B",
    ),
    "type": ({}, {"change": nn.Module.bfloat16}, "parameter 0.weight is torch.float32 .* at A and torch.bfloat16 .* at B"),
    "frozen": ({}, {"change": freeze}, "requires_grad of 0.weight is True at A and False at B"),
    "method": ({}, {"kind": AsyncDiLoCo}, "class is DiLoCo at A and AsyncDiLoCo at B"),
    "eager": ({"kind": AsyncDiLoCo}, {"kind": AsyncDiLoCo, "eager": 0.5}, "eager is 1 at A and 0.5 at B"),
    "compression": ({}, {"compression": "int8"}, "method of compression is none at A and int8 at B"),
    "weights": ({}, {"weight": 2.0}, "weights is equal at A and given at B"),
    "state": ({"state": {"step": 1}}, {"state": {"step": 1, "more": 2}}, "state 'more' is missing at A and torch.int64 .* at B"),
    "type of state": (
        {"state": {"one": 1}},
        {"state": {"one": 1.5}},
        "state 'one' is torch.int64 .* at A and torch.float64 .* at B",
    ),
    "fragments": (
        {"kind": StreamingDiLoCo, "fragments": 2},
        {"kind": StreamingDiLoCo, "fragments": ["1", "0"]},
        r"fragment of \d\.\w+ is fragment 0/ at A and fragment 1/ at B",
    ),
    "outer optimizer": ({}, {"outer_optimizer": momentum(0.9)}, "number of outer optimizers is 0 at A and 1 at B"),
    "samples": ({"sampler": {}}, {"sampler": {"seed": 7}}, "seed of value 'data' is 0 at A and 7 at B"),
}

AT_START: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "outer_lr": ({}, {"outer_lr": 0.5}, "outer_lr is 0.7 at A and 0.5 at B"),
    "outer_momentum": ({}, {"outer_momentum": 0.8}, "outer_momentum is 0.9 at A and 0.8 at B"),
    "sync_every": ({}, {"sync_every": 3}, "sync_every is 2 at A and 3 at B"),
    "mixing": (
        {"kind": StreamingDiLoCo},
        {"kind": StreamingDiLoCo, "mixing": 0.25},
        r"overlap and mixing is \(1, 0.5\) at A and \(1, 0.25\) at B",
    ),
    "outer numbers": (
        {"outer_optimizer": momentum(0.9)},
        {"outer_optimizer": momentum(0.8)},
        "momentum of param group 0 of outer optimizer 0 is 0.9 at A and 0.8 at B",
    ),
}
"""Arguments of both peers, and the error, in which A and B stand for what it calls them."""


def outcome(one: Any) -> str:
    try:
        one.start()
    except pccl.UsageError as error:
        return str(error)
    return ""


def check(told: str, text: str) -> None:
    one, other = re.fullmatch("(.*) is (.*) at A and (.*) at B", text).groups()[1:]  # type: ignore[union-attr]
    name = text.partition(" is ")[0]
    turned = [f"{name} is {a} at rank {i} .*and {b} at rank {1 - i} " for i, a, b in ((0, one, other), (0, other, one))]
    assert any(re.search(wanted, told) for wanted in turned), (turned, told)


@pytest.mark.parametrize(
    ("own", "other", "text"), (ALWAYS | AT_START).values(), ids=[*ALWAYS, *(f"{one} at start" for one in AT_START)]
)
def test_a_run_begins_with_what_is_alike(master, own, other, text):
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(outcome, [made(master, **own), made(master, **other)]))
    assert told[0] == told[1]
    check(told[0], text)


@pytest.mark.parametrize("name", ALWAYS)
def test_a_joiner_that_differs_is_refused_and_the_member_goes_on(master, name):
    own, other, text = ALWAYS[name]
    member = made(master, **own, peers=1)
    assert outcome(member) == ""
    joiner = made(master, **other, peers=1)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(outcome, joiner)
        while not member.synchronize().admitted:
            pass
        check(joining.result(PATIENCE), text)
    member.synchronize()
    assert member.synchronize().world_size == 1
    assert not joiner.communicator.alive
    member.close()


def test_a_joiner_gives_way_in_the_settings_of_the_run(master, caplog):
    member = made(master, peers=1, outer_lr=0.5)
    assert outcome(member) == ""
    joiner = made(master, peers=1, outer_lr=0.9, sync_every=5)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(outcome, joiner)
        while not member.synchronize().admitted:
            pass
        assert joining.result(PATIENCE) == ""
    assert joiner.outer_lr == 0.5
    assert "outer_lr is 0.5, as in the run that this peer has joined, not 0.9" in caplog.text
    for one in (member, joiner):
        one.communicator.close()
