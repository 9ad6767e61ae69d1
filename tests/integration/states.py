"""States of communicators in one process, for tests of shared state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from peers import PATIENCE, Background, on_all

from pccl import Communicator, PCCLError, SharedState, SharedStateSyncStrategy, TensorInfo
from pccl._peer.shared_state import sync_report

ENFORCE = SharedStateSyncStrategy.ENFORCE_POPULAR
RECEIVE = SharedStateSyncStrategy.RECEIVE_ONLY
SEND = SharedStateSyncStrategy.SEND_ONLY


class Held:
    """A state and the arrays it is made of."""

    def __init__(self, arrays: Sequence[Any], revision: int = 0, names: Sequence[str] | None = None) -> None:
        self.arrays = list(arrays)
        names = names or [f"entry {at}" for at in range(len(self.arrays))]
        self.shared = SharedState([TensorInfo.from_numpy(array, name) for array, name in zip(self.arrays, names, strict=True)])
        self.shared.revision = revision

    def sync(self, comm: Communicator, strategy: SharedStateSyncStrategy = ENFORCE) -> Any:
        try:
            return comm.sync_shared_state(self.shared, strategy, timeout=PATIENCE)
        except PCCLError as error:
            return error.result


def filled(seed: int, *sizes: int) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(size) for size in sizes]


def sync_all(
    comms: list[Communicator], held: list[Held], strategies: Sequence[SharedStateSyncStrategy] | None = None
) -> list[Any]:
    return on_all(comms, lambda comm, rank: held[rank].sync(comm, strategies[rank] if strategies else ENFORCE))


def same(held: list[Held]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for one in held[1:] for a, b in zip(held[0].arrays, one.arrays, strict=True))


def voted(held: Held, comm: Communicator, strategy: SharedStateSyncStrategy = ENFORCE) -> Background:
    """A sync that has voted and waits for the others."""
    before = sync_report(comm._handle).seconds
    running = Background(held.sync, comm, strategy)
    deadline = time.monotonic() + PATIENCE
    while (report := sync_report(comm._handle)).seconds == before or report.hashing:
        assert time.monotonic() < deadline, "the sync does not vote"
        time.sleep(0.001)
    return running
