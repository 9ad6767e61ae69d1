"""Processes that train a sharded model with any optimizer and any trees, some of whose protections fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import elastic_shards
import torch
import torch.distributed as dist
from performers import Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl._core.errors import Left, ProtectionError
from pccl._host import holder
from pccl.distributed import Elastic, PeerLostError, Snapshots
from pccl.distributed._dtensors import box_of, local_part
from pccl.distributed._sharded import Sharded
from pccl.state._snapshots import keeper

preload(__name__)


class Local(torch.optim.Optimizer):
    """SGD that keeps a plain tensor, which `keeps` makes of the local gradient."""

    def __init__(self, parameters: Any, keeps: Callable[[torch.Tensor], dict[str, torch.Tensor]], late: int = 0) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self._keeps = keeps
        self._late = late
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.to_local()
                if self._steps > self._late:
                    self.state[parameter].update(self._keeps(gradient))
                parameter.to_local().sub_(group["lr"] * gradient)


def packed(gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    """As optimizers of 8 bits keep it: blocks with a scale each."""
    flat = gradient.flatten()
    scale = flat.abs().max().view(1) if flat.numel() else torch.zeros(1)
    return {"codes": (flat / (scale + 1e-9) * 127).to(torch.int8), "scales": torch.cat([scale, scale + 1])}


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda some: torch.optim.AdamW(some, lr=0.05, eps=0.1),
    "rows": lambda some: Local(some, lambda g: {"row": g.square().flatten(1).mean(1) if g.ndim > 1 else g.mean().view(1)}),
    "means": lambda some: Local(some, lambda g: {"mean": g.square().mean().expand(2).clone()}),
    "second moment": lambda some: Local(some, lambda g: {"v": g.square()}),
    "packed": lambda some: Local(some, packed),
    "late": lambda some: Local(some, lambda g: {"mean": g.square().mean().expand(2).clone()}, late=5),
    "nested": lambda some: Local(some, lambda g: {"inside": {"mean": g.square().mean().expand(2).clone()}}),  # type: ignore[dict-item]
    "one rank": lambda some: Local(some, lambda g: {"mean": g.mean().expand(2).clone()} if dist.get_rank() == 1 else {}),
    "even": lambda some: Local(some, lambda g: {"steps": torch.ones(3)}),
}


DECAY = 0.5


class Shadow:
    """An average as programs write it: what it tells are copies, and what it loads goes into its own tensors."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow: Any = {name: one.detach().clone() for name, one in model.named_parameters()}
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for name, one in model.named_parameters():
            self.shadow[name].lerp_(one.detach(), DECAY)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": {name: one.clone() for name, one in self.shadow.items()}, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        with torch.no_grad():
            for name, one in state["shadow"].items():
                self.shadow[name].copy_(one)


def made_model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def averaged() -> torch.optim.swa_utils.AveragedModel:
    return torch.optim.swa_utils.AveragedModel(made_model(), avg_fn=lambda old, new, _: old.lerp(new, DECAY))


LATE = 3


def reference(steps: int, tree: str) -> dict[str, torch.Tensor]:
    """The average after so many steps, as one process without torch.distributed has it."""
    model = made_model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
    for step in range(steps):
        optimizer.zero_grad()
        model(elastic_shards.batch(step, 0, 1)).square().mean().backward()
        optimizer.step()
        for name, one in model.named_parameters():
            if (tree == "late" and step <= LATE) or (tree == "module" and step == 0):
                shadow[name] = one.detach().clone()  # AveragedModel begins with a copy
            else:
                shadow[name].lerp_(one.detach(), DECAY)
    return shadow


