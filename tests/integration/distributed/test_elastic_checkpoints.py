"""Elastic: runs that begin with checkpoints, and large tensors that each member has for itself."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what the first optimizer of a process would import, for seconds
import torch.distributed as dist
import torch.distributed.checkpoint
from performers import Performer, preload
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import pccl.distributed
from pccl.distributed import Elastic

LIMIT = timedelta(seconds=60)
preload(__name__)


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.line = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.register_buffer("large", torch.randn(20_000))
        self.register_buffer("small", torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x)


class Member:
    """A process of the job."""

    def __init__(self, pipe: object) -> None:
        torch.set_num_threads(1)
        self.warnings: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("pccl.state").addHandler(handler)

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=LIMIT)

    def join(self, run: tuple[str, str]) -> None:
        pccl.distributed.join(run[0], timeout=LIMIT, keys=run[1])

    def run(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def make(self, seed: int, average: bool = False) -> None:
        self.net = Net(seed)
        self.optimizer = torch.optim.AdamW(self.net.line.parameters(), lr=0.1)
        self.schedule = lr_scheduler.SequentialLR(
            self.optimizer,
            [lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(self.optimizer, 20)],
            milestones=[2],
        )
        values: dict[str, Any] = {"average": AveragedModel(nn.Linear(200, 200)), "own": torch.full((20_000,), float(seed))}
        values = values if average else {}
        generator = torch.Generator().manual_seed(seed)
        self.state = Elastic(self.net, self.optimizer, step=0, schedule=self.schedule, generator=generator, **values)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.state.sync()
            self.optimizer.zero_grad()
            self.net(torch.ones(2, 4)).square().mean().backward()
            self.optimizer.step()
            self.schedule.step()
            self.state.step += 1

    def sync_until(self, members: int) -> int:
        while self.state.sync() or dist.get_world_size() < members:
            pass
        return dist.get_world_size()

    def save(self, path: Path) -> None:
        self.state.save(path)

    def load(self, path: Path) -> None:
        self.state.load(path)

    def told(self) -> dict[str, Any]:
        return {
            "parameters": {name: one.tolist() for name, one in self.net.named_parameters()},
            "large": self.net.large.sum().item(),
            "small": self.net.small.tolist(),
            "step": self.state.step,
            "rate": self.optimizer.param_groups[0]["lr"],
            "moments": [one["exp_avg"].tolist() for one in self.optimizer.state.values()],
            "schedule": str(self.schedule.state_dict()),
            "generator": self.state.generator.get_state().tolist(),
        }

    def values(self) -> tuple[float, float, float]:
        average = self.state.average.module.weight.sum().item()
        return average, self.state.own.sum().item(), self.net.large.sum().item()

    def warned(self) -> list[str]:
        return self.warnings


@contextmanager
def members(count: int, average: bool = False) -> Iterator[list[Performer]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made: list[Performer] = []
    try:
        for number in range(count):
            made.append(Performer(Member, number, (), {"PCCL_LOG_LEVEL": "ERR"}))
        for rank, one in enumerate(made):
            one.tell("start", store.port, rank, count)
        for one in made:
            one.answer()
        for rank, one in enumerate(made):
            one.ask("make", rank, average)
        yield made
    finally:
        for one in made:
            one.kill()


def all_at_once(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    for one in members:
        one.tell(method, *arguments)
    return [one.answer() for one in members]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Any]]:
    """Checkpoints of a run after 3 and 5 steps, and what its members had."""
    folder = tmp_path_factory.mktemp("points")
    found = {}
    with members(2) as made:
        for more, step in ((3, 3), (2, 5)):
            all_at_once(made, "train", more)
            made[0].ask("save", folder / str(step))
            found[step] = folder / str(step), made[0].ask("told")
    return found


@pytest.mark.parametrize("order", list(itertools.permutations([None, 3, 5])))
def test_the_highest_step_wins_whoever_has_it(points: dict[int, tuple[Path, Any]], order: tuple[int | None, ...]) -> None:
    with members(3) as made:
        for one, step in zip(made, order, strict=True):
            if step is not None:
                one.ask("load", points[step][0])
        all_at_once(made, "sync_until", 3)
        assert all_at_once(made, "told") == [points[5][1]] * 3
        warned = all_at_once(made, "warned")
        assert [bool(one) for one in warned] == [step == 3 for step in order]
        assert "step 3" in warned[order.index(3)][0]
        all_at_once(made, "train", 2)
        told = all_at_once(made, "told")
        assert told == [told[0]] * 3
        assert told[0]["step"] == 7


def test_a_newcomer_with_a_checkpoint_gets_the_state_of_the_run(points: dict[int, tuple[Path, Any]]) -> None:
    with members(2) as made:
        all_at_once(made, "train", 2)
        fresh = Performer(Member, 2, (), {"PCCL_LOG_LEVEL": "ERR"})
        made.append(fresh)
        fresh.ask("join", made[0].ask("run"))
        fresh.ask("make", 7)
        fresh.ask("load", points[5][0])
        all_at_once(made, "sync_until", 3)
        told = all_at_once(made, "told")
        assert told[2] == told[0]
        assert told[0]["step"] == 2
        assert "step 5" in fresh.ask("warned")[0]


def test_large_tensors_of_each_member_reach_the_newcomer_alone() -> None:
    with members(3, average=True) as made:
        all_at_once(made, "sync_until", 3)
        before = all_at_once(made, "values")
        fresh = Performer(Member, 3, (), {"PCCL_LOG_LEVEL": "ERR"})
        made.append(fresh)
        fresh.ask("join", made[0].ask("run"))
        fresh.ask("make", 7, True)
        all_at_once(made, "sync_until", 4)
        assert all_at_once(made, "values") == [*before, before[0]]
