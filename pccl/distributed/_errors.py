"""What a call of the process group raises: errors of PCCL that are errors of torch.distributed as well.

So a program catches them by either name: `except dist.DistBackendError`, which is a RuntimeError, or `except pccl.PCCLError`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch.distributed as dist

from pccl._core import errors
from pccl._core.errors import ConnectionFailedError, LossReason, PCCLError, PCCLTimeoutError, Result
from pccl._core.groups import why_gone
from pccl._core.names import rank_label, with_ranks
from pccl._exports import publish

if TYPE_CHECKING:
    from uuid import UUID

    _BackendError = RuntimeError
else:
    _BackendError = dist.DistBackendError


CLOSED_BY_PEER = "Connection closed by peer"
"""gloo's words for a loss, which programs and torchft look for."""


_TAG = re.compile(r"^tag \d+: | with tag \d+")
"""What errors of the core name. The program has not chosen the tag."""

_BARRIER = "called barrier"
"""The master's description of a barrier; a member that refuses its arguments also launches one."""


class CollectiveError(PCCLError, _BackendError):
    """A collective failed on every member of the group that called it."""


class PeerLostError(errors.PeerLostError, CollectiveError):
    """A collective ended because members of the group were lost.

    `ranks` are the ranks that they had in the group when the call was made, `members` are their uuids in the run, `names` what
    logs call them, `reasons` why they are gone, and `causes` what the master says of each. `call` and `detail` become the
    text; `told` has the last three by uuid.
    """

    def __init__(
        self,
        call: str,
        detail: str,
        ranks: tuple[int, ...],
        members: tuple[UUID, ...],
        told: Mapping[UUID, tuple[str, LossReason, str]] | None = None,
    ) -> None:
        known = [(told or {}).get(member, ("", LossReason.UNKNOWN, "")) for member in members]
        self.names = tuple(name for name, _, _ in known)
        self.reasons = tuple(reason for _, reason, _ in known)
        self.causes = tuple(why for _, _, why in known)
        labels = [rank_label(rank, name, one) for rank, name, one in zip(ranks, self.names, members, strict=False)]
        whys = [why_gone(reason, why) for _, reason, why in known]
        if any(label in detail for label in labels):
            detail = f"{detail}; why: {', '.join(whys)}"
        elif labels:
            lost = ", ".join(f"{label}: {why}" for label, why in zip(labels, whys, strict=False))
            detail = f"{detail}; lost: {lost}"
        super().__init__(Result.RANK_CONNECTION_LOST, call, f"{detail} ({CLOSED_BY_PEER})")
        self.ranks = ranks
        self.members = members


class CollectiveTimeoutError(PCCLTimeoutError, CollectiveError):
    """Not every member of the group joined a collective within the timeout of the call or of the group."""


def translated(error: PCCLError, call: str, members: Sequence[UUID], names: Mapping[UUID, str]) -> CollectiveError:
    """The error of the core as one of this module, with the name of the call that it ended, and ranks for peers."""
    text = _TAG.sub("", with_ranks(error.detail or str(error), members, names))
    if call != "barrier":
        text = text.replace(_BARRIER, f"{_BARRIER}, or refused its caller's arguments (see its own error)")
    if isinstance(error, PCCLTimeoutError):
        what, _, _ = text.partition("; the call stays in flight")
        return CollectiveTimeoutError(error.result, call, f"Timed out before all members of the group had joined it: {what}")
    lost = isinstance(error, (errors.PeerLostError, ConnectionFailedError))  # also a lost master, and an expulsion
    if lost and CLOSED_BY_PEER not in text:
        text = f"{text} ({CLOSED_BY_PEER})"
    return CollectiveError(error.result, call, text)


publish(globals())
