"""Processes that train one model with DistributedDataParallel, check each average that they get, and may be killed anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed
from pccl.distributed import _replicated

preload(__name__)
preload("pccl.distributed._elastic")

ROWS = 4
# What rounding may change in an average, as a part of the average of the absolute values: some units in the last place.
ROUNDING = 2e-6


class Net(nn.Module):
    """Several buckets of parameters, and buffers. Smooth: at a kink, the last bit of an average would tell two losses apart."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.last = nn.Linear(width, 1)
        self.in_forward: Any = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x)
        self.in_forward()
        result: torch.Tensor = self.last(x)
        return result


def batch(step: int, member: UUID) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(f"{step} {member}".encode()).digest()[:7], "little")
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(seed))


def gradients_of(net: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


def evaluated(net: nn.Module) -> float:
    """The loss on rows that nobody trains on, with the statistics of these rows."""
    copy = Net(net.get_submodule("last").in_features)  # type: ignore[arg-type] # torch types all attributes of modules alike
    copy.load_state_dict(net.state_dict())
    with torch.no_grad():
        return float(copy(batch(-1, UUID(int=0))).square().mean())


def reference(width: int, steps: dict[int, list[dict[str, Any]]]) -> list[float]:
    """The losses of one process that averages over the same members in each step."""
    torch.manual_seed(7)
    net = Net(width)
    optimizer, schedule = optimizers(net)
    losses = []
    for step, told in steps.items():
        gradients = []
        for member in told[0]["before"]:
            optimizer.zero_grad()
            net(batch(step, UUID(member))).square().mean().backward()
            gradients.append(gradients_of(net))
        for at, (parameter, who) in enumerate(zip(net.parameters(), told[0]["who"], strict=True)):
            parameter.grad = torch.stack([gradients[one][at] for one in who]).mean(0)
        optimizer.step()
        schedule.step()
        losses.append(evaluated(net))
    return losses


def optimizers(net: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.StepLR]:
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)


