"""Peers that keep snapshots of plain tensors, and are killed."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from performers import PATIENCE, preload

from pccl import Communicator, SharedState, TensorInfo
from pccl.state import Snapshots, StateLostError
from pccl.state._snapshots.talk import Talk

preload(__name__)

ROWS = 11


class _Refuses(torch.Tensor):
    """Nothing can be copied into it, which is seen when that is tried."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            raise RuntimeError("it refuses")
        return super().__torch_function__(func, types, args, kwargs or {})


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

    def votes(self, rank: int, rounds: int) -> list[bool]:
        """Votes, and a sync, at once after each snapshot, of which some members' take longer."""
        state = {"x": torch.full((1 << 20 if rank else 8,), 1.0)}
        shared = SharedState([TensorInfo.from_torch(torch.zeros(4), "shared")])
        found = []
        for step in range(rounds):
            for vote in (self.comm.update_topology, self.comm.optimize_topology, partial(self.comm.sync_shared_state, shared)):
                self.comm.snapshot(state, step=step, snapshots=self._snapshots, part=str(rank), timeout=PATIENCE)
                vote(timeout=PATIENCE)
                found.append(self.comm.wait_for_snapshot())
        return found

    def late(self, step: int, rank: int, size: int, late: int, where: str) -> tuple[bool, str]:
        """A snapshot for which one member is later than the others wait: whether it is complete, and why not."""
        keeper = self.comm._vaults["tensors"].keeper
        keeper._timeout = 0.5 if rank != late else PATIENCE
        before: Any = getattr(Talk, where)

        def slow(*arguments: Any) -> Any:
            setattr(Talk, where, before)
            time.sleep(2)
            return before(*arguments)

        if rank == late:
            setattr(Talk, where, slow)
        try:
            return self.snapshot(step, rank, size), keeper.report.why
        finally:
            keeper._timeout = PATIENCE

    def differ(self, copies: int) -> str:
        try:
            self.comm.snapshot({"x": torch.zeros(2)}, step=1, snapshots=Snapshots(copies=copies, holder=False), timeout=PATIENCE)
        except ValueError as error:
            return str(error)
        return ""

    def snapshot_at(self, step: Any) -> bool | str:
        """Whether a snapshot at a step of any kind is complete, or the error of its call."""
        try:
            self.comm.snapshot({"x": torch.zeros(3)}, step=step, snapshots=self._snapshots, timeout=PATIENCE)
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return self.comm.wait_for_snapshot()

    def restore_into(self, kind: str) -> Any:
        """The step, or the error, of a restore of all rows into a tensor that may refuse it."""
        made = {"plain": torch.zeros(ROWS, 3), "expanded": torch.zeros(1).expand(ROWS, 3), "refuses": _Refuses(ROWS, 3)}
        try:
            found = self.comm.restore(
                {"w": made[kind]}, snapshots=self._snapshots, shards={"w": ((ROWS, 3), (0, 0))}, timeout=PATIENCE
            )
        except (RuntimeError, ValueError) as error:
            return str(error)
        assert found is not None
        return found.step

    def join_again(self, world: int) -> None:
        """As a new peer, with what it has kept."""
        self.comm.reconnect(timeout=PATIENCE)
        self.comm.wait_for_peers(world, timeout=PATIENCE)

    def close(self) -> tuple[int, bool]:
        """Which vaults are left, and what `wait_for_snapshot` tells."""
        self.comm.close()
        return len(self.comm._vaults), self.comm.wait_for_snapshot()

    def holder(self) -> int:
        """The process that keeps this one's memory."""
        holder: Any = self.comm._vaults["tensors"].keeper.kept.holder(start=False)
        return int.from_bytes(holder._end.getsockopt(1, 17, 4), "little")

    def drop(self) -> None:
        self.comm.drop_snapshots(snapshots=self._snapshots)

    def leave(self) -> None:
        self.comm.drop_snapshots()
        self.comm.close()
