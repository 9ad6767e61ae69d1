"""Where redundancy lies: what is survived, on which hosts, how even."""

from __future__ import annotations

import itertools

import pytest

from pccl.state._snapshots.placement import Redundancy, lost_members, place, unit_bytes

CASES = [
    (members, Redundancy(*redundancy))
    for members in range(1, 9)
    for redundancy in ((1, 1), (1, 2), (2, 1), (3, 1), (4, 2), (2, 3))
]


def lost_with(placement, gone):
    """The members whose image is lost when these have gone with all that they kept."""
    members = len(placement.units)
    rows = [[keeper not in gone for keeper in stripe.parity] for stripe in placement.stripes]
    return lost_members(placement, [member not in gone for member in range(members)], rows)


@pytest.mark.parametrize(("members", "redundancy"), CASES)
def test_any_losses_that_the_redundancy_bears_are_survived(members, redundancy):
    placement = place(["host"] * members, redundancy)
    borne = min(redundancy.parity, members - 1)
    for count in range(borne + 1):
        for gone in itertools.combinations(range(members), count):
            assert lost_with(placement, gone) == []


@pytest.mark.parametrize(("members", "redundancy"), CASES)
def test_one_more_loss_in_a_stripe_is_told(members, redundancy):
    placement = place(["host"] * members, redundancy)
    if not placement.stripes:
        assert lost_with(placement, (0,)) == [0]
        return
    stripe = placement.stripes[0]
    gone = {stripe.data[0][0], *stripe.parity}
    assert stripe.data[0][0] in lost_with(placement, gone)


@pytest.mark.parametrize(("members", "redundancy"), CASES)
def test_each_unit_is_in_one_stripe_and_no_member_twice(members, redundancy):
    placement = place(["host"] * members, redundancy)
    units = [unit for stripe in placement.stripes for unit in stripe.data]
    assert len(units) == len(set(units))
    if members > 1:
        assert sorted(units) == sorted((member, unit) for member in range(members) for unit in range(placement.units[member]))
    for stripe in placement.stripes:
        there = [member for member, _ in stripe.data] + list(stripe.parity)
        assert len(there) == len(set(there))


@pytest.mark.parametrize(("members", "redundancy"), CASES)
def test_parity_is_even(members, redundancy):
    placement = place(["host"] * members, redundancy)
    kept = [0] * members
    for stripe in placement.stripes:
        for keeper in stripe.parity:
            kept[keeper] += 1
    assert max(kept) - min(kept) <= (1 if redundancy.data > 1 and members >= 2 * sum(redundancy) else 0)


@pytest.mark.parametrize(
    ("hosts", "redundancy"),
    [
        ("aabb", (1, 1)),
        ("aaabbb", (1, 1)),
        ("aaaaabbcc", (1, 1)),
        ("aaab", (1, 1)),
        ("abbbcc", (1, 2)),
        ("aabbcc", (2, 1)),
        ("abcabc", (2, 1)),
        ("aabbccdd", (3, 1)),
    ],
)
def test_the_loss_of_a_host_is_survived_where_there_are_enough(hosts, redundancy):
    placement = place(hosts, Redundancy(*redundancy))
    for host in set(hosts):
        gone = [member for member, its in enumerate(hosts) if its == host]
        assert lost_with(placement, gone) == []


def test_units_are_as_long_as_the_longest_and_aligned():
    placement = place("abcd", Redundancy(3, 1))
    assert unit_bytes([100, 200, 1000, 0], placement, placement.stripes[0], 64) == 384


def test_members_with_the_same_image_on_other_hosts_count_as_copies():
    same = [(2,), (3,), (0,), (1,)]
    assert place("aabb", Redundancy(1, 1), same).stripes == ()
    assert place("aaaa", Redundancy(1, 1), same).stripes == ()
    for hosts in ("aaaa", "abcd"):
        two = place(hosts, Redundancy(1, 2), same)
        assert [len(stripe.parity) for stripe in two.stripes] == [1] * 4
        for stripe in two.stripes:
            member = stripe.data[0][0]
            assert not set(stripe.parity) & {member, *same[member]}
        assert [lost_with(two, (member, *same[member])) for member in range(4)] == [[]] * 4
    apart = place("abab", Redundancy(1, 1), same)  # the others that have it are on the same host
    assert {stripe.data[0][0]: stripe.parity for stripe in apart.stripes} == {0: (1,), 2: (3,), 1: (2,), 3: (0,)}


def test_with_the_same_image_at_all_there_are_no_copies_and_what_is_gone_is_told():
    placement = place("abc", Redundancy(1, 2), [(1, 2), (0, 2), (0, 1)])
    assert placement.stripes == ()
    assert lost_with(placement, (1,)) == [1]
