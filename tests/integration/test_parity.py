"""Members whose states differ are named, repaired or expelled, and deaths in a check hold nobody up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from parity_peers import ParityPeer, ParityRank
from performers import MasterProcess, Performer

pytestmark = pytest.mark.timeout(120)

Ask = Callable[..., list[Any]]


@pytest.fixture
def start() -> Iterator[Callable[[int], list[Performer]]]:
    made: list[Performer] = []

    def begin(count: int) -> list[Performer]:
        made.extend(Performer(ParityPeer, at, (master.address, f"p{at}"), {"PCCL_LOG_LEVEL": "ERR"}) for at in range(count))
        ask(made, "join", count)
        return made

    with MasterProcess() as master:
        try:
            yield begin
        finally:
            for one in made:
                one.kill()


def ask(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


def test_a_flipped_bit_is_named_repaired_and_expelled(start):
    three = start(3)
    assert ask(three, "check") == [(3, None, [])] * 3  # a NaN and all: bits are compared
    three[2].ask("flip", "0.weight")
    three[2].ask("flip", "2.bias", 31)
    found = ask(three, "check")
    assert found == [found[0]] * 3
    kind, entry, names, text = found[0]
    assert (kind, entry, names) == ("ParityError", "parameter/0.weight", ["p2"])
    assert "entry 'parameter/0.weight' differs: p2 (" in text
    assert ask(three, "check", "repair") == [(3, "parameter/0.weight", ["p2"])] * 3
    assert ask(three, "check") == [(3, None, [])] * 3
    assert len(set(ask(three, "digest"))) == 1
    three[1].ask("flip", "1.weight", 22)  # the quiet bit of a NaN, or a high one of a number
    found = ask(three, "check", "expel")
    assert found[0] == found[2] == (2, "parameter/1.weight", ["p1"])
    assert found[1][:3] == ("ParityError", "parameter/1.weight", ["p1"])
    assert ask([three[0], three[2]], "reduce") == [2.0, 2.0]
    assert ask(three, "alive") == [True, False, True]


def test_without_a_majority_all_raise(start):
    four = start(4)
    for member in four[2:]:
        member.ask("flip", "2.weight")
    for policy in ("repair", "expel"):
        found = ask(four, "check", policy)
        assert found == [found[0]] * 4
        assert found[0][:3] == ("ParityError", "parameter/2.weight", [])
        assert "no majority of the 4 members" in found[0][3]
    four[3].kill()
    assert ask(four[:3], "check", "repair") == [(3, "parameter/2.weight", ["p2"])] * 3
    four[2].kill()
    four[0].ask("flip", "2.bias")
    assert [one[:3] for one in ask(four[:2], "check", "expel")] == [("ParityError", "parameter/2.bias", [])] * 2
    four[0].kill()
    assert four[1].ask("check") == (1, None, [])


def test_numbers_and_copies_are_repaired_too_and_different_entries_refused(start):
    three = start(3)
    for member, rate in zip(three, (0.1, 0.2, 0.1), strict=True):
        member.tell("check_state", rate)
    assert [member.answer() for member in three] == [((3, "optimizer/numbers", ["p1"]), 0.1)] * 3
    for member, value in zip(three, (1.0, 1.0, 2.0), strict=True):
        member.tell("check_transposed", value)
    assert [member.answer() for member in three] == [((3, "t", ["p2"]), [[1.0] * 3] * 2)] * 3
    for member, policy in zip(three, ("raise", "repair", "repair"), strict=True):
        member.tell("check", policy)
    for kind, text in (member.answer() for member in three):
        assert (kind, "different policies ('raise', 'repair')" in text) == ("UsageError", True)
    for member, entries in zip(three, ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}), strict=True):
        member.tell("check_other", entries)
    for member, here in zip(three, ("'b' (2 x DOUBLE)", "'b' (3 x DOUBLE)", "missing"), strict=True):
        kind, text = member.answer()
        assert (kind, f"entry 1 is {here} here" in text) == ("UsageError", True)
    assert ask(three, "check") == [(3, None, [])] * 3


def test_a_death_in_a_check_is_left_out(start):
    five = start(5)
    five[4].ask("flip", "0.bias")
    for member in five[1:]:
        member.tell("check", "repair")
    five[0].tell("die_in_check", "gather")
    assert [member.answer() for member in five[1:]] == [(4, "parameter/0.bias", ["p4"])] * 4
    four = five[1:]
    *others, last = four
    last.ask("flip", "0.bias")
    donor = min(others, key=lambda member: member.ask("uuid"))
    three = [member for member in four if member is not donor]
    donor.tell("die_in_check", "repair")
    for member in three:
        member.tell("check", "repair")
    assert [member.answer() for member in three] == [(3, "parameter/0.bias", ["p4"])] * 3
    last.ask("flip", "0.bias")
    for member in three:
        member.tell(*(("die_in_check", "repair") if member is last else ("check", "repair")))
    assert [member.answer() for member in three[:2]] == [(2, "parameter/0.bias", ["p4"])] * 2
    assert ask(three[:2], "reduce") == [2.0] * 2
    assert len(set(ask(three[:2], "digest"))) == 1


def test_a_replay_names_who_computes_otherwise(start):
    three = start(3)
    assert ask(three, "replay", False) == [(3, None, [])] * 3
    for member in three:
        member.tell("replay", member is three[0])
    found = [member.answer() for member in three]
    assert [one[:3] for one in found] == [("ParityError", "output 1", ["p0"])] * 3


def test_replicas_of_ddp_are_compared_with_their_optimizers():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    three = [Performer(ParityRank, rank, (), {"PCCL_LOG_LEVEL": "ERR"}) for rank in range(3)]
    try:
        for rank, member in enumerate(three):
            member.tell("train", store.port, rank, 3)
        assert [member.answer() for member in three] == [None] * 3
        assert ask(three, "check", "raise") == [(3, None)] * 3  # the statistics of BatchNorm are each rank's own
        three[1].ask("flip")
        entry = "optimizer 0/0/exp_avg"
        assert ask(three, "check", "raise") == [entry] * 3
        assert ask(three, "check", "repair") == [(3, entry)] * 3
        three[2].ask("flip")
        assert ask(three, "check", "expel") == [(2, entry)] * 2 + [entry]
        assert ask(three[:2], "size") == [2, 2]
        assert ask(three[:2], "check", "raise") == [(2, None)] * 2
    finally:
        for member in three:
            member.kill()
