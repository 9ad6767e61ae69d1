"""A member of a collective is killed: who goes on, who is told, and that nobody waits for ever or gets data that lacks a part."""

from __future__ import annotations

import pytest
from collective_members import KINDS, ROOTED, SURVIVING, Wish, connected, on_all

from pccl import DataType

SIZE = 4
SMALL = 1000
LARGE = 2_000_000


def survivors_of(members, victim, wish, delay=None):
    """What the others tell, of a victim that has not launched it, or has `delay` seconds ago."""
    others = [member for rank, member in enumerate(members) if rank != victim]
    for member in others:
        member.tell("outlive", wish, victim)
    if delay is None:
        members[victim].kill()
    else:
        assert members[victim].ask("die_in", wish, delay) is None  # an error would let it live, and the others wait
    outcomes = [member.answer() for member in others]
    members[victim].kill()
    return others, outcomes


def check_life(others):
    """They go on together."""
    for wish in (Wish("barrier"), Wish("all_gather", 77), Wish("all_to_all", LARGE // 10), Wish("broadcast", 5, root=1)):
        assert on_all(others, "make", wish) == [len(others)] * len(others)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "send"])
def test_before_it_has_launched(kind, victim, count):
    """Whatever needs the lost one ends with an error that names it; the rest goes on without it."""
    goes_on = kind in SURVIVING and not (kind in ROOTED and victim == 0)
    with connected(SIZE) as members:
        others, outcomes = survivors_of(members, victim, Wish(kind, count))
        assert outcomes == [("", ()) if goes_on else ("PeerLostError", (victim,))] * (SIZE - 1)
        check_life(others)


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.012])
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "send"])
def test_under_way(kind, victim, delay):
    """All survivors get the result, or all get the error."""
    goes_on = kind in SURVIVING and not (kind in ROOTED and victim == 0)
    with connected(SIZE) as members:
        others, outcomes = survivors_of(members, victim, Wish(kind, LARGE), delay)
        assert len(set(outcomes)) == 1
        assert outcomes[0] in [("", ()), *([] if goes_on else [("PeerLostError", (victim,))])]
        check_life(others)


@pytest.mark.parametrize("delay", [None, 0.0, 0.004])
@pytest.mark.parametrize("kind", SURVIVING)
def test_in_a_group_of_its_own(kind, delay):
    """Where the members are named, the collective itself goes on, and its result is the same."""
    with connected(SIZE) as members:
        wish = Wish(kind, LARGE, members=tuple(range(SIZE)), dtype=DataType.INT64)
        others, outcomes = survivors_of(members, 1, wish, delay)
        assert outcomes == [("", ())] * (SIZE - 1)
        check_life(others)


@pytest.mark.parametrize("kind", SURVIVING)
def test_without_survivors(kind):
    with connected(SIZE) as members:
        others, outcomes = survivors_of(members, 3, Wish(kind, SMALL, options=(("survivors", False),)))
        assert outcomes == [("PeerLostError", (3,))] * (SIZE - 1)
        check_life(others)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("kind", ["broadcast", "barrier"])
def test_calls_that_gave_up_waiting_are_repeated_across_a_death(kind, count):
    with connected(SIZE) as members:
        for member in members[:2]:
            member.tell("make_bit_by_bit", Wish(kind, count))
        members[3].kill()
        assert members[2].ask("outlive", Wish(kind, count), 3) == ("", ())
        for member in members[:2]:
            member.answer()
        check_life(members[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_of_two(kind):
    """Whoever is left goes on alone, where that means something."""
    with connected(2) as members:
        for wish in (Wish(kind, SMALL), Wish("barrier")):
            members[0].tell("outlive", wish, 1)
        members[1].kill()
        assert members[0].answer() == (("", ()) if kind in SURVIVING else ("PeerLostError", (1,)))
        assert members[0].answer() == ("", ())


def test_who_is_outside_the_group_is_not_disturbed():
    with connected(SIZE) as members:
        for member in members[:2]:
            member.tell("outlive", Wish("all_gather", LARGE, members=(0, 1, 2)), 2)
        members[3].tell("receive_from_any", SMALL)
        members[2].kill()
        assert [member.answer() for member in members[:2]] == [("PeerLostError", (2,))] * 2
        assert members[0].ask("send_value", 2, SMALL, 4.5) == 2  # ranks have closed up
        assert members[3].answer() == (0, 4.5)
        check_life([members[0], members[1], members[3]])


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_receive_from_the_dead_ends(count):
    with connected(2) as members:
        members[0].tell("outlive", Wish("send", count), 1)
        members[1].kill()
        assert members[0].answer() == ("PeerLostError", (1,))


def test_a_receive_from_anybody_waits_for_the_last():
    with connected(3) as members:
        members[0].tell("receive_from_any", SMALL)
        members[1].kill()
        assert members[2].ask("send_value", 0, SMALL, 2.5) == 2
        assert members[0].answer() == (2, 2.5)
        members[0].tell("receive_from_any", SMALL)
        members[2].kill()
        kind, lost = members[0].answer()
        assert kind == -1
        assert lost >= 1
