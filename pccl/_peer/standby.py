"""Whether each master of a list answers: without this, nobody would know of a standby that is not there until it is needed."""

from __future__ import annotations

import contextlib
import queue
import weakref

from pccl._core.address import Endpoint
from pccl._core.errors import PCCLError
from pccl._peer.membership import Membership
from pccl._watch.diagnosis import require_master

FIRST_SECONDS = 1.0
"""After this peer has joined: masters may start together with peers."""

PAUSE_SECONDS = 15.0
"""After all masters were asked."""

ANSWER_SECONDS = 3.0
"""For the addresses of a name, and for the answer of each."""

JOIN_SECONDS = 0.2
"""For a question under way. Later the thread finds that it has to end."""


def watch(
    peer: weakref.ref[Membership],
    endpoints: list[Endpoint],
    keys: bytes | None,
    insecure: bool,
    ends: queue.SimpleQueue[None],
) -> None:
    """Reports `without_standby` while a master of the list does not answer, if this peer has rank 0, until `ends` has an item."""
    import logging  # which a peer alone does not need

    log = logging.getLogger("pccl")
    missing: dict[Endpoint, str] = {}
    pause = FIRST_SECONDS
    while True:
        with contextlib.suppress(queue.Empty):
            return ends.get(timeout=pause)
        pause = PAUSE_SECONDS
        if not _is_first(peer):
            continue
        found = {}
        for one in endpoints:
            try:
                require_master(one, ANSWER_SECONDS, keys, insecure)
            except PCCLError as error:
                found[one] = error.detail
        comm = peer()
        if comm is None or not ends.empty():
            return None
        for one in found.keys() - missing.keys():
            log.warning("%s is on the list of masters and cannot take the run over: %s. Start a master there", one, found[one])
        for one in missing.keys() - found.keys():
            log.info("%s is on the list of masters and answers again", one)
        missing = found
        comm._note_protections(standby=bool(missing))
        del comm  # the pause must not keep it alive


def _is_first(peer: weakref.ref[Membership]) -> bool:
    comm = peer()
    try:
        return comm is not None and comm.rank == 0
    except PCCLError:  # it has left, or lost its master
        return False
