"""Members whose states differ are named, repaired or expelled, and deaths in a check hold nobody up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from parity_peers import ParityPeer, ParityRank
from performers import MasterProcess, Performer

pytestmark = pytest.mark.timeout(120)

CUT_SHORT = "check_parity: a check of another state, policy or fraction was cut short; repeat that call first (INVALID_ARGUMENT)"


@pytest.fixture
def start() -> Iterator[Callable[..., list[Performer]]]:
    made: list[Performer] = []

    def begin(count: int, *, waits: bool = True) -> list[Performer]:
        numbers = range(len(made), len(made) + count)
        begun = [Performer(ParityPeer, at, (master.address, f"p{at}"), {"PCCL_LOG_LEVEL": "ERR"}) for at in numbers]
        made.extend(begun)
        for one in begun:
            one.tell("join", count)
        if waits:
            assert [one.answer() for one in begun] == [None] * count
        return begun

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


def test_a_policy_that_needs_a_majority_reports_that_two_have_none(start):
    two = start(2)
    ask(two, "check")
    assert ask(two, "missing") == [[], []]  # nobody has asked for a majority
    ask(two, "check", "repair")
    assert ask(two, "missing") == [["parity"], ["parity"]]
    one = start(1, waits=False)
    three = two + one
    for member in two:
        member.tell("admit", 3)
    assert [member.answer() for member in [*one, *two]] == [None] * 3
    ask(three, "check", "expel")
    assert ask(three, "missing") == [[], [], []]


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
    for member, here in zip(three, ("'b' (float64 (2,))", "'b' (float64 (3,))", "missing"), strict=True):
        kind, text = member.answer()
        assert (kind, f"entry 1 is {here} here" in text) == ("UsageError", True)
    assert ask(three, "check") == [(3, None, [])] * 3


def test_equal_bytes_of_other_shapes_or_types_are_refused(start):
    """The error of each member names the tensor, its own form and the members with another one."""
    two = start(2)
    for whole, forms in [
        (True, (((2, 3), "float32"), ((3, 2), "float32"))),
        (False, (((6,), "float32"), ((2, 3), "float32"))),
        (False, (((), "int64"), ((1,), "int64"))),
        (False, (((3, 2), "float32"), ((3,), "complex64"))),
        (False, (((4,), "float8_e4m3fn"), ((4,), "float8_e5m2"))),
        (False, (((4,), "bool"), ((4,), "uint8"))),
        (False, (((0, 3), "float32"), ((3, 0), "float32"))),
    ]:
        for member, form in zip(two, forms, strict=True):
            member.tell("check_typed", *form, whole)
        for (shape, dtype), other, member in zip(forms, ("p1", "p0"), two, strict=True):
            kind, text = member.answer()
            assert kind == "UsageError"
            assert f"entry 0 is 't' ({dtype} {shape}) here, and another one at {other} (" in text
    for member, shape in zip(two, ((64, 2), (2, 64)), strict=True):
        member.tell("check_other", {"a": 64, "b": shape}, "float32", 0.5)
    assert all("entry 1 is 'b' (float32 (" in member.answer()[1] for member in two)
    assert ask(two, "check_typed", (2, 3), "complex64", False) == [(2, None, [])] * 2


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
    assert {one[3].partition(" (")[0] for one in found} == {"replay: output 1 differs at p0"}
    assert "): this host computes wrongly, unlike 2 others; take it out of the run (" in found[0][3]


def test_a_replay_that_fails_at_one_member_fails_at_all(start):
    three = start(3)
    for member in three:
        member.tell("replay", False, member is three[2])
    found = [member.answer() for member in three]
    assert found[2] == "raised"
    assert [one[0] for one in found[:2]] == ["UsageError"] * 2
    assert "replay: members have other outputs: output 0 is 'output 0' (float32 ()) here, and another one at p2 (" in found[0][1]
    assert ask(three, "replay", False) == [(3, None, [])] * 3


def test_a_check_that_was_cut_short_goes_on(start):
    three = start(3)
    assert [one.ask("check", "raise", 1.0, 0.05) for one in three[:2]] == ["TIMED_OUT"] * 2
    assert ask(three[:2], "check", "expel") == [("UsageError", one) for one in [CUT_SHORT] * 2]
    assert ask(three, "check") == [(3, None, [])] * 3
    three[1].ask("flip", "0.bias")
    for one in three[:2]:
        one.tell("check", "repair", 1.0, 0.2)
    assert [one.answer() for one in (three[2].tell("check_and_stop", "repair"), *three[:2])] == ["TIMED_OUT"] * 3
    assert ask(three, "check", "repair") == [(3, "parameter/0.bias", ["p1"])] * 3


def test_groups_are_compared_apart(start):
    five = start(5)
    ids = [one.ask("uuid") for one in five]
    five[2].ask("flip", "2.bias")
    five[3].ask("flip", "0.bias")
    pair, trio = five[:2], five[2:]
    for one in pair:
        one.tell("check_in", ids[:2], "raise")
    for one in trio:
        one.tell("check_in", ids[2:], "repair")
    assert [one.answer() for one in pair] == [(2, None, [])] * 2
    assert [one.answer()[:2] for one in trio] == [("ParityError", "parameter/0.bias")] * 3  # three different ones
    trio[0].kill()
    for one in trio[1:]:
        one.tell("check_in", ids[2:], "expel")
    assert [one.answer()[:2] for one in trio[1:]] == [("ParityError", "parameter/0.bias")] * 2
    trio[1].kill()
    assert trio[2].ask("check_in", ids[2:], "raise") == (1, None, [])
    assert ask([*pair, trio[2]], "check") == [(3, None, [])] * 3


def test_a_fraction_finds_each_bit_and_newcomers_take_part(start):
    two = start(2)
    assert ask(two, "check", "raise", 0.25) == [(2, None, [])] * 2
    made = start(1, waits=False)
    three = [*two, *made]
    ask(two, "admit", 3)
    made[0].answer()
    found = []
    for entry in ("0.weight", "2.bias"):
        three[1].ask("flip", entry)
        found.append([ask(three, "check", "repair", 0.25) for _ in range(4)])
    for entry, calls in zip(("0.weight", "2.bias"), found, strict=True):
        expected: list[Any] = [[(3, f"parameter/{entry}", ["p1"])] * 3] + [[(3, None, [])] * 3] * 3
        assert sorted(calls, key=str) == sorted(expected, key=str)
    for one, fraction in zip(three, (0.5, 0.25, 0.5), strict=True):
        one.tell("check", "raise", fraction)
    assert ["different fractions (1/4, 1/2)" in one.answer()[1] for one in three] == [True] * 3


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
        assert ask(three[:2], "check_in", [0, 1]) == [(2, None)] * 2
    finally:
        for member in three:
            member.kill()


@pytest.fixture
def elastic() -> Iterator[Callable[..., list[Performer]]]:
    """Members with Elastic, each with its options. Later ones join."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made: list[Performer] = []

    def begin(*options: dict[str, Any]) -> list[Performer]:
        size = len(made)
        made.extend(Performer(ParityRank, size + at, (), {"PCCL_LOG_LEVEL": "ERR"}) for at in range(len(options)))
        for rank, (one, given) in enumerate(zip(made[size:], options, strict=True)):
            arguments = (*made[0].ask("run_of"), given) if size else (store.port, rank, len(options), given)
            one.tell("join" if size else "train", *arguments)
        assert [one.answer() for one in made[size:]] == [None] * len(options)
        return made[size:]

    try:
        yield begin
    finally:
        for one in made:
            one.kill()


