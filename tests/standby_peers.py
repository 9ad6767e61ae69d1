"""Peers that ask often whether each master of their list answers."""

from __future__ import annotations

import contextlib
import logging
from multiprocessing.connection import Connection

from performers import PATIENCE, preload

from pccl import Communicator, PeerLostError
from pccl._peer import standby

preload(__name__)


class StandbyPeer:
    """Warns in a list of its own."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, masters: str) -> None:
        standby.FIRST_SECONDS = standby.PAUSE_SECONDS = 0.1
        self.warnings: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pccl").addHandler(handler)
        self.comm = Communicator(masters)

    def join(self, world: int) -> None:
        self.comm.connect(timeout=PATIENCE)
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def hear_of_losses(self, left: int) -> None:
        """Updates the topology until so many members are left."""
        while self.comm.world_size > left:
            with contextlib.suppress(PeerLostError):
                self.comm.update_topology(timeout=PATIENCE)

    def told(self) -> list[str]:
        """The warnings that name a list of masters."""
        return [one for one in self.warnings if "is on the list of masters" in one]

    def numbers(self) -> list[float | None]:
        """What each member has reported of a standby, by rank."""
        return [one.report.get("without_standby") for one in sorted(self.comm.diagnose().members, key=lambda one: one.rank)]

    def rank(self) -> int:
        return self.comm.rank
