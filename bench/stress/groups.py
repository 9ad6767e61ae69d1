"""Who is in the next group, for backends whose groups do not survive a death: what torchrun's agent does. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Group:
    """The next group: its members by rank."""

    generation: int
    members: tuple[int, ...]


class Agent:
    """Collects those that wait. A process that waits wants a new group, so all others are called out of theirs."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds that a member may take to come
        self._members: set[int] = set()
        self._waiting: set[int] = set()
        self._since: float | None = None  # when the others were called
        self.formed = 0

    def waits(self, serial: int) -> None:
        """It is in no group."""
        self._waiting.add(serial)

    def gone(self, serial: int) -> None:
        """It has ended."""
        self._waiting.discard(serial)
        self._members.discard(serial)

    def orders(self, now: float, living: Collection[int]) -> list[tuple[int, dict[str, Any]]]:
        """What to tell whom."""
        called, group = self.look(now, living)
        orders: list[tuple[int, dict[str, Any]]] = [(serial, {"order": "regroup"}) for serial in called]
        if group is not None:
            about = {"order": "group", "generation": group.generation, "world": len(group.members)}
            orders += [(serial, {**about, "rank": rank}) for rank, serial in enumerate(group.members)]
        return orders

    def look(self, now: float, living: Collection[int]) -> tuple[list[int], Group | None]:
        """Whom to call out of the group in force, and the group to be formed, if it is time."""
        if len(self._waiting) == 0:
            return [], None
        late = sorted(self._members & set(living) - self._waiting)
        called: list[int] = []
        if self._since is None:
            self._since, called = now, late
        if len(self._waiting) < 2 or (late and now - self._since < self._patience):
            return called, None
        self.formed += 1
        self._members, self._waiting, self._since = set(self._waiting), set(), None
        return called, Group(generation=self.formed, members=tuple(sorted(self._members)))
