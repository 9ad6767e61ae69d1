"""Who is in a process group: its members and their ranks, and the tables that torch.distributed keeps of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from torch.distributed import distributed_c10d as c10d


class View:
    """The members of a group in the order of their ranks, as agreed by the ops that have ended.

    `living` are those that are not lost; `founders` are the living ones of the beginning: ranks inside the core refer to them as
    long as the group exists. Usually `members` are the living ones. With `fixed`, lost members keep their ranks: `members` never
    change, and its entry for a lost rank is the last member that had it, or one that never was.
    """

    __slots__ = ("before", "fixed", "founders", "living", "members", "own", "places", "rank", "size")

    def __init__(
        self, members: Sequence[UUID], own: UUID, *, fixed: bool = False, living: Collection[UUID] | None = None
    ) -> None:
        self.own = own
        self.fixed = fixed
        self.before: dict[int, tuple[UUID, ...]] = {}
        """The members before each loss, by their number. Empty with `fixed`."""
        left = [member for member in members if living is None or member in living]
        self.founders = tuple(left)
        self.places = {member: place for place, member in enumerate(self.founders)}
        self._set(tuple(members) if fixed else self.founders, self.founders)

    def lose(self, lost: Collection[UUID]) -> bool:
        """Takes lost members out. The survivors close up and keep their order, unless `fixed`. Whether that changed anything."""
        left = tuple(member for member in self.living if member not in lost)
        changed = len(left) < len(self.living)
        if changed and self.fixed:
            self._set(self.members, left)
        elif changed:
            self.before[self.size] = self.members
            self._set(left, left)
        return changed

    def lost_of(self, size: int, unpublished: Collection[UUID] = ()) -> tuple[tuple[int, ...], tuple[UUID, ...]]:
        """Returns the ranks and names of the members lost since the group had `size` members; nothing if it never had.

        The ranks are those of that time. `unpublished`: losses that the view does not have yet.
        """
        before = self.before.get(size, self.members if size == self.size else ())
        lost = [(rank, member) for rank, member in enumerate(before) if member in unpublished or member not in self.members]
        return tuple(rank for rank, _ in lost), tuple(member for _, member in lost)

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """The ranks that have no living member; none unless `fixed`."""
        if len(self.living) == self.size:
            return ()
        return tuple(rank for rank, member in enumerate(self.members) if member not in self.living)

    def _set(self, members: tuple[UUID, ...], living: tuple[UUID, ...]) -> None:
        self.members = members
        self.living = living
        self.size = len(members)
        self.rank = members.index(self.own)


def arrange(
    members: Sequence[UUID], here: Sequence[UUID], wanted: Mapping[UUID, int], *, fixed: bool = False
) -> tuple[UUID, ...]:
    """Returns the members by rank, once newcomers have joined.

    `members` are those of before, `here` all who are there. Usually the members who are there close up, and newcomers follow.
    With `fixed`, members keep their ranks. A newcomer takes the rank that it wants if that is free, or else the lowest free one.
    Newcomers without a free rank are left out.
    """
    newcomers = [one for one in here if one not in members]
    if not fixed:
        return (*(one for one in members if one in here), *newcomers)
    made = list(members)
    free = [rank for rank, one in enumerate(members) if one not in here]
    for one in newcomers:
        if wanted.get(one, -1) in free:
            free.remove(wanted[one])
            made[wanted[one]] = one
    rest = (one for one in newcomers if one not in made)
    for rank, one in zip(free, rest, strict=False):
        made[rank] = one
    return tuple(made)


def renumber(group: Any, view: View, world: View) -> None:
    """Brings torch's table of global ranks up to date for one group."""
    if group not in c10d._world.pg_group_ranks:
        return  # it is being made: torch fills in the table afterwards
    table = c10d._world.pg_group_ranks[group]
    before = view.before.get(len(table))
    if view is world and group is not c10d.GroupMember.WORLD and before is not None:  # its global ranks are another backend's
        left = [one for one, member in zip(sorted(table, key=table.__getitem__), before, strict=True) if member in view.members]
        c10d._world.pg_group_ranks[group] = {number: rank for rank, number in enumerate(left)}
        return
    numbers = {member: rank for rank, member in enumerate(world.members)}
    c10d._world.pg_group_ranks[group] = {numbers[member]: rank for rank, member in enumerate(view.members) if member in numbers}
