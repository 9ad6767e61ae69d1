"""Processes that train with a shared state of which a part changes in each step, and copy it before they are admitted."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from performers import PATIENCE, Performer, preload

from pccl import CallAgainError, Communicator, MasterNode, PeerLostError, ReduceOp, SharedState, TensorInfo, TooFewPeersError

preload(__name__)

CHANGED_PART = 50
"""The first 1 / CHANGED_PART of the large entry changes in each step."""


class Precopier:
    """A master, or a member."""

    def __init__(self, _pipe: Connection) -> None:
        self.log: list[Any] = []

    def serve(self) -> str:
        """Runs a master here; its address."""
        self._master = MasterNode("127.0.0.1:0", heartbeat_limit=20.0)
        self._master.run()
        return f"127.0.0.1:{self._master.port}"

    def join(self, address: str, mebibytes: int, seed: int) -> dict[str, Any]:
        """What the first sync has moved, and whether its own state was kept; or the error of that sync."""
        self._drawn = (mebibytes, seed)
        self._large = self._draw()
        self._steps = np.zeros(1, np.int64)
        infos = [TensorInfo.from_numpy(self._large, "large"), TensorInfo.from_numpy(self._steps, "steps")]
        self._state = SharedState(infos)
        self._comm = Communicator(address)
        self._comm.connect(state=self._state, timeout=PATIENCE)
        return self._sync()

    def _draw(self) -> np.ndarray:
        """The large entry that this peer begins with."""
        mebibytes, seed = self._drawn
        return np.full(mebibytes << 18, 1 + seed, np.float32)

    def _sync(self) -> dict[str, Any]:
        try:
            info = self._comm.sync_shared_state(self._state, timeout=PATIENCE)
        except CallAgainError as error:
            return {"error": type(error).__name__}
        own = np.array_equal(self._large, self._draw())
        return {"received": info.rx_bytes, "seconds": info.seconds, "own": own}

    def form(self, world: int) -> dict[str, Any]:
        """All members at once."""
        self._comm.wait_for_peers(world, timeout=PATIENCE)
        return self._sync()

    def train(self, end: str, part: int = CHANGED_PART, pause: float = 0.0) -> dict[str, Any]:
        """Until all have seen that the file `end` exists. How often members were lost, the last world size, and the hash.

        Each step changes the first 1 / `part` of the large entry, and then pauses before newcomers are let in.
        """
        losses, ends, world = 0, False, self._comm.world_size
        while not ends:
            while self._comm.are_peers_pending(timeout=PATIENCE):
                self._comm.update_topology(timeout=PATIENCE)
                self._state.push_revision()
                with contextlib.suppress(CallAgainError):
                    self._comm.sync_shared_state(self._state, timeout=PATIENCE)
            world = self._comm.world_size
            told = np.array([Path(end).exists()], np.float32)
            try:
                self._comm.all_reduce(told, op=ReduceOp.MAX, timeout=PATIENCE)
            except PeerLostError:
                losses += 1
                continue
            except TooFewPeersError:
                pass
            self._large[: self._large.size // part] += 1
            self._steps += 1
            ends = bool(told[0])
            time.sleep(pause)
        return {"losses": losses, "world": world, "steps": int(self._steps[0]), "hash": self._state.hash()}

    def close(self) -> None:
        self._comm.close()


def threads(process: Performer) -> list[str]:
    """The names of its threads; [] if it has died."""
    names = []
    for comm in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.append(comm.read_text().strip())
    return names


def await_thread(processes: list[Performer], name: str) -> Performer:
    """The first of the processes that has a thread of this name."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for process in processes:
            if name in threads(process):
                return process
        time.sleep(0.001)
    raise AssertionError(f"no process has a thread {name}")


def await_no_thread(processes: list[Performer], name: str) -> None:
    end = time.monotonic() + PATIENCE
    while any(name in threads(process) for process in processes):
        assert time.monotonic() < end, f"a thread {name} is left"
        time.sleep(0.001)
