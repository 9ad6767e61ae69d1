"""At which members the redundancy of a snapshot lies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Stripe(NamedTuple):
    """Units of different members, and the members that hold their parity, one row each."""

    data: tuple[tuple[int, int], ...]
    """Member and the number of its unit, in the order of the columns of the code."""
    parity: tuple[int, ...]


class Redundancy(NamedTuple):
    """What a user asks for: `parity` losses among `data + parity` members are survived. `data` 1: whole copies."""

    data: int
    parity: int


class Placement(NamedTuple):
    """All stripes of a snapshot, and into how many units each member's image is cut."""

    stripes: tuple[Stripe, ...]
    units: tuple[int, ...]


def place(hosts: Sequence[Hashable], redundancy: Redundancy, same: Sequence[Sequence[int]] = ()) -> Placement:
    """The stripes for members on these hosts (or sites), by rank.

    `same[member]`: the others whose images have all that the member's image has. Each on a host of its own counts as a copy, and
    none keeps one. With a code they do not count.

    Members of one stripe are on different hosts as far as there are enough. Copies of a member's image lie at the members behind
    it. With a code, members form groups of `data + parity` or more; the units of a group rotate through its stripes, so that
    each member holds as much parity as any other. Where there are fewer members than asked for, each survives as many losses as
    it can. One member alone has no stripes.
    """
    order = _spread(hosts)
    members = len(order)
    parity = min(redundancy.parity, members - 1)
    if parity == 0:
        return Placement((), (1,) * members)
    if redundancy.data == 1:
        return Placement(_copies(hosts, order, parity, same or [()] * members), (1,) * members)
    wanted = redundancy.data + redundancy.parity
    count = max(1, members // wanted)
    stripes: list[Stripe] = []
    units = [0] * members
    for number in range(count):
        group = order[number * members // count : (number + 1) * members // count]
        rotated = _rotated(group, min(parity, len(group) - 1))
        stripes += rotated
        for member in group:
            units[member] = len(group) - min(parity, len(group) - 1)
    return Placement(tuple(stripes), tuple(units))


def _copies(hosts: Sequence[Hashable], order: Sequence[int], count: int, same: Sequence[Sequence[int]]) -> tuple[Stripe, ...]:
    """Each member's copies at others: on other hosts first, then where the fewest lie, then at the next in order."""
    kept = dict.fromkeys(order, 0)
    one_host = len(set(hosts)) == 1
    stripes = []
    for at, member in enumerate(order):
        others = [*order[at + 1 :], *order[:at]]
        near = {hosts[member]}
        there = 0
        for other in same[member]:
            there += one_host or hosts[other] not in near
            near.add(hosts[other])
        used: list[int] = []
        for _ in range(count - there):
            left = [one for one in others if one not in used and one not in same[member]]
            if left:
                keeper = min(left, key=lambda one: (hosts[one] in near, hosts[one] == hosts[member], kept[one]))
                kept[keeper] += 1
                used.append(keeper)
                near.add(hosts[keeper])
        if used:
            stripes.append(Stripe(((member, 0),), tuple(used)))
    return tuple(stripes)


def _rotated(group: Sequence[int], parity: int) -> list[Stripe]:
    """Stripe t has its parity at the members t to t + parity - 1, and one unit of each other member."""
    size = len(group)
    stripes = []
    for turn in range(size):
        turned = [*group[turn:], *group[:turn]]
        data = tuple((member, unit) for unit, member in enumerate(turned[parity:]))
        stripes.append(Stripe(data, tuple(turned[:parity])))
    return stripes


def _spread(hosts: Sequence[Hashable]) -> list[int]:
    """All members, neighbours on different hosts as far as possible: the first of each host, then the second of each..."""
    seen: dict[Hashable, int] = {}
    keys = []
    for member, host in enumerate(hosts):
        seen[host] = seen.get(host, 0) + 1
        keys.append((seen[host], member))
    return [member for _, member in sorted(keys)]


def unit_bytes(sizes: Sequence[int], placement: Placement, stripe: Stripe, align: int) -> int:
    """The size of the units of a stripe, for images of these sizes: all are padded with zeros to that of the longest."""
    longest = max(-(-sizes[member] // placement.units[member]) for member, _ in stripe.data)
    return -(-longest // align) * align


def lost_members(placement: Placement, images: Sequence[bool], parity: Sequence[Sequence[bool]]) -> list[int]:
    """The members whose image is not there, and is in no stripe, or in one that lacks more units than it has rows of parity.

    `images[member]`: whether the member's image is there. `parity[stripe][row]`: whether that row is.
    """
    lost = set()
    for stripe, rows in zip(placement.stripes, parity, strict=True):
        missing = [member for member, _ in stripe.data if not images[member]]
        if len(missing) > sum(rows):
            lost.update(missing)
    kept = {member for stripe in placement.stripes for member, _ in stripe.data}
    lost.update(member for member, there in enumerate(images) if not there and member not in kept)
    return sorted(lost)
