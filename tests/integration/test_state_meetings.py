"""Peers that sync a `SharedState.from_module` for the first time with one thing that differs: an error names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from peers import address_of, admit, on_all, team, together
from torch import nn
from torch.optim import SGD, Adam

from pccl import Communicator, MasterNode, SharedState, UsageError

pytestmark = pytest.mark.timeout(120)


def made(
    net: Callable[[], nn.Module] = lambda: nn.Linear(2, 3),
    optimizer: Callable[[nn.Module], Any] = lambda net: SGD(net.parameters(), lr=0.1),
    **arguments: Any,
) -> SharedState:
    module = net()
    return SharedState.from_module(module, optimizer(module), **arguments)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "lr": (
        {},
        {"optimizer": lambda net: SGD(net.parameters(), lr=0.2)},
        "lr of param group 0 of optimizer 0 is 0.1 at A and 0.2 at B",
    ),
    "class": ({}, {"optimizer": lambda net: Adam(net.parameters())}, r"class of optimizer 0 is .*\.SGD at A and .*\.Adam at B"),
    "no optimizer": ({}, {"optimizer": lambda net: None}, "number of optimizers is 1 at A and 0 at B"),
    "shape": (
        {},
        {"net": lambda: nn.Linear(3, 2)},
        r"parameter weight is torch.float32 of shape \(3, 2\) at A and .*\(2, 3\) at B",
    ),
    "type": (
        {},
        {"net": lambda: nn.Linear(2, 3).bfloat16()},
        "parameter weight is torch.float32 .* at A and torch.bfloat16 .* at B",
    ),
    "name": ({}, {"net": lambda: nn.Sequential(nn.Linear(2, 3))}, "parameter weight is .* at A and missing at B"),
    "order": (
        {},
        {"optimizer": lambda net: SGD([*net.parameters()][::-1], lr=0.1)},
        "parameter 0 of param group 0 of optimizer 0 is weight at A and bias at B",
    ),
    "extra": ({}, {"extra": {"step": 0}}, "extra 'step' is missing at A and int at B"),
    "kind of extra": ({"extra": {"one": 1}}, {"extra": {"one": True}}, "extra 'one' is int at A and bool at B"),
    "rng_state": ({}, {"rng_state": False}, "rng_state is True at A and False at B"),
}
"""What both make, and the error, in which A and B stand for rank 0 and rank 1."""


def outcome(comm: Communicator, state: SharedState) -> str:
    try:
        comm.sync_shared_state(state, timeout=60)
    except UsageError as error:
        return str(error)
    return ""


def check(told: str, text: str) -> None:
    wanted = text.replace(" at A", r" at rank 0 \(.*\)").replace(" at B", r" at rank 1 \(.*\)")
    assert re.search(f"{wanted}; give the same to all", told), (wanted, told)


def test_all_are_told_alike_when_a_run_begins():
    with team([0, 0]) as comms:
        for *pair, text in CASES.values():
            told = on_all(comms, lambda comm, rank, pair=pair: outcome(comm, made(**pair[rank])))  # type: ignore[misc]
            assert told[0] == told[1]
            check(told[0], text)
        assert on_all(comms, lambda comm, _: outcome(comm, made())) == ["", ""]


def test_a_newcomer_that_differs_is_told_and_the_member_goes_on():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as member:
        member.connect()
        for number, (name, (own, other, text)) in enumerate(CASES.items()):
            state = made(**own)
            state.revision = 2 * number
            with Communicator(address_of(master)) as newcomer:
                assert outcome(member, state) == ""  # alone
                admit([member], newcomer)
                state.push_revision()
                told = together(lambda: outcome(member, state), lambda: outcome(newcomer, made(**other)))  # noqa: B023
                assert told[0] == ""
                if name == "lr":  # which it takes over
                    assert told[1] == ""
                else:
                    check(told[1], text)
                    assert not newcomer.alive
            member.update_topology()
