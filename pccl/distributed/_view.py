"""Who is in a process group: its members and their ranks, and the tables that torch.distributed keeps of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from torch.distributed import distributed_c10d as c10d


class View:
    """The living members of a group in the order of their ranks, as agreed by the ops that have ended.

    `founders` are the members that the group was made of: ranks inside the core refer to them as long as the group exists.
    """

    __slots__ = ("before", "founders", "members", "own", "places", "rank", "size")

    def __init__(self, founders: Sequence[UUID], own: UUID) -> None:
        self.own = own
        self.founders = tuple(founders)
        self.before: dict[int, tuple[UUID, ...]] = {}
        """The members before each loss, by their number."""
        self.places = {member: place for place, member in enumerate(self.founders)}
        self._set(self.founders)

    def lose(self, lost: Collection[UUID]) -> bool:
        """Takes lost members out; the survivors close up and keep their order. Whether that changed anything."""
        left = tuple(member for member in self.members if member not in lost)
        changed = len(left) < self.size
        if changed:
            self.before[self.size] = self.members
            self._set(left)
        return changed

    def lost_of(self, size: int) -> tuple[tuple[int, ...], tuple[UUID, ...]]:
        """Returns the ranks and names of the members lost since the group had `size` members; nothing if it never had.

        The ranks are those of that time.
        """
        lost = [(rank, member) for rank, member in enumerate(self.before.get(size, ())) if member not in self.members]
        return tuple(rank for rank, _ in lost), tuple(member for _, member in lost)

    def _set(self, members: tuple[UUID, ...]) -> None:
        self.members = members
        self.size = len(members)
        self.rank = members.index(self.own)

    def __repr__(self) -> str:
        return f"<View rank {self.rank} of {self.size}, founded by {len(self.founders)}>"


def renumber(group: Any, view: View, world: View) -> None:
    """Brings torch's table of global ranks up to date for one group."""
    if group not in c10d._world.pg_group_ranks:
        return  # it is being made: torch fills in the table afterwards
    numbers = {member: rank for rank, member in enumerate(world.members)}
    c10d._world.pg_group_ranks[group] = {numbers[member]: rank for rank, member in enumerate(view.members) if member in numbers}
