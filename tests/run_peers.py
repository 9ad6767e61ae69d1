"""Peers of the runs of one master."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from performers import PATIENCE, preload

from pccl import Communicator, PCCLError

preload(__name__)


class RunPeer:
    """A peer of the run that its address names."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, recovery: float) -> None:
        self.comm = Communicator(address, master_recovery_limit=recovery)
        self.log: list[Any] = []

    def join(self, world: int) -> None:
        self.comm.connect(timeout=PATIENCE)
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def join_more(self, world: int) -> int:
        self.comm.wait_for_peers(world, timeout=PATIENCE)
        return self.comm.world_size

    def reduce(self, times: int = 1) -> float:
        """The members of the last one."""
        for _ in range(times):
            tensor = np.ones(1 << 15, np.float32)
            self.comm.all_reduce(tensor, retry=True)
        return float(tensor[0])

    def vote(self) -> str:
        """Needs a master. The result."""
        try:
            self.comm.update_topology(timeout=PATIENCE)
        except PCCLError as error:
            return error.result.name
        return "SUCCESS"

    def members(self) -> int:
        """As the master tells."""
        return len(self.comm.diagnose(timeout=PATIENCE).members)

    def leave(self) -> None:
        self.comm.close()
