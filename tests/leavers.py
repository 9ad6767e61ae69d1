"""Processes that train in one of several ways, and have to go in the middle."""

from __future__ import annotations

import os
import signal
import time
import zlib
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pccl
import pccl.diloco
import pccl.distributed
from pccl.distributed import Elastic, Snapshots

preload(__name__)

KINDS = ("plain", "diloco", "ddp", "fsdp")


class Trainer:
    """Trains until it has made so many steps, or has left."""

    def __init__(self, pipe: Connection, kind: str, pause: float, membership: str = "strict", width: int = 64) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self._kind, self._pause, self._membership = kind, pause, membership
        self._input = torch.ones(width)
        self._steps = 0
        self._told_at = self._first_at = 0.0
        self._first = 0
        self._log: list[Any] = []

    def start(self, address: str, port: int, rank: int, size: int) -> None:
        """`address` of a master, `port` of a store: of what the kind needs."""
        self._model: nn.Module = nn.Linear(len(self._input), len(self._input))
        if self._kind in ("plain", "diloco"):
            self._comm = pccl.Communicator(address)
            self._comm.leaves_on(signal.SIGTERM)
            self._size = size
            return
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        options: Any = pccl.distributed.Options(membership=self._membership)  # "strict": a loss is an error
        limit = timedelta(seconds=10 * PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit, pg_options=options)
        self._make()

    def where(self) -> tuple[str, str]:
        """The masters and the keys of the run."""
        return pccl.distributed.masters(), pccl.distributed.keys()

    def join(self, masters: str, keys: str) -> None:
        """As a newcomer of a run that is under way, by its first step."""
        self._model = nn.Linear(len(self._input), len(self._input))
        pccl.distributed.join(masters, timeout=timedelta(seconds=10 * PATIENCE), keys=keys)
        self._make()

    def _make(self) -> None:
        more: dict[str, Any] = {}
        if self._kind == "fsdp":
            fully_shard(self._model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            more["snapshots"] = Snapshots(every=1000, holder=False)
        else:
            self._model = DistributedDataParallel(self._model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._run = Elastic(self._model, self._optimizer, leaves_on=signal.SIGTERM, step=0, **more)

    def train(self, steps: int, last: int = -1, own: int = 1 << 30) -> dict[str, Any]:
        """In the middle of step `last`, counted from 0, it gets SIGTERM. With DDP and FSDP it makes at most `own` steps.

        Returns whether it has left and how long after that, its steps, for each the members that took part, when its first one
        was over and at which step that was, and the errors of lost members.
        """
        left, lost = False, 0
        self._last, self._own = last, own
        try:
            getattr(self, f"_train_{self._kind}")(steps)
        except pccl.Left:
            left = True
        except pccl.PeerLostError:
            lost += 1
        seconds = time.monotonic() - self._told_at
        first = {"first_at": self._first_at, "first": self._first}
        return {"left": left, "lost": lost, "steps": self._steps, "log": self._log, "seconds": seconds, **first}

    def _pass(self) -> None:
        """The middle of a step, after its operations."""
        if self._first_at == 0.0:
            self._first_at, self._first = time.monotonic(), self._steps
        if self._steps == self._last:
            self._told_at = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._pause)

    def _train_plain(self, steps: int) -> None:
        self._comm.connect()
        self._comm.wait_for_peers(self._size)
        array = np.ones(5000, np.float32)
        while self._steps < steps:
            while self._comm.are_peers_pending():
                self._comm.update_topology()
            self._comm.all_reduce(array, op=pccl.ReduceOp.AVG)
            self._log.append(self._comm.world_size)
            self._pass()
            self._steps += 1

    def _train_diloco(self, steps: int) -> None:
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        with pccl.diloco.DiLoCo(self._model, self._comm, optimizer, sync_every=5, peers=self._size) as diloco:
            while self._steps < steps:
                self._model(self._input).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                self._pass()
                self._steps += 1
                report = diloco.step()
                if report is not None:
                    self._log.append(len(report.contributors[0].peers))

    def _train_ddp(self, steps: int) -> None:
        while self._run.step < steps and len(self._log) < self._own:
            self._run.sync()
            self._steps = self._run.step
            self._model(self._input).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._log.append(dist.get_world_size())
            self._pass()
            self._run.step += 1
            self._steps = self._run.step

    _train_fsdp = _train_ddp

    def checksum(self) -> int:
        """Of the parameters; each step has changed them."""
        return zlib.crc32(b"".join(one.detach().numpy().tobytes() for one in self._model.parameters()))


class Team:
    """Trainers of one kind."""

    def __init__(self, kind: str, size: int = 4, pause: float = 0.01, *arguments: Any) -> None:
        self._master = pccl.MasterNode("127.0.0.1:0")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._arguments = (kind, pause, *arguments)
        self.trainers: list[Performer] = []
        for _ in range(size):
            self.add()

    def add(self) -> Performer:
        self.trainers.append(Performer(Trainer, len(self.trainers), self._arguments, {"PCCL_LOG_LEVEL": "ERR"}))
        return self.trainers[-1]

    def __enter__(self) -> Team:
        self._master.run()
        address = f"127.0.0.1:{self._master.port}"
        for rank, trainer in enumerate(self.trainers):
            trainer.tell("start", address, self._store.port, rank, len(self.trainers))
        for trainer in self.trainers:
            trainer.answer()
        return self

    def __exit__(self, *error: object) -> None:
        for trainer in self.trainers:
            trainer.kill()
        self._master.close()
