"""Processes that train a sharded model under Elastic with snapshots, and are killed, restarted and joined."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from sharded_trainers import Team
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl.distributed
from pccl.distributed import Elastic, PeerLostError, Snapshots, StateLostError
from pccl.state._snapshots.talk import Talk

preload(__name__)

ROWS = 12

WIDTH = 2047
"""So that the state has half a megabyte, and its rows no even shares."""

QUIET = {"PCCL_LOG_LEVEL": "ERR"}


def batch(step: int, rank: int, size: int) -> torch.Tensor:
    """The rows of a rank: those of all ranks together are the same for any number of them that divides ROWS."""
    return torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step))[rank::size]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Member:
    """A rank that trains, or a newcomer."""

    def __init__(self, pipe: Connection, snapshots: dict[str, Any], shards: int) -> None:
        torch.set_num_threads(1)
        sys.dont_write_bytecode = True  # of what is imported late
        self._snapshots = snapshots
        self._shards = shards
        self.log: list[Any] = []
        self.losses: dict[int, float] = {}

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit)
        self._make()

    def join(self, masters: str, keys: str) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
        self._make()

    def _make(self) -> None:
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5), nn.LayerNorm(5), nn.Linear(5, 2))
        size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (size,))
        if self._shards:
            shards = min(self._shards, size)
            mesh = init_device_mesh("cpu", (size // shards, shards), mesh_dim_names=("replicate", "shard"))
        fully_shard(self.model[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, eps=0.1)  # which makes little of last bits
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)
        snapshots = Snapshots(**self._snapshots) if self._snapshots else None
        self.run = Elastic(self.model, self.optimizer, step=0, schedule=self.schedule, snapshots=snapshots)
        self.changes: list[tuple[int, int]] = []

    def where(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def die_in(self, place: str) -> None:
        """It kills itself when it comes there.

        "backward": between the gradients of two groups of FSDP. "last call": before the all-reduce among replicas of the last
        gradients, for which members of its replica do not need it any more. "step": when all have agreed to step.
        """
        if place == "backward":
            self.model[1].register_full_backward_pre_hook(lambda *_: die())
        elif place == "last call":
            left, all_reduce = iter(range(1)), dist.all_reduce

            def call_or_die(*arguments: Any, **named: Any) -> Any:
                return die() if next(left, None) is None else all_reduce(*arguments, **named)

            dist.all_reduce = call_or_die
        else:
            self.optimizer.register_step_pre_hook(lambda *_: die())

    def die_at_message(self, topic: str, number: int) -> None:
        """It kills itself at that message of a conversation."""
        left, call = iter(range(number)), Talk._all

        def call_or_die(talk: Talk, *arguments: Any, **named: Any) -> None:
            if talk._topic.startswith(topic) and next(left, None) is None:
                die()
            call(talk, *arguments, **named)

        Talk._all = call_or_die  # type: ignore[method-assign]

    def mesh(self) -> tuple[int, ...]:
        shapes = {parameter.device_mesh.shape for parameter in self.model.parameters()}
        assert len(shapes) == 1
        return tuple(shapes.pop())

    def sum_in_replica(self) -> int:
        ranks = torch.tensor(dist.get_rank())
        mesh: Any = next(self.model.parameters())
        dist.all_reduce(ranks, group=mesh.device_mesh.get_group("shard"))
        return int(ranks)

    def begin_alone(self) -> None:
        """Begins a call at rank 0 that no other rank begins, and that nobody waits for."""
        group = dist.new_group([0, 2])
        if dist.get_rank() == 0:
            self.begun = dist.all_reduce(torch.ones(3), group=group, async_op=True)

    def members_left(self) -> int:
        group: Any = dist.GroupMember.WORLD
        return len(group.communicator.members)

    def train(
        self, until: int, dies_at: int | None = None, pause: float = 0.0, size: int = 0, place: str = ""
    ) -> list[tuple[int, int]]:
        """Trains until a step, and as long as there are fewer than `size` members; gives (step, world size) of each change."""
        while True:
            if self.run.sync():
                self.changes.append((self.run.step, dist.get_world_size()))
            if self.run.step >= until and dist.get_world_size() >= size:
                return self.changes
            if dies_at == self.run.step:
                self.run.wait_for_snapshot()
                if not place:
                    die()
                self.die_in(place)
            try:
                x = batch(self.run.step, dist.get_rank(), dist.get_world_size())
                loss = self.model(x).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            except PeerLostError:
                continue
            self.schedule.step()
            self.losses[self.run.step] = loss.item()
            self.run.step += 1
            time.sleep(pause)

    def train_and_lose(self, until: int, dies_at: int | None = None) -> str:
        """Trains until a StateLostError; gives its text."""
        try:
            self.train(until, dies_at)
        except StateLostError as error:
            return str(error)
        return ""

    def half_a_step(self, ranks: Sequence[int] | None = None) -> None:
        """Steps the optimizers of these ranks, by default of all, and does not count the step."""
        self.model(batch(self.run.step, dist.get_rank(), dist.get_world_size())).square().mean().backward()
        if ranks is None or dist.get_rank() in ranks:
            self.optimizer.step()
        else:
            dist.barrier()  # as if others had stepped, too

    def whole(self) -> dict[str, torch.Tensor]:
        """The parameters and the optimizer's state, as in one process."""
        found = {name: parameter.full_tensor() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}.{key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
        found["lr"] = torch.tensor(self.optimizer.param_groups[0]["lr"])
        found["steps of the schedule"] = torch.tensor(self.schedule.last_epoch)
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def report(self) -> dict[str, Any]:
        self.run.wait_for_snapshot()
        found = self.run.snapshot_report
        return {} if found is None else vars(found)

    def bytes_written(self) -> int:
        """To disk, by this process."""
        with open("/proc/self/io") as file:
            return int(dict(line.split(": ") for line in file)["write_bytes"])

    def holder(self) -> int:
        """The process that keeps this one's memory."""
        self.run.wait_for_snapshot()
        keeper: Any = self.run._sharded.keeper
        return int.from_bytes(keeper.kept._holder._end.getsockopt(1, 17, 4), "little")

    def leave(self) -> None:
        self.run.close()
        dist.destroy_process_group()


class Job(Team):
    """Members, and what tests tell all of them."""

    def __init__(self, shards: int = 0, **snapshots: Any) -> None:
        """`shards`: processes that have one replica of the state; 0: all, on a mesh of one dimension."""
        super().__init__()
        self._snapshots = snapshots
        self._shards = shards

    def add(self) -> Performer:
        self.members.append(Performer(Member, len(self.members), (self._snapshots, self._shards), QUIET, Path("/dev/null")))
        return self.members[-1]

    def join(self, where: tuple[str, str]) -> Performer:
        made = self.add()
        made.ask("join", *where)
        return made
