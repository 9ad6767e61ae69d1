"""How members tell each other numbers: by small all-reduces whose contributors all of them know."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any
from uuid import UUID

import torch

from pccl._core.enums import ReduceOp
from pccl._core.errors import TooFewPeersError
from pccl._core.names import label_in
from pccl._ops.journal import Journal
from pccl._peer.communicator import Communicator
from pccl.data._members import rank_in
from pccl.state._local.agreement import Terms, require_alike

TAG = int.from_bytes(hashlib.blake2b(b"pccl.data", digest_size=8).digest(), "little") & ~7
"""Of the commit; the next numbers are those of an exchange. Members make all of them in the same order."""


def fingerprint(*settings: object) -> int:
    """Returns a number that differs where settings differ."""
    return zlib.crc32("\n".join(map(str, settings)).encode(errors="surrogateescape"))


def digest_of(data: Any) -> int:
    """Returns a number that differs where the terms of a sampler or of shards differ."""
    return Terms(data._terms()).digests()[0]


def require_same(data: Any, digests: Iterable[int], comm: Communicator, timeout: float | None, journal: Journal) -> None:
    """RuntimeError, on all members alike, names the first setting that differs. `digests`: what they have told of their terms."""
    rank = rank_in(comm)

    def tell(content: bytes) -> list[bytes]:
        return [bytes(one) for _, *one in sorted(tell_all(comm, [rank, *content], timeout, journal).values())]

    require_alike(type(data).__name__, Terms(data._terms()), [[one] for one in digests], tell, label_in(comm, rank), 0)


def require_state(state: Mapping[str, Any], own: Mapping[str, Any], what: str) -> None:
    """ValueError: a state that is to be loaded lacks something that this one's own has."""
    if missing := own.keys() - state.keys():
        raise ValueError(f"the state is of no {what}: it lacks {', '.join(map(repr, sorted(missing)))}")


def require_order(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """ValueError: a state that is to be loaded is of samples in another order."""
    for name in ("seed", "shuffle"):
        if state[name] != own[name]:
            raise ValueError(f"the state has {name}={state[name]}, not {own[name]}; pass what the run passed that saved it")


def require_dealt(contributors: Set[object], members: Iterable[object]) -> None:
    """RuntimeError: some contributors to a commit are not among the members for whom the data was dealt out."""
    if strangers := contributors - set(members):
        raise RuntimeError(
            f"call sync() first, on all members: the data was not dealt out to {len(strangers)} of the "
            f"{len(contributors)} contributors to this commit, so members may have read the same data"
        )


def require_whole(journal: Journal, *calls: str) -> None:
    """RuntimeError: one of these calls was cut short, and the others go on with what this member has told them."""
    if (cut := journal.cut_short) in calls:
        raise RuntimeError(f"{cut}() was cut short by a timeout or a signal, and other members wait for it; repeat it first")


def sum_over(comm: Communicator, tag: int, values: torch.Tensor, timeout: float | None) -> frozenset[UUID] | None:
    """Replaces a tensor by the sum over the members who live. Returns who is in it, or None if ranges of it differ in that.

    The answer is the same on all of them. PCCLTimeoutError: call it again with the same tensor.
    """
    try:
        found = comm.all_reduce(values, op=ReduceOp.SUM, tag=tag, survivors=True, timeout=timeout).contributors
    except TooFewPeersError:
        return frozenset([comm.uuid])
    peers = {one.peers for one in found}
    return peers.pop() if len(peers) == 1 else None


def tell_all(comm: Communicator, numbers: Sequence[int], timeout: float | None, journal: Journal) -> dict[UUID, list[int]]:
    """Returns what each member who lives tells, the same on all of them. A round that loses a member is repeated.

    Each round takes up to three steps of `journal`. In the repetition of a call that was cut short `numbers` must be the same.
    """
    meet, measure, tell = (functools.partial(sum_over, comm, TAG + number) for number in (1, 2, 3))
    while True:
        living, _ = journal.step(meet, torch.ones(1, dtype=torch.int64, device="cpu"), timeout)
        assert living is not None
        here = sorted(living)
        own = here.index(comm.uuid)
        lengths = torch.zeros(len(here), dtype=torch.int64, device="cpu")
        lengths[own] = len(numbers)
        found, lengths = journal.step(measure, lengths, timeout)
        if found != living:
            continue
        ends = lengths.cumsum(0).tolist()
        content = torch.zeros(max(ends[-1], 1), dtype=torch.int64, device="cpu")
        content[ends[own] - len(numbers) : ends[own]] = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        found, content = journal.step(tell, content, timeout)
        if found != living:
            continue
        told = content.tolist()
        return {member: told[end - size : end] for member, end, size in zip(here, ends, lengths.tolist(), strict=True)}
