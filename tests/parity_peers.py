"""Peers that compare their state, some of which differs, and are killed."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

import numpy as np
import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, preload
from torch import nn

import pccl.distributed
from pccl import Communicator, ParityError, ParityInfo, PCCLTimeoutError, Result, SharedState, TensorInfo, UsageError

preload(__name__)
preload("pccl.distributed._elastic")


class ParityPeer:
    """A peer with a model, the same on all."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, name: str) -> None:
        torch.set_num_threads(1)
        self.comm = Communicator(address, name=name)
        self.log: list[Any] = []

    def join(self, world: int) -> None:
        self.comm.connect(timeout=PATIENCE)
        self.comm.wait_for_peers(world, timeout=PATIENCE)
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(70, 50), nn.BatchNorm1d(50), nn.Linear(50, 3))
        with torch.no_grad():
            self.model[0].weight[3, 3] = float("nan")

    def flip(self, name: str, bit: int = 0) -> None:
        """Flips a bit of the last element of a parameter."""
        memory = self.model.get_parameter(name).detach().view(torch.int32).view(-1)
        memory[-1] ^= 1 << bit

    def _told(self, check: Any, *arguments: Any, **named: Any) -> Any:
        """What a check has returned or raised, with peers by their names."""
        names = self.comm.peer_names
        try:
            found: ParityInfo = check(*arguments, **named)
        except ParityError as error:
            return "ParityError", error.entry, sorted(names[one] for one in error.minority), str(error)
        except UsageError as error:
            return "UsageError", str(error)
        return found.world_size, found.entry, sorted(names[one] for one in found.minority)

    def check(self, policy: str = "raise", fraction: float = 1.0, timeout: float | None = None) -> Any:
        return self._told(self.comm.check_parity, self.model, policy=policy, fraction=fraction, timeout=timeout)

    def missing(self) -> list[str]:
        """The protections that the program of this peer has reported to be missing."""
        return sorted(self.comm._missing)

    def check_in(self, members: list[str], policy: str) -> Any:
        """In a group, of members by their uuids."""
        group = self.comm.group([UUID(one) for one in members])
        return self._told(self.comm.check_parity, self.model, policy=policy, group=group)

    def check_and_stop(self, policy: str) -> Any:
        """Is cut short while the members gather their entries, before this one has begun to."""

        def stop(*_: Any, **__: Any) -> None:
            del self.comm.all_gather  # type: ignore[method-assign]
            raise PCCLTimeoutError(Result.TIMED_OUT, "stop", "")

        self.comm.all_gather = stop  # type: ignore[assignment, method-assign]
        return self.check(policy)

    def admit(self, world: int) -> None:
        while self.comm.world_size < world:
            self.comm.update_topology()

    def check_other(self, entries: dict[str, Any], dtype: str = "float64", fraction: float = 1.0) -> Any:
        """Arrays of zeros, of these shapes."""
        state = {name: np.zeros(shape, dtype) for name, shape in entries.items()}
        return self._told(self.comm.check_parity, state, fraction=fraction)

    def check_typed(self, shape: tuple[int, ...], dtype: str, whole: bool) -> Any:
        """A tensor of zeros of this shape and type, in a shared state if `whole`."""
        tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
        return self._told(self.comm.check_parity, SharedState([TensorInfo.from_torch(tensor, "t")]) if whole else {"t": tensor})

    def check_state(self, rate: float) -> Any:
        """With the numbers of an optimizer. Those that it has afterwards."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        state = SharedState.from_module(self.model, optimizer, rng_state=False)
        return self._told(self.comm.check_parity, state, policy="repair"), optimizer.param_groups[0]["lr"]

    def check_transposed(self, value: float) -> Any:
        """Of a tensor that is not contiguous. Its content afterwards."""
        tensor = torch.full((3, 2), value).t()
        return self._told(self.comm.check_parity, {"t": tensor}, policy="repair"), tensor.tolist()

    def die_in_check(self, at: str) -> None:
        """Is killed in a check: before the members gather their entries, or while it repairs the others."""
        step = {"gather": "all_gather", "repair": "launch"}[at]
        setattr(self.comm, step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        self.check("repair")

    def digest(self) -> bytes:
        return b"".join(one.detach().numpy().tobytes() for one in self.model.parameters())

    def replay(self, broken: bool, raises: bool = False) -> Any:
        def compute(inputs: torch.Tensor) -> list[torch.Tensor]:
            if raises:
                raise ZeroDivisionError
            loss = self.model(inputs).nan_to_num().square().mean()
            found = [loss, *torch.autograd.grad(loss, list(self.model[2].parameters()))]
            if broken:
                found[1][0, 0] += 1e-6
            return found

        inputs = torch.randn(4, 70, generator=torch.Generator().manual_seed(self.comm.rank))
        try:
            return self._told(self.comm.replay, compute, [inputs], root=1)
        except ZeroDivisionError:
            return "raised"

    def uuid(self) -> str:
        return self.comm.uuid.hex

    def reduce(self) -> float:
        tensor = torch.ones(1)
        self.comm.all_reduce(tensor, retry=True)
        return float(tensor)

    def alive(self) -> bool:
        return self.comm.alive


class ParityRank:
    """A rank that trains with DistributedDataParallel."""

    def __init__(self, pipe: Connection) -> None:
        torch.set_num_threads(1)
        self.log: list[Any] = []

    def train(self, port: int, rank: int, size: int, options: dict[str, Any] | None = None) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
        self._make(options or {})
        self.step()

    def join(self, masters: str, keys: str, options: dict[str, Any]) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
        self._make(options)

    def _make(self, options: dict[str, Any]) -> None:
        torch.manual_seed(5)
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(9, 8), nn.BatchNorm1d(8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.run = pccl.distributed.Elastic(self.model, self.optimizer, step=0, **options)

    def run_of(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 9, generator=torch.Generator().manual_seed(dist.get_rank()))).square().mean().backward()
        self.optimizer.step()

    def flip(self) -> None:
        """Changes a moment, not a parameter."""
        self.optimizer.state[self.model.module[0].weight]["exp_avg"][0, 0] += 1

    def check(self, policy: str) -> Any:
        try:
            found = pccl.distributed.check_parity(self.model, self.optimizer, policy=policy)
        except ParityError as error:
            return error.entry
        return found.world_size, found.entry

    def check_in(self, ranks: list[int]) -> Any:
        group = dist.new_group(ranks)
        if dist.get_rank() not in ranks:
            return None
        found = pccl.distributed.check_parity(self.model, self.optimizer, group=group, timeout=timedelta(seconds=PATIENCE))
        return found.world_size, found.entry

    def size(self) -> int:
        self.step()
        return dist.get_world_size()

    def elastic(self, until: int, size: int, dies: bool = False) -> Any:
        """Steps up to this one, and until there are so many members. What the parameters and moments are then."""
        if dies:
            self.run_comm().all_gather = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        try:
            self.run.sync()
            while self.run.step < until or dist.get_world_size() != size:
                self.step()
                self.run.step += 1
                self.run.sync()
        except ParityError as error:
            return "ParityError", error.entry
        except ValueError as error:
            return "ValueError", str(error)
        moments = (self.optimizer.state[one]["exp_avg"] for one in self.model.parameters())
        return [one.tolist() for one in (*self.model.parameters(), *moments)]

    def run_comm(self) -> Any:
        group: Any = dist.GroupMember.WORLD
        return group.communicator
