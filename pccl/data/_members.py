"""Who takes part, as a process group or a communicator knows it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch.distributed as dist

from pccl._peer.communicator import Communicator


def communicator_of(own: Communicator | None) -> Communicator | None:
    """Returns the communicator that was given, or that of the process group; None without either."""
    if own is not None:
        return own
    return getattr(dist.GroupMember.WORLD, "communicator", None) if dist.is_initialized() else None


def rank_in(comm: Communicator) -> int:
    """Returns the rank of this process: that in the process group, if it is that group's communicator."""
    group: Any = dist.GroupMember.WORLD if dist.is_initialized() else None
    return int(group.rank()) if getattr(group, "communicator", None) is comm else comm.rank


def founders(own: Communicator | None) -> tuple[tuple[Hashable, ...], Hashable] | None:
    """Returns the members that all know alike before they have told each other anything, and this one; None: nobody knows.

    The process group was made with them, and no loss changes them. A communicator has none before the first `sync`
    but this one, so a commit with others is refused.
    """
    if own is not None:
        return (own.uuid,), own.uuid
    if communicator_of(None) is None:
        return None
    view = dist.GroupMember.WORLD._launcher.view  # type: ignore[union-attr]
    return view.founders, view.own
