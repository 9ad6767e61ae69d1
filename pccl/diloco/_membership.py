"""Who takes part in a run: lets newcomers in, and brings all members to the same state.

All members meet after each outer step. A newcomer comes out of `connect` in the middle of such a meeting, and goes on in it as
the members do; that is why a peer begins with one, too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pccl._core.enums import Attribute
from pccl._core.errors import CallAgainError, JoinError, PCCLError, PeerLostError, UsageError, reason_of
from pccl._peer.communicator import Communicator
from pccl._peer.membership import NEWCOMERS_ONLY
from pccl._peer.shared_state import SharedState, SharedStateSyncInfo
from pccl.diloco._average import START_TAG, exchange
from pccl.diloco._state import Welcome, digest
from pccl.state import Entries, Start, decode
from pccl.state._local.agreement import Terms
from pccl.state._meeting import require_alike_peers, told_of
from pccl.state._start import broadcast_bytes, highest, standing, start_of

ATTEMPTS = 20
"""To get the state of the run; another one is made only after a death."""

VOTES_FOR_SHARDS = 1000
"""For which newcomers wait until all are there that hold a model together, with pauses: at least 10 s."""

PAUSE_SECONDS = 0.01
"""Between the meetings of peers that wait for more to come; doubled up to PAUSE_MOST_SECONDS."""

PAUSE_MOST_SECONDS = 0.2

SAY_SECONDS = 10.0
"""After which a peer says for how many others it waits, each time."""

_log = logging.getLogger("pccl.diloco")


@dataclass(frozen=True)
class Meeting:
    """How a meeting went: whether newcomers may have come, and how many bytes of the state this peer received."""

    admitted: bool
    rx_bytes: int


class Membership:
    """This peer's part in the run: `shared` is what all members hold alike, `welcome` what else a joiner gets.

    `outer_step`, a tensor of one element, is part of `shared`. When a run begins, the members with the highest one pass their
    state to the others. `terms`: what members need alike. `shards`: how many processes hold a model together, each in a peer
    group of its own. `copies`: a peer copies `shared` from a member while it waits to be let in.
    """

    def __init__(
        self,
        comm: Communicator,
        shared: SharedState,
        welcome: Welcome,
        outer_step: torch.Tensor,
        terms: Callable[[], Terms],
        shards: int = 1,
        *,
        copies: bool = False,
    ) -> None:
        self._comm = comm
        self._shards = shards
        self._copies = copies
        self._shared = shared
        self._welcome = welcome
        self._outer_step = outer_step
        self._terms = terms
        self._new = True
        self._begun = False
        self._revision = 0  # of the last sync
        self._has_state = True  # False: a sync that failed may have overwritten parts of it
        self.joined = False
        """Whether the run was under way when this peer entered it."""
        self.early = False
        """Whether this peer was let in before an outer step, in which it then takes part."""
        self._before_step = False  # this meeting is

    def enter(self, peers: torch.Tensor, begin: bool | None = None) -> bool:
        """Becomes a member, and waits, unless the run is under way, until it has `peers` members of all groups.

        Returns whether it has connected the communicator. `peers`, of one element, is part of the shared state, so that all
        members take the same branch. `begin`: see Communicator.connect.
        """
        connects = not _is_connected(self._comm)
        if connects:
            if self._copies:
                self._comm._copy(self._shared)  # and gives it once the run is under way: one that begins has no state yet
            self._comm.connect(begin=begin)
        self._revision = self._comm._synced  # of another state, which this one takes over from
        self.meet(advances=False)
        pause = PAUSE_SECONDS
        said = time.monotonic()
        while not self.joined and self._comm.global_world_size < int(peers):
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_SECONDS)
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                here = self._comm.global_world_size
                _log.warning("waiting for peers: %d of the %d with which the run begins are here", here, int(peers))
            self.meet(advances=False)
        self._begun = True
        if self._copies:
            self._comm._offer(self._shared)
        return connects

    def leave(self) -> None:
        """Gives the shared state to newcomers no more, and lets `enter` be called again. The communicator stays open.

        To members that all enter again, the run is not under way: whoever comes in meanwhile has missed nothing.
        """
        self._begun = self.joined = self.early = False
        if self._copies:
            with contextlib.suppress(PCCLError):
                self._comm._offer(None)

    def admit(self) -> Meeting | None:
        """Lets newcomers in before an outer step is made, to the state that the last one has left. None: nobody waits.

        Newcomers have copied it, and take part in the outer step. If a member leaves, the meeting after the step lets it go.
        """
        if self._comm._pending() != NEWCOMERS_ONLY:
            return None
        self._before_step = True
        try:
            return self.meet(advances=False)
        finally:
            self._before_step = False

    def meet(self, *, advances: bool = True) -> Meeting:
        """Lets in who waits, and makes the shared state the same bytes on all members. Waits for all of them.

        `advances`: all members have made an outer step since the last meeting. JoinError: at a newcomer, or where a run begins.
        UsageError: members differ in their models, optimizers or settings. At a joiner it is raised there alone, and on all where
        a run begins.
        """
        admitted = self._admit()
        info = self._elect_and_sync() if admitted else self._sync(self._revision + advances)
        self._new = False
        return Meeting(admitted, info.rx_bytes)

    def part(self) -> Meeting:
        """The last meeting of members that are done, which lets nobody in: the shared state is the same bytes on all of them.

        If somebody waits to be let in, it is but a barrier, so that members that are not done may make a meeting of it.
        """
        received = 0
        if not self._comm.are_peers_pending():
            with contextlib.suppress(CallAgainError):
                received = self._sync_once(self._revision + 1).rx_bytes
        return Meeting(False, received)

    # ---- all members of all peer groups ----

    def _admit(self) -> bool:
        """Lets in who waits; whether somebody may have come. Votes of all members, whose answers are the same on all.

        A newcomer comes out of `connect` after `update_topology` here, and goes on with the next vote, as the members do. Where
        several processes hold a model together, it is waited for the others of them, so that none begins alone.
        """
        comm = self._comm
        admitted = self._new
        votes = 0
        while True:
            if comm.are_peers_pending():
                with contextlib.suppress(CallAgainError):  # on all members alike: then they still wait
                    comm.update_topology()
                admitted, votes = True, 0
            elif not admitted or not self._is_torn():
                return admitted
            elif votes < VOTES_FOR_SHARDS:
                time.sleep(PAUSE_SECONDS)
                votes += 1
            elif self._new:
                raise JoinError(f"this peer could not join the run: not all {self._shards} processes of its replica are here")
            else:
                return admitted

    def _is_torn(self) -> bool:
        """Whether peer groups have different numbers of members, so that a model is not whole."""
        if self._shards == 1:
            return False
        largest = self._comm.get_attribute(Attribute.LARGEST_PEER_GROUP_WORLD_SIZE)
        return self._comm.global_world_size != self._shards * largest

    # ---- all members of the own peer group ----

    def _sync_once(self, revision: int) -> SharedStateSyncInfo:
        self._shared.revision = revision
        info = self._comm.sync_shared_state(self._shared)
        self._revision = self._shared.revision
        return info

    def _sync(self, revision: int) -> SharedStateSyncInfo:
        """Where all members hold the state, and nobody has come."""
        failure: PCCLError | None = None
        for _ in range(ATTEMPTS):
            try:
                return self._sync_once(revision)
            except CallAgainError as error:  # on all members of the group alike
                failure = error
        raise _no_state(failure) from failure

    def _elect_and_sync(self) -> SharedStateSyncInfo:
        """Finds out who has the state of the run, or of the one that begins, and brings it to the others."""
        failure: PCCLError | None = None
        run_is_under_way = False
        for _ in range(ATTEMPTS):
            step = int(self._outer_step) if self._has_state else 0
            terms = self._terms()
            told = highest(self._comm, [standing(step, begun=self._begun), self._revision, *told_of(terms)], tag=START_TAG)
            start, revision = start_of(told[0]), told[1]
            fresh = not start.begun and not start.step
            try:
                require_alike_peers("DiLoCo", self._comm, terms, told[2:], known=self._begun, fresh=fresh)
            except PeerLostError as error:
                failure = error
                continue
            if run_is_under_way and not start.begun:
                break  # all who were in it have died
            run_is_under_way = start.begun
            gives = self._has_state and start == Start(self._begun, step)
            if start.begun or start.step or revision:  # the master lets a new state take over from a lost one above 0 only
                revision += 1
            try:
                info = self._sync_once(revision if gives else 0)
            except CallAgainError as error:  # on all members of the group alike: those who had the state have died
                failure = error
                self._has_state = gives
                continue
            self._has_state = True
            self.joined = start.begun and not self._begun
            self._bring_up_to_date(gives)
            return info
        raise _no_state(failure) from failure

    def _bring_up_to_date(self, gives: bool) -> None:
        """Passes on what is not shared. Of the members who can give it the longest-standing does; if it dies, the next one."""
        comm = self._comm
        takes = self._new or not gives
        for _ in range(ATTEMPTS):
            with contextlib.suppress(PeerLostError, CallAgainError):  # on all members of the group alike
                told = exchange(comm, float(gives))
                if len(told) == 1:
                    if gives:
                        return
                    raise _no_state(None)
                givers = [rank for rank, member in enumerate(comm._snapshot) if told.get(member)]
                if not givers:
                    raise _no_state(None)
                is_giver = comm.rank == givers[0]
                own = self._welcome.give(early=self._before_step) if is_giver else None
                body = broadcast_bytes(functools.partial(comm.broadcast, root=givers[0]), own)
                self._share(decode(body), is_giver=is_giver, takes=takes and not is_giver)
                return
        raise _no_state(None)

    def _share(self, told: dict[str, Any], *, is_giver: bool, takes: bool) -> None:
        """Brings frozen parameters and buffers to those who lack them. Blocks until all members have what they take."""
        frozen, own = self._welcome.frozen(), self._welcome.buffers()
        if takes:
            self._welcome.prepare(told)
        self._sync_entries(frozen, gives=not takes)
        same = is_giver or (not takes and digest(own) == told["digest"])
        # A member whose buffers differ from the giver's keeps them, and helps to pass those on, in copies.
        self._sync_entries(own if same or takes else own.fitted(told["buffers"], copy=True), gives=same)
        if takes:
            self._welcome.take(told)
            self.early = told["early"]

    def _sync_entries(self, entries: Entries, *, gives: bool) -> None:
        reached = entries.sync(self._comm, self._revision + 1 if gives else 0)
        self._revision = self._revision if reached is None else reached


def _no_state(failure: PCCLError | None) -> JoinError:
    why = "" if failure is None else f" ({reason_of(failure)})"
    return JoinError(f"this peer could not join the run: no member that has its state is left{why}")


def _is_connected(comm: Communicator) -> bool:
    try:
        return comm.world_size > 0
    except UsageError:  # never connected; `connect` tells of one that is closed
        return False
