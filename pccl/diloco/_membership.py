"""Who takes part in a run: lets newcomers in, and brings all members to the same state.

All members meet after each outer step. A newcomer comes out of `connect` in the middle of such a meeting, and goes on in it as
the members do; that is why a peer begins with one, too.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import torch

from pccl._communicator import Communicator
from pccl._errors import CallAgainError, PCCLError, PeerLostError, TooFewPeersError, UsageError
from pccl._state import SharedState
from pccl.diloco._state import Welcome

ATTEMPTS = 20
"""In one meeting; another one is made only after a death."""

PAUSE_SECONDS = 0.01
"""Between the meetings of peers that wait for more to come; doubled up to PAUSE_MOST_SECONDS."""

PAUSE_MOST_SECONDS = 0.2


class JoinError(RuntimeError):
    """This peer could not join the run: nobody is left who has its state. Start it again, and it begins a new run."""


@dataclass(frozen=True)
class Meeting:
    """How a meeting went: whether newcomers may have come, and how many bytes of the state this peer sent and received."""

    admitted: bool
    tx_bytes: int
    rx_bytes: int


class Membership:
    """This peer's part in the run: `shared` is what all members hold alike, `welcome` what else a joiner gets."""

    def __init__(self, comm: Communicator, shared: SharedState, welcome: Welcome) -> None:
        self._comm = comm
        self._shared = shared
        self._welcome = welcome
        self._new = True

    def enter(self, peers: int, outer_step: torch.Tensor) -> bool:
        """Becomes a member, and waits, as long as no outer step was made, until the run has `peers` members of all groups.

        Whether it has connected the communicator. `outer_step` is part of the shared state, so all members take the same branch.
        """
        connects = not _is_connected(self._comm)
        if connects:
            self._comm.connect()
        self.meet()
        pause = PAUSE_SECONDS
        while int(outer_step) == 0 and self._comm.global_world_size < peers:
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MOST_SECONDS)
            self.meet()
        return connects

    def meet(self) -> Meeting:
        """Lets in who waits, and makes the shared state the same bytes on all members. Waits for all of them.

        A member that has changed the state pushes its revision first. JoinError: at a newcomer only. UsageError: this peer's
        model or settings are others than those of the members; it is no member any more.
        """
        comm = self._comm
        admitted = self._new
        failure: PCCLError | None = None
        for _ in range(ATTEMPTS):
            try:
                if failure:
                    comm.update_topology()
                while comm.are_peers_pending():
                    comm.update_topology()
                    admitted = True
                info = comm.sync_shared_state(self._shared)
                if admitted and comm.world_size > 1:
                    self._bring_up_to_date()
                self._new = False
                return Meeting(admitted, info.tx_bytes, info.rx_bytes)
            except (CallAgainError, PeerLostError, TooFewPeersError) as error:
                # The same answer on all members, so all of them go round again, and with them whoever comes in by that.
                failure = error
                admitted = True
        assert failure is not None
        if self._new:
            raise JoinError(f"this peer could not join the run: nobody is left who has its state ({failure})") from failure
        raise failure

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

    def _bring_up_to_date(self) -> None:
        """Gives newcomers what is not shared. PeerLostError: the one who gives it has died, on all members alike."""
        comm = self._comm
        gives = comm.rank == 0
        content = self._welcome.give() if gives else b""
        length = torch.tensor([len(content)])
        comm.broadcast(length)
        body = torch.frombuffer(bytearray(content), dtype=torch.uint8) if gives else torch.empty(int(length), dtype=torch.uint8)
        comm.broadcast(body)
        if self._new and not gives:
            self._welcome.take(body.numpy().tobytes())


def _is_connected(comm: Communicator) -> bool:
    try:
        return comm.world_size > 0
    except UsageError:  # never connected; `connect` tells of one that is closed
        return False