def test_elastic_repairs_while_a_member_dies_and_another_joins(elastic):
    four = elastic(*[{"parity_every": 2, "parity": "repair"}] * 4)
    found = ask(four, "elastic", 3, 4)
    assert found == [found[0]] * 4
    four[3].ask("flip")
    newcomer, *_ = elastic({"parity_every": 2, "parity": "repair"})
    four[2].tell("elastic", 9, 4, True)
    found = ask([four[0], four[1], four[3], newcomer], "elastic", 9, 4)
    assert found == [found[0]] * 4
    assert len(found[0]) == 8


def test_elastic_expels_while_another_joins(elastic):
    three = elastic(*[{"parity_every": 1, "parity": "expel"}] * 3)
    ask(three, "elastic", 2, 3)
    three[2].ask("flip")
    newcomer, *_ = elastic({"parity_every": 1, "parity": "expel"})
    found = ask([*three, newcomer], "elastic", 5, 3)
    assert found.pop(2) == ("ParityError", "optimizer 0/0/exp_avg")
    assert found == [found[0]] * 3
    assert len(found[0]) == 8


def test_elastic_raises_without_a_majority(elastic):
    two = elastic(*[{"parity_every": 3, "parity": "repair"}] * 2)
    assert [len(one) for one in ask(two, "elastic", 1, 2)] == [8] * 2
    two[0].ask("flip")
    assert ask(two, "elastic", 4, 2) == [("ParityError", "parameter/module.0.weight")] * 2  # after a step with that moment


def test_elastic_refuses_other_settings(elastic):
    two = elastic({"parity_every": 1}, {"parity_every": 1, "parity": "expel"})
    text = "Elastic: parity is raise at rank 0 "
    assert [text in told for _, told in ask(two, "elastic", 2, 2)] == [True] * 2
