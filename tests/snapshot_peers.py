"""Peers that keep snapshots of plain tensors, and are killed."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch
from performers import PATIENCE, preload

from pccl import Communicator
from pccl.state import Snapshots, StateLostError

preload(__name__)

ROWS = 11


class SnapshotPeer:
    """A peer, with a matrix whose rows are divided, or tensors of its own."""

    def __init__(self, pipe: Connection, address: str, snapshots: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self._snapshots = Snapshots(**snapshots)
        self.log: list[Any] = []
        self.comm = Communicator(address)

    def join(self, world: int) -> None:
        self.comm.connect(timeout=PATIENCE)
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def admit(self, world: int) -> None:
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def _rows(self, rank: int, size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        part = torch.arange(ROWS * 3.0).reshape(ROWS, 3).tensor_split(size)[rank]
        begin = sum(len(one) for one in torch.empty(ROWS).tensor_split(size)[:rank])
        return part.clone(), {"w": ((ROWS, 3), (begin, 0))}

    def snapshot(self, step: int, rank: int, size: int) -> bool:
        part, shards = self._rows(rank, size)
        self.comm.snapshot({"w": part + step}, step=step, snapshots=self._snapshots, shards=shards, timeout=PATIENCE)
        return self.comm.wait_for_snapshot()

    def restore(self, rank: int, size: int) -> Any:
        """The step, and whether the rows are those of that step; the text of a StateLostError; None: a run begins."""
        part, shards = self._rows(rank, size)
        target = torch.full_like(part, -1)
        try:
            found = self.comm.restore({"w": target}, snapshots=self._snapshots, shards=shards, timeout=PATIENCE)
        except StateLostError as error:
            return str(error)
        return None if found is None else (found.step, torch.equal(target, part + found.step))

    def snapshot_own(self, step: int, part: str) -> bool:
        state = {"x": torch.full((len(part),), float(step))}
        self.comm.snapshot(state, step=step, snapshots=self._snapshots, part=part, timeout=PATIENCE)
        return self.comm.wait_for_snapshot()

    def restore_own(self, *parts: str) -> Any:
        """Step and names of all parts, and the content of these."""
        contents = []
        for part in parts:
            state = {"x": torch.full((len(part),), -1.0)} if part else {}
            found = self.comm.restore(state, snapshots=self._snapshots, part=part or None, timeout=PATIENCE)
            contents += [one.tolist() for one in state.values()]
        assert found is not None
        return found.step, sorted(found.parts), contents

    def holder(self) -> int:
        """The process that keeps this one's memory."""
        holder: Any = self.comm._vaults["tensors"].keeper.holder(start=False)
        return int.from_bytes(holder._end.getsockopt(1, 17, 4), "little")

    def leave(self) -> None:
        self.comm.drop_snapshots()
        self.comm.close()
