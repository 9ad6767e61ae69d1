"""Members as threads of one process, whose collectives end alike on all survivors, and who die at any message."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from pccl._core.errors import PeerLostError, Result
from pccl._ops.collectives import Collective


class Dead(BaseException):
    """Ends the threads of a member that was killed."""


class World:
    """Who lives, and the operations under way."""

    def __init__(self, members: int) -> None:
        self.ids = [UUID(int=member + 1) for member in range(members)]
        self.lock = threading.Condition()
        self.dead: set[UUID] = set()
        self.ops: dict[tuple[int, tuple[UUID, ...]], Op] = {}
        self.launched = dict.fromkeys(self.ids, 0)
        self.dies_at: dict[UUID, int] = {}
        """At which of its launches a member dies."""
        self.members: list[Any] = []
        self.told: dict[int, Any] = {}
        self.open: set[tuple[UUID, int]] = set()
        """Ops that their member has not waited for: they would block its next vote."""
        self.tickets: list[Any] = []  # so that no two have one id

    def kill(self, member: UUID) -> None:
        """With the lock."""
        self.dead.add(member)
        for op in self.ops.values():
            if member in op.members and not op.done:
                op.lost = op.done = True
        self.lock.notify_all()


class Op:
    """A collective of some members: done for all or lost for all."""

    def __init__(self, world: World, kind: Collective, members: tuple[UUID, ...]) -> None:
        self.world, self.kind, self.members = world, kind, members
        self.posts: dict[UUID, dict] = {}
        self.done = self.lost = False

    def finish(self) -> None:
        posts = [self.posts[member] for member in self.members]
        if self.kind is Collective.SEND:
            sent, received = posts
            assert sent["count"] == received["count"], "a message has another length than its receiver expects"
            ctypes.memmove(received["recv"], sent["send"], sent["count"])
        elif self.kind is Collective.BROADCAST:
            source = posts[posts[0]["root"]]
            for post in posts:
                if post is not source:
                    ctypes.memmove(post["recv"], source["send"], post["count"])
        else:
            size = posts[0]["dtype"].itemsize
            counts = [size * one for one in posts[0].get("recv_counts") or [posts[0]["count"]] * len(posts)]
            parts = [ctypes.string_at(post["send"], count) for post, count in zip(posts, counts, strict=True)]
            for post in posts:
                joined = b"".join(parts)
                ctypes.memmove(post["recv"], joined, len(joined))
        self.done = True


class Ticket:
    """One member's end of an op."""

    def __init__(self, op: Op, own: UUID) -> None:
        self.op, self.own = op, own

    def wait(self, timeout: float | None = None) -> None:
        world = self.op.world
        with world.lock:
            world.open.discard((self.own, id(self)))
            if not world.lock.wait_for(lambda: self.op.done or self.own in world.dead, timeout=30):
                raise AssertionError(f"nobody ends a {self.op.kind.name} of {self.op.members}")
            if self.own in world.dead:
                raise Dead
            if self.op.lost:
                raise PeerLostError(Result.RANK_CONNECTION_LOST, "launch", "a member was lost")


class FakeComm:
    """The Comm of one member."""

    def __init__(self, world: World, own: int) -> None:
        self.world, self.own = world, world.ids[own]
        self._handle: Any = SimpleNamespace(closed=False)

    def group(self, members):
        return tuple(members)

    def close(self) -> None:
        with self.world.lock:
            self.world.kill(self.own)

    def launch(self, kind, *, group, tag, **arguments):
        world = self.world
        with world.lock:
            if self.own in world.dead:
                raise Dead
            world.launched[self.own] += 1
            if world.launched[self.own] == world.dies_at.get(self.own):
                world.kill(self.own)
                raise Dead
            key = tag, group
            op = world.ops.setdefault(key, Op(world, kind, group))
            assert op.kind is kind
            assert self.own not in op.posts, "a tag is used twice"
            op.posts[self.own] = arguments
            if not op.done and world.dead.intersection(group):
                op.lost = op.done = True
            if not op.done and len(op.posts) == len(group):
                op.finish()
            if len(op.posts) == len([one for one in group if one not in world.dead]) and op.done:
                world.ops.pop(key)
            world.lock.notify_all()
            ticket = Ticket(op, self.own)
            world.open.add((self.own, id(ticket)))
            world.tickets.append(ticket)
            return ticket


def run(works: list[Callable[[], object]]) -> list[object]:
    """Runs these at once. What each returns, or the exception that ended it."""
    ends: list[object] = [None] * len(works)

    def one(place: int) -> None:
        try:
            ends[place] = works[place]()
        except BaseException as error:
            ends[place] = error

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a member hangs"
    return ends
