"""Tells programs and frameworks when the membership has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from pccl._exports import publish

_log = logging.getLogger("pccl.distributed")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of the members of the group of all."""

    rank: int
    """The rank of this process from now on."""
    world_size: int
    """The number of members from now on; with fixed membership the number of ranks, which stays."""
    members: tuple[UUID, ...]
    """Their uuids in the run, by rank. With fixed membership a lost rank has the uuid of the member that was lost."""
    lost: tuple[UUID, ...]
    """Members that were there before and are no more."""
    joined: tuple[UUID, ...]
    """Members that were not there before."""
    lost_ranks: tuple[int, ...] = ()
    """With fixed membership the ranks that have no member now."""
    names: dict[UUID, str] = field(default_factory=dict, hash=False)
    """What logs and errors call the members, the lost ones too: host names, unless the program sets others."""


_callbacks: dict[object, Callable[[Change], None]] = {}


def on_change(callback: Callable[[Change], None]) -> Callable[[], None]:
    """Calls `callback` after each change of the membership. Returns a function that ends this.

    The call comes in the thread that notices the change, inside the collective that ended without the lost member, or inside
    `Elastic.sync`; `torch.distributed.get_rank()` and `get_world_size()` give the new numbers by then. All members get the same
    changes in the same order. The callback must not make collective calls. An exception of it is logged, and changes nothing.

    When rank 0 is lost, the next member has rank 0 from then on: a program that writes checkpoints or logs on rank 0 alone looks
    at `change.rank` here.
    """
    key = object()
    _callbacks[key] = callback

    def end() -> None:
        _callbacks.pop(key, None)

    return end


def tell(change: Change) -> None:
    """Logs what a change does to the ranks, and calls the callbacks. The peer logs who was lost."""
    if change.lost and change.lost_ranks:
        ranks = ", ".join(map(str, change.lost_ranks))
        _log.warning("ranks kept for replacements: %s of %d; sums are scaled until then", ranks, change.world_size)
    elif change.lost:
        _log.warning("this process has rank %d of %d now", change.rank, change.world_size)
    for callback in list(_callbacks.values()):
        try:
            callback(change)
        except Exception:
            _log.exception("a callback of on_change failed")


publish(globals())