class Member(elastic_shards.Member):
    """A rank that trains, or a newcomer."""

    def __init__(
        self, pipe: Connection, snapshots: dict[str, Any], shards: int, optimizer: str, listens: bool, tree: str
    ) -> None:
        super().__init__(pipe, snapshots, shards)
        self._kind = optimizer
        self._listens = listens
        self._tree = tree
        self.heard: list[tuple[str, int]] = []
        self.logged: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.logged.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pccl").addHandler(handler)

    def _make(self) -> None:
        self.model = made_model()
        size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (size,))
        if self._shards:
            shards = min(self._shards, size)
            mesh = init_device_mesh("cpu", (size // shards, shards), mesh_dim_names=("replicate", "shard"))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = OPTIMIZERS[self._kind](self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        if self._listens:
            self._snapshots["on_failure"] = lambda error, steps: self.heard.append((f"{type(error).__name__}: {error}", steps))
        snapshots = Snapshots(**self._snapshots) if self._snapshots else None
        ema: Any = None
        if self._tree == "nested":
            names = [name for name, _ in self.model.named_parameters()]
            copies = [one.detach().clone() for one in self.model.parameters()]
            ema = {"first": dict(zip(names[:2], copies[:2], strict=True)), "rest": [copies[2], (copies[3], "text")], "empty": {}}
        elif self._tree == "object":
            ema = Shadow(self.model)
        elif self._tree == "module":
            ema = averaged()
            fully_shard(ema.module, mesh=mesh)
        self.run = Elastic(self.model, self.optimizer, step=0, kept=None, ema=ema, snapshots=snapshots)
        self.changes = []

    def _averages(self) -> dict[str, Any]:
        names = [name for name, _ in self.model.named_parameters()]
        ema = self.run.ema
        if self._tree == "nested":
            return dict(zip(names, [*ema["first"].values(), ema["rest"][0], ema["rest"][1][0]], strict=True))
        return ema.shadow if self._tree == "object" else dict(ema.module.named_parameters()) if self._tree == "module" else ema

    @torch.no_grad()
    def _average(self) -> None:
        if self._tree == "object":
            self.run.ema.update(self.model)
        elif self._tree == "module":
            self.run.ema.update_parameters(self.model)
        elif self._tree == "late" and self.run.step <= LATE:
            if self.run.step == LATE:
                self.run.ema = {name: one.detach().clone() for name, one in self.model.named_parameters()}
        elif self._tree:
            for name, one in self._averages().items():
                one.lerp_(self.model.get_parameter(name).detach(), DECAY)

    def shards(self) -> dict[str, tuple[Any, torch.Tensor]]:
        """The part of each average that this member has, and which it is."""
        found = self._averages()
        assert all(one.device_mesh == self.model[0].weight.device_mesh for one in found.values())
        return {name: (box_of(one), local_part(one).clone()) for name, one in found.items()}

    def keep(self, rank: int) -> None:
        """A value that cannot be sent."""
        if dist.get_rank() == rank:
            self.run.kept = object()

    def fail(self, place: str, times: int) -> None:
        """So many calls fail."""
        owner: Any = {"_connect": holder.Holder, "put": holder.Holder, "available_bytes": holder, "write_image": keeper}[place]
        function = getattr(owner, place)
        left = iter(range(times))

        def call(*arguments: Any, **named: Any) -> Any:
            if next(left, None) is None:
                return function(*arguments, **named)
            if place == "available_bytes":
                return 0
            raise (MemoryError if place == "write_image" else holder.HolderError)(f"{place} fails")

        setattr(owner, place, call)

    def protected(self) -> int | None:
        return self.run.protected_step

    def numbers(self) -> dict[str, float]:
        """What this member has reported, as the master knows it."""
        group: Any = dist.GroupMember.WORLD
        comm = group.communicator
        return next(one.report for one in comm.diagnose().members if one.uuid == comm.uuid)

    def lines(self) -> list[str]:
        """What its log has said of members that leave."""
        return [one for one in self.logged if "leaves before" in one or "have left before" in one or "holder has not got" in one]

    def train_and_leave(self, until: int) -> tuple[int, list[str]]:
        """Announces that it leaves at once; gives the step at which it does, and what its log has said."""
        self.run.leave()
        try:
            self.try_to_train(until)
        except Left:
            return self.run.step, self.lines()
        raise AssertionError("it has not left")

    def die_before_it_may_go(self) -> None:
        """It kills itself when it is to tell whether those who leave may go."""
        Sharded._may_go = lambda *_, **__: elastic_shards.die()  # type: ignore[assignment, method-assign]

    def heard_of(self) -> list[tuple[str, int]]:
        return self.heard

    def try_to_train(self, until: int, dies_at: int | None = None, size: int = 0) -> tuple[int, str]:
        """Trains until a step, or a ProtectionError; gives the step and its text. Each snapshot ends before the next step."""
        try:
            while True:
                self.run.sync()
                self.run.wait_for_snapshot()
                if self.run.step >= until and dist.get_world_size() >= size:
                    return self.run.step, ""
                if dies_at == self.run.step:
                    elastic_shards.die()
                try:
                    self.half_a_step()
                    self._average()
                    self.optimizer.zero_grad()
                except PeerLostError:
                    time.sleep(0.01)
                    continue
                self.run.step += 1
        except ProtectionError as error:
            return self.run.step, str(error)


class Job(elastic_shards.Job):
    """Members, and what tests tell all of them."""

    def __init__(
        self, optimizer: str = "adamw", shards: int = 0, listens: bool = False, tree: str = "", **snapshots: Any
    ) -> None:
        super().__init__(shards, **snapshots)
        self._arguments = snapshots, shards, optimizer, listens, tree

    def add(self) -> Performer:
        self.members.append(Performer(Member, len(self.members), self._arguments, elastic_shards.QUIET, Path("/dev/null")))
        return self.members[-1]
