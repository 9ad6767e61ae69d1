"""Processes that keep checkpoints of a sharded model in memory, and are killed."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from performers import PATIENCE, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from pccl import PeerLostError
from pccl.state import MemoryReader, MemoryWriter, Snapshots, drain

preload(__name__)


def told(error: BaseException) -> Any:
    """By rank: the names of the errors in torch's CheckpointException, and their texts."""
    assert isinstance(error, dcp.api.CheckpointException)
    return {rank: (type(one[0]).__name__, str(one[0])) for rank, one in error.failures.items()}


class Checkpointer:
    """A rank of one process group after another."""

    def __init__(self, pipe: Connection, snapshots: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        sys.dont_write_bytecode = True
        self._snapshots = Snapshots(**snapshots)
        self.log: list[Any] = []

    def start(self, port: int, rank: int, size: int, seed: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 2))
        mesh = init_device_mesh("cpu", (size,))
        fully_shard(self.model[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.randn(3, 6)).square().mean().backward()
        self.optimizer.step()
        shape = (size,) if size % 2 else (2, size // 2)
        self.grid = init_device_mesh("cpu", shape, mesh_dim_names=("one", "other")[: len(shape)])
        self.writer = MemoryWriter(self._snapshots)

    def _state(self, number: int) -> dict[str, Any]:
        moments = {name: self.optimizer.state[one]["exp_avg"] for name, one in self.model.named_parameters()}
        whole = torch.arange(35.0).reshape(5, 7) + number
        moments["grid"] = distribute_tensor(whole, self.grid, [Shard(1), Shard(0)][: self.grid.ndim])
        values = {"step": number, "alike": torch.full((3,), number)}
        return {"model": self.model.state_dict(), "moments": moments, "values": values}

    def save(self, number: int, beside: bool = False) -> Any:
        try:
            if beside:
                group = dist.new_group(list(range(dist.get_world_size())))
                writer = MemoryWriter(self._snapshots, group=group)
                written = dcp.async_save(
                    self._state(number), storage_writer=writer, checkpoint_id=str(number), process_group=group
                )
                self.model(torch.ones(1, 6)).sum().backward()
                written.result()
            else:
                dcp.save(self._state(number), storage_writer=self.writer, checkpoint_id=str(number))
        except dcp.api.CheckpointException as error:
            return told(error)
        return None

    def save_beside_loads(self, number: int) -> tuple[list[Any], int]:
        """The steps, or errors, that loads get while a save is under way in another thread; the step after its end."""
        group = dist.new_group(list(range(dist.get_world_size())))
        writer = MemoryWriter(self._snapshots, group=group)
        saved = dcp.async_save(self._state(number), storage_writer=writer, checkpoint_id=str(number), process_group=group)
        found = []
        for _ in range(5):
            whole = self.load()
            found.append(whole["step"].item() if "step" in whole else sorted(whole.values()))
        saved.result()
        return found, self.load()["step"].item()

    def save_with_copies_of_its_own(self) -> Any:
        """Each rank wants another number of copies."""
        writer = MemoryWriter(Snapshots(copies=1 + dist.get_rank(), holder=False))
        try:
            dcp.save(self._state(1), storage_writer=writer)
        except dcp.api.CheckpointException as error:
            return told(error)
        return None

    def save_what_cannot_be(self) -> Any:
        """One rank cannot give its data."""
        state = self._state(9)
        if dist.get_rank() == 1:
            state["values"]["own"] = Unsaved()
        try:
            dcp.save(state, storage_writer=self.writer)
        except dcp.api.CheckpointException as error:
            return told(error)
        return None

    def save_and_die(self, victim: int) -> str:
        """One rank is killed while it gives its data. The name of the error of the others."""
        state = self._state(9)
        if dist.get_rank() == victim:
            state["values"]["own"] = Deadly()
        try:
            dcp.save(state, storage_writer=self.writer)
        except (PeerLostError, dcp.api.CheckpointException) as error:
            return type(error).__name__
        return ""

    def load(self, checkpoint_id: str | None = None) -> Any:
        """What is loaded into a state of other numbers, whole; or the errors."""
        state = self._state(-1)
        try:
            dcp.load(state, storage_reader=MemoryReader(self._snapshots), checkpoint_id=checkpoint_id)
        except dcp.api.CheckpointException as error:
            return told(error)
        self.model.load_state_dict(state["model"])
        return self._whole(state)

    def whole(self, number: int) -> dict[str, Any]:
        return self._whole(self._state(number))

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        tensors = {f"{kind}.{name}": one.full_tensor() for kind in ("model", "moments") for name, one in state[kind].items()}
        return {**tensors, "step": torch.tensor(state["values"]["step"]), "alike": state["values"]["alike"].clone()}

    def drain(self, path: str) -> dict[str, Any]:
        """Brings the checkpoint to disk, and reads it from there."""
        drain(dcp.FileSystemWriter(path), self._snapshots)
        state = self._state(-1)
        dcp.load(state, checkpoint_id=path)
        return self._whole(state)

    def holder(self) -> int:
        """The process that keeps this one's memory."""
        holder: Any = self.writer._vault.keeper.kept.holder(start=False)
        return int.from_bytes(holder._end.getsockopt(1, 17, 4), "little")

    def end_group(self) -> None:
        """This process is in no group until `start`."""
        dist.destroy_process_group()

    def leave(self) -> None:
        self.writer.drop()
        dist.destroy_process_group()


class Deadly:
    def __reduce__(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Unsaved:
    def __reduce__(self) -> Any:
        raise ValueError("this cannot be saved")
