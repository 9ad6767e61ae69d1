"""Who takes part in a run: lets newcomers in, and brings all members to the same state.

All members meet after each outer step. A newcomer comes out of `connect` in the middle of such a meeting, and goes on in it as
the members do; that is why a peer begins with one, too.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import torch

from pccl._collectives import roll
from pccl._communicator import Communicator
from pccl._enums import Attribute
from pccl._errors import CallAgainError, JoinError, PCCLError, PeerLostError, UsageError
from pccl._state import SharedState, SharedStateSyncInfo
from pccl.diloco._average import ROLL_TAG
from pccl.diloco._state import Welcome
from pccl.state import LIMIT_BYTES

ATTEMPTS = 20
"""To get the state of the run; another one is made only after a death."""

VOTES_FOR_SHARDS = 1000
"""For which newcomers wait until all are there that hold a model together, with pauses: at least 10 s."""

PAUSE_SECONDS = 0.01
"""Between the meetings of peers that wait for more to come; doubled up to PAUSE_MOST_SECONDS."""

PAUSE_MOST_SECONDS = 0.2


@dataclass(frozen=True)
class Meeting:
    """How a meeting went: whether newcomers may have come, and how many bytes of the state this peer sent and received."""

    admitted: bool
    tx_bytes: int
    rx_bytes: int


class Membership:
    """This peer's part in the run: `shared` is what all members hold alike, `welcome` what else a joiner gets.

    `shards`: how many processes hold a model together, each in a peer group of its own.
    """

    def __init__(self, comm: Communicator, shared: SharedState, welcome: Welcome, shards: int = 1) -> None:
        self._comm = comm
        self._shards = shards
        self._shared = shared
        self._welcome = welcome
        self._new = True

    def enter(self, peers: torch.Tensor, outer_step: torch.Tensor) -> bool:
        """Becomes a member, and waits, as long as no outer step was made, until the run has `peers` members of all groups.

        Whether it has connected the communicator. Both tensors, of one element, are part of the shared state, so that all members
        take the same branch.
        """
        connects = not _is_connected(self._comm)
        if connects:
            self._comm.connect()
        self.meet()
        pause = PAUSE_SECONDS
        while int(outer_step) == 0 and self._comm.global_world_size < int(peers):
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_SECONDS)
            self.meet()
        return connects

    def meet(self) -> Meeting:
        """Lets in who waits, and makes the shared state the same bytes on all members. Waits for all of them.

        A member that has changed the state pushes its revision first. JoinError: at a newcomer only. UsageError: this peer's
        model or settings are others than those of the members; it is no member any more.
        """
        admitted = self._admit()
        info = self._sync()
        if admitted:
            self._bring_up_to_date()
        self._new = False
        return Meeting(admitted, info.tx_bytes, info.rx_bytes)

    def part(self) -> Meeting:
        """The last meeting of members that are done, which lets nobody in: the shared state is the same bytes on all of them.

        If somebody waits to be let in, it is but a barrier, so that members that are not done may make a meeting of it.
        """
        if self._comm.are_peers_pending():
            return Meeting(False, 0, 0)
        with contextlib.suppress(CallAgainError):
            info = self._comm.sync_shared_state(self._shared)
            return Meeting(False, info.tx_bytes, info.rx_bytes)
        return Meeting(False, 0, 0)

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
                raise JoinError(
                    f"this peer could not join the run: not all {self._shards} that hold its model together have come"
                )
            else:
                return admitted

    def _is_torn(self) -> bool:
        """Whether peer groups have different numbers of members, so that a model is not whole."""
        if self._shards == 1:
            return False
        largest = self._comm.get_attribute(Attribute.LARGEST_PEER_GROUP_WORLD_SIZE)
        return self._comm.global_world_size != self._shards * largest

    # ---- all members of the own peer group ----

    def _sync(self) -> SharedStateSyncInfo:
        failure: PCCLError | None = None
        for _ in range(ATTEMPTS):
            try:
                return self._comm.sync_shared_state(self._shared)
            except CallAgainError as error:  # on all members of the group alike: those who had the state have died
                failure = error
        raise JoinError(f"this peer could not join the run: nobody is left who has its state ({failure})") from failure

    def _bring_up_to_date(self) -> None:
        """Gives newcomers what is not shared. Whoever has been there for longest gives it; if it dies, the next one does."""
        comm = self._comm
        while True:
            with contextlib.suppress(PeerLostError):  # on all members of the group alike
                if len(roll(comm, torch.ones(1, device="cpu"), ROLL_TAG)) == 1:
                    return
                gives = comm.rank == 0
                content = self._welcome.give() if gives else bytearray()
                length = torch.tensor([len(content)], device="cpu")
                comm.broadcast(length)
                if not 0 <= int(length) <= LIMIT_BYTES:
                    raise JoinError(f"a member announced a state of {int(length)} bytes, and at most {LIMIT_BYTES} are accepted")
                body = torch.empty(int(length), dtype=torch.uint8, device="cpu")
                if gives:
                    body = torch.frombuffer(content, dtype=torch.uint8)
                comm.broadcast(body)
                if self._new and not gives:
                    self._welcome.take(body.numpy().tobytes())
                return


def _is_connected(comm: Communicator) -> bool:
    try:
        return comm.world_size > 0
    except UsageError:  # never connected; `connect` tells of one that is closed
        return False