def digest_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A hash of the bits of parameters and optimizer state."""
    made = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            made.update(parameter.detach().numpy().tobytes())
            for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                made.update(value.detach().numpy().tobytes())
    return made.hexdigest()[:16]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Trainer:
    """A rank that trains, or a newcomer."""

    def __init__(self, pipe: Connection, log: str, width: int, options: dict[str, Any], hook: str) -> None:
        torch.set_num_threads(1)
        self.file = Path(log).open("a", buffering=1)  # noqa: SIM115 - until the process ends
        self.width, self.options, self.hook = width, options, hook
        self.log: list[str] = []

    def start(self, port: int, rank: int, size: int, timeout: float) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
        self._make()

    def join(self, masters: str, keys: str, timeout: float) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=timeout), keys=keys)
        self._make()

    def _make(self) -> None:
        torch.manual_seed(7)
        self.net = Net(self.width)
        self.ddp = DistributedDataParallel(self.net, **self.options)
        if self.hook == "python":
            self.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        if self.hook == "builtin":
            self.ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        self.optimizer, self.schedule = optimizers(self.net)
        self.state = pccl.distributed.Elastic(self.ddp, self.optimizer, schedule=self.schedule, step=0)
        self.group: Any = dist.GroupMember.WORLD  # of pccl

    def harm(self, where: str) -> None:
        """From now on this process is killed at this place of a sync: before or after what is said there."""
        when, name = where.split()
        owner: Any = {"_broadcast": _replicated, "_share": _replicated.Replicated, "update_topology": pccl.Communicator}[name]
        inside = getattr(owner, name)

        def harmed(*arguments: Any, **named: Any) -> Any:
            if when == "before":
                die()
            inside(*arguments, **named)
            die()

        setattr(owner, name, harmed)

    def masters(self) -> str:
        return pccl.distributed.masters()

    def keys(self) -> str:
        return pccl.distributed.keys()

    def train(self, until: int, ends: tuple[int, str] | None = None, pause: float = 0.0) -> int:
        """Trains up to a step; gives the world size. `ends`: the step and the moment at which this process is killed."""
        while True:
            self.state.sync()
            if self.state.step >= until:
                return dist.get_world_size()
            moment = ends[1] if ends is not None and ends[0] == self.state.step else ""
            self._step(self.state.step, moment)
            self.state.step += 1
            time.sleep(pause)

    def _step(self, step: int, moment: str) -> None:
        if moment == "before":
            die()
        before = self.group.members
        own = self.group.ranks[dist.get_rank()]
        with self._dying(moment):
            self.optimizer.zero_grad()
            loss = self.ddp(batch(step, own)).square().mean()
            loss.backward()
        after = self.group.members
        who = self._check(step, before, after)
        if moment == "after":
            die()
        self.optimizer.step()
        self.schedule.step()
        told = {
            "step": step,
            "rank": dist.get_rank(),
            "size": dist.get_world_size(),
            "before": [str(one) for one in before],
            "who": who,
            "contributors": [len(one) for one in who],
            "loss": evaluated(self.net),
            "digest": digest_of(self.net, self.optimizer),
            "time": time.monotonic(),
        }
        self.file.write(json.dumps(told) + "\n")

    @contextlib.contextmanager
    def _dying(self, moment: str) -> Iterator[None]:
        """Kills this process at a moment inside."""
        if moment == "forward":
            self.net.in_forward = die
        if moment == "backward":
            self.net.last.weight.register_hook(lambda _: die())
        if moment in ("reduce", "broadcast"):
            launch = self.group._launcher.launch
            kind = {"reduce": "ALL_REDUCE", "broadcast": "BROADCAST"}[moment]

            def launch_and_die(collective: Any, *arguments: Any, **named: Any) -> Any:
                begun = launch(collective, *arguments, **named)
                if collective.name == kind:
                    die()
                return begun

            self.group._launcher.launch = launch_and_die
        if moment.startswith("later"):
            threading.Timer(float(moment.removeprefix("later ")), die).start()
        yield

    def _check(self, step: int, before: tuple[UUID, ...], after: tuple[UUID, ...]) -> list[list[int]]:
        """That each gradient is the average over members that were there; gives which of them, by parameter."""
        # Normalisation changes its buffers in each pass, and does not read them here.
        alone = Net(self.width)
        alone.load_state_dict(self.net.state_dict())
        found = {}
        for member in before:
            alone.zero_grad()
            alone(batch(step, member)).square().mean().backward()
            found[member] = gradients_of(alone)
        lost = [member for member in before if member not in after]
        ways = [
            [*after, *(lost[at] for at in kept)]
            for count in range(len(lost), -1, -1)
            for kept in itertools.combinations(range(len(lost)), count)
        ]
        who = []
        own_gradients = gradients_of(self.net)
        for at in range(len(own_gradients)):
            for way in ways:
                summed = torch.stack([found[member][at] for member in way])
                error = (own_gradients[at] - summed.mean(0)).abs()
                if torch.all(error <= ROUNDING * summed.abs().mean(0)):
                    who.append([before.index(member) for member in way])
                    break
            else:
                raise AssertionError(f"step {step}: the gradient of parameter {at} is no average over members that were there")
        return who

    def leave(self) -> None:
        dist.destroy_process_group()


class Job:
    """Trainers, and what they have logged."""

    def __init__(
        self,
        folder: Path,
        *,
        width: int = 64,
        options: dict[str, Any] | None = None,
        hook: str = "",
        environment: dict[str, str] | None = None,
        timeout: float = PATIENCE,
        role: type[Trainer] = Trainer,
    ) -> None:
        self._role = role
        self._folder = folder
        self._arguments = width, options or {}, hook
        self._environment = environment or {}
        self._timeout = timeout
        self._store: Any = None
        self._keys = ""
        self.trainers: list[Performer] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for trainer in self.trainers:
            trainer.kill()

    def _add(self, **environment: str) -> Performer:
        log = str(self._folder / f"log {len(self.trainers)}")
        environment = {"PCCL_LOG_LEVEL": "ERR", **self._environment, **environment}
        self.trainers.append(Performer(self._role, len(self.trainers), (log, *self._arguments), environment))
        return self.trainers[-1]

    def start(self, size: int, nodes: list[str] | None = None) -> list[Performer]:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = [self._add(GROUP_RANK=nodes[rank] if nodes else "0") for rank in range(size)]
        for rank, trainer in enumerate(made):
            trainer.tell("start", self._store.port, rank, size, self._timeout)
        for trainer in made:
            trainer.answer()
        self._keys = made[0].ask("keys")
        return made

    def join(self, masters: str, **environment: str) -> Performer:
        """A newcomer, which has everything but a part in the run."""
        made = self._add(**environment)
        made.ask("join", masters, self._keys, self._timeout)
        return made

    def masters(self) -> str:
        found: str = self.trainers[0].ask("masters")
        return found

    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """What each step has logged, once it is sure that all who made it had the same bits after it."""
        found: dict[int, list[dict[str, Any]]] = {}
        for path in sorted(self._folder.glob("log *")):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one of a process that was killed
                    told = json.loads(line)
                    found.setdefault(told["step"], []).append(told)
        for step, told in found.items():
            assert len({one["digest"] for one in told}) == 1, f"step {step}: the members have different bits: {told}"
        return dict(sorted(found.items()))
