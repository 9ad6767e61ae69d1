"""Processes that train a model with `fully_shard`, and cut it again when members are lost and when others join."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import pytest
import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import pccl.distributed
from pccl.distributed._dtensors import box_of, entries, local_part
from pccl.distributed._remesh import remesh

preload(__name__)

ROWS = 4


class Block(nn.Module):
    """A block with a parameter that is left out of FSDP in `net`, and one of fewer rows than there are ranks."""

    calls: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 7)
        self.narrow = nn.Linear(7, 2)
        self.back = nn.Linear(2, width)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = x + torch.tanh(self.back(torch.tanh(self.narrow(self.wide(x))))) * self.scale.to(x.dtype)
        return found


class Kind(NamedTuple):
    """A kind of training."""

    optimizer: str
    replicas: bool = False
    low_precision: bool = False
    ends: str = "backward"
    """Where in a step the process is killed; "": before it."""


def net(kind: Kind) -> nn.Sequential:
    """Nested: blocks, and the root with the rest; the first layer is frozen, and the last one shares the weight of another."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 5), Block(5), Block(5), nn.Linear(5, 5), nn.Linear(5, 5))
    model[0].requires_grad_(False)
    model[4].weight = model[3].weight
    size = dist.get_world_size()
    shape, names = ((size,), ("shard",)) if not kind.replicas else ((2, size // 2), ("replicate", "shard"))
    if kind.replicas and size % 2:
        shape = (1, size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if kind.low_precision else MixedPrecisionPolicy()
    scales: Any = {block.scale for block in (model[1], model[2])}
    for block in (model[1], model[2]):
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=scales)
    fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params=scales)
    return model


def optimizer_of(model: nn.Module, kind: Kind) -> torch.optim.Optimizer:
    """An optimizer that has made a step, so that all of its state is there."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=0.01)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Training:
    """A model and its optimizer in this process."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.model = net(kind)
        self.optimizer = optimizer_of(self.model, kind)
        self.model[1].narrow.register_forward_pre_hook(lambda *_: self.in_block())
        self.in_block: Any = lambda: None

    def whole(self) -> dict[str, torch.Tensor]:
        """Everything, as in one process."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
            for name, tensor in entries(self.model, self.optimizer).items()
        }

    @torch.no_grad()
    def fill(self, whole: dict[str, torch.Tensor]) -> None:
        here = entries(self.model, self.optimizer)
        assert here.keys() == whole.keys()
        for name, tensor in here.items():
            part = box_of(tensor)
            assert tensor.shape == whole[name].shape, name
            cut = whole[name][tuple(slice(start, start + size) for start, size in zip(part.offset, part.shape, strict=True))]
            local_part(tensor).copy_(cut)

    def steps(self, first: int, count: int, kill: bool = False) -> list[float]:
        """Trains some steps; gives the loss before each, of this rank's rows."""
        losses = []
        for step in range(first, first + count):
            self.optimizer.zero_grad()
            if kill and self.kind.ends == "":
                die()
            if kill and self.kind.ends == "forward":
                self.in_block = die
            if kill and self.kind.ends == "backward":  # when there are gradients of the second block, and none of the first
                self.model[1].register_full_backward_pre_hook(lambda *_: die())
            loss = self.model(batch(step, dist.get_rank())).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


class Member:
    """A rank that trains, or a newcomer."""

    def __init__(self, pipe: Connection, kind: Kind) -> None:
        torch.set_num_threads(1)
        self.kind = kind
        self.log: list[str] = []

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit)
        self._make()

    def join(self, masters: str, keys: str) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
        self._make()

    def _make(self) -> None:
        self.training = Training(self.kind)
        self.parameters = list(self.training.model.parameters())
        self.members = pccl.distributed.Elastic(nn.Linear(1, 1))  # makes newcomers members, and brings nothing of the training

    def run(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def sync(self, size: int) -> None:
        """Lets newcomers in until there are so many members; a newcomer becomes one."""
        self.members.sync()
        while dist.get_world_size() < size:
            time.sleep(0.01)
            self.members.sync()

    def steps(self, first: int, count: int, kill: bool = False) -> list[float]:
        return self.training.steps(first, count, kill)

    def keep(self) -> dict[str, torch.Tensor]:
        return self.training.whole()

    def lose(self, step: int, number: int) -> list[str]:
        """Makes a step in which another one is killed, and a group of the survivors; gives which parameters are whole then."""
        size = dist.get_world_size()
        if self.kind.ends:
            with pytest.raises(pccl.distributed.PeerLostError):
                self.training.steps(step, 1)
        while dist.get_world_size() == size:
            dist.barrier()
        group: Any = dist.GroupMember.WORLD
        group.attach(group.communicator, group.members, number)
        return [name for name, parameter in self.training.model.named_parameters() if not isinstance(parameter, DTensor)]

    def remesh(self, whole: dict[str, torch.Tensor], shape: tuple[int, ...] | None = None) -> set[tuple[int, ...]]:
        """Cuts the model for the members that are there, and fills it; gives the shapes of the meshes of parameters."""
        model, optimizer = self.training.model, self.training.optimizer
        before = entries(model, optimizer)
        kept = {name: local_part(tensor) for name, tensor in before.items()}
        copies = {name: tensor.clone() for name, tensor in kept.items()}
        optimizer_keys = [(id(one), list(state)) for one, state in optimizer.state.items()]
        remesh(model, optimizer, shards=None if shape is None else shape[-1])
        assert all(one is other for one, other in zip(model.parameters(), self.parameters, strict=True))
        assert optimizer_keys == [(id(one), list(state)) for one, state in optimizer.state.items()]
        after = entries(model, optimizer)
        assert after.keys() == before.keys()
        for name, tensor in after.items():
            assert tensor.grad is None
            assert local_part(tensor).shape == box_of(tensor).shape, name
            assert isinstance(tensor, DTensor) or tensor is before[name], name
            assert torch.equal(kept[name], copies[name]), name  # what the caller holds of the old shards
        self.training.fill(whole)
        sharded: Any = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
        return {parameter.device_mesh.shape for parameter in sharded}

    def leave(self) -> None:
        dist.destroy_process_group()


class Team:
    """Members that torch's store brings together; `add` makes the process of one, and puts it into `members`."""

    def __init__(self) -> None:
        self._store: Any = None
        self.members: list[Performer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.kill()

    def add(self) -> Performer:
        raise NotImplementedError

    def start(self, size: int) -> list[Performer]:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = [self.add() for _ in range(size)]
        for rank, member in enumerate(made):
            member.tell("start", self._store.port, rank, size)
        for member in made:
            member.answer()
        return made


class Job(Team):
    """Members, and what tests tell all of them."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self._kind = kind

    def join(self, at: Performer) -> Performer:
        made = self.add()
        made.ask("join", *at.ask("run"))
        return made

    def add(self) -> Performer:
        self.members.append(Performer(Member, len(self.members), (self._kind,), {"PCCL_LOG_LEVEL": "ERR"}))
        return self.members[-1]


def ask(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    """Tells all of them something; gives their answers."""
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


def undisturbed(
    kind: Kind, whole: dict[str, torch.Tensor], first: int, count: int
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """In a rank of a new run: trains on from a state; gives its losses and the state after."""
    training = Training(kind)
    training.fill(whole)
    return training.steps(first, count), training.whole()
