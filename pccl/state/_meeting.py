"""How the peers of a communicator compare their Terms, in a reduce of the highest of each number."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import torch

from pccl._core.names import label_in
from pccl._ops.journal import Journal
from pccl.state._local.agreement import Terms, TermsError, require_alike
from pccl.state._snapshots.talk import Talk
from pccl.state._start import raise_to_highest

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator
    from pccl._peer.shared_state import SharedState

_TAG = int.from_bytes(hashlib.blake2b(b"pccl.state", digest_size=8).digest(), "little") & ~7

_met: weakref.WeakKeyDictionary[Any, tuple[Journal, set[UUID]]] = weakref.WeakKeyDictionary()
"""By communicator: the members with whom the terms of a shared state were compared last."""


def told_of(terms: Terms) -> list[int]:
    """What a peer adds to its numbers in the reduce."""
    digests = terms.digests()
    return [*digests, *(~one for one in digests)]


def require_alike_peers(
    what: str, comm: Communicator, terms: Terms, told: Sequence[int], *, known: bool, fresh: bool, timeout: float | None = None
) -> None:
    """TermsError, on all alike where a run begins and else at a joiner: peers differ. `told`: the highest of all `told_of`.

    All call it alike. `known`: this peer is in a run that goes on. PeerLostError: a member was lost.
    """
    rows = [told[:2], [~one for one in told[2:]]]
    if rows[0][: 1 + fresh] == rows[1][: 1 + fresh]:
        return
    here = comm._snapshot
    talk = Talk(comm, here, here.index(comm.uuid), what, timeout)
    in_run = [place for place, (one,) in enumerate(talk.gather([known])) if one]
    require_alike(what, terms, rows, talk.gather_bytes, label_in(comm, talk.own), talk.own, known=in_run, fresh=fresh)


def meet(comm: Communicator, state: SharedState, terms: Terms, timeout: float | None) -> None:
    """Compares the terms of a shared state, if members have come since the last time: before each sync, on all alike.

    TermsError: they differ. A joiner is a member no longer then. PCCLTimeoutError: call it again.
    """
    journal, met = _met.setdefault(comm, (Journal(), set()))
    if met.issuperset(comm._snapshot):
        return
    known = comm.uuid in met
    with journal.call(comm, "sync_shared_state") as steps:
        own = torch.tensor([known, state.revision, ~state.revision, *told_of(terms)], dtype=torch.int64, device="cpu")
        _, values = steps.step(functools.partial(raise_to_highest, comm, _TAG), own, timeout)
        goes_on, revision, least, *told = values.tolist()
        fresh = not goes_on and revision == ~least
        try:
            require_alike_peers("SharedState", comm, terms, told, known=known, fresh=fresh, timeout=timeout)
        except TermsError:
            if goes_on:
                comm.close()  # the members must not wait for this peer
            raise
    met.clear()
    met.update(comm._snapshot)
