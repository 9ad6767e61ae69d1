"""Replacements in scripts that call nothing of pccl: they get to the place of the others (`--adapt`)."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import trainers
from performers import PATIENCE, preload
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from trainers import Job

import pccl.distributed
from pccl.integrations import _replay

preload(__name__)

RANKS, BATCH = 3, 4
FIXED = {"PCCL_MEMBERSHIP": "fixed"}


class Shard:
    """Each third batch of all, as accelerate shares them out."""

    def __init__(self, batches: BatchSampler, rank: int) -> None:
        self.batch_sampler, self._rank = batches, rank

    def __iter__(self) -> Iterator[list[int]]:
        for number, batch in enumerate(self.batch_sampler):
            if number % RANKS == self._rank:
                yield batch

    def __len__(self) -> int:
        return len(self.batch_sampler) // RANKS


class Prefetching:
    """A loader in the form of accelerate's: rank 0 says how to shuffle, and one batch is fetched in advance."""

    def __init__(self, rows: torch.Tensor, workers: int) -> None:
        self._generator = torch.Generator().manual_seed(time.monotonic_ns())
        batches = BatchSampler(RandomSampler(rows, generator=self._generator), BATCH, drop_last=True)
        data = TensorDataset(torch.arange(len(rows)), rows)
        fork = "fork" if workers else None
        shard = Shard(batches, dist.get_rank())
        self._loader = DataLoader(data, batch_sampler=shard, num_workers=workers, multiprocessing_context=fork)

    def __iter__(self) -> Iterator[Any]:
        state = self._generator.get_state()
        dist.broadcast(state, 0)
        self._generator.set_state(state)
        batches = iter(self._loader)
        ahead = next(batches)
        for batch in batches:
            yield ahead
            ahead = batch
        yield ahead


class Net(nn.Module):
    """A model with dropout and with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.layers(rows)}


def script(log: str, length: int, workers: int, accumulate: int, seeds_by_rank: bool, two: bool, die_at: int) -> int:
    """What a user writes. It ends after the epoch in which a file "enough" is there. Returns the epochs.

    `length`: batches of a rank in an epoch. `two`: another optimizer steps with gradients of the same backward passes, and
    newcomers come between the two.
    """
    ends = Path(log).parent / "enough"
    torch.manual_seed(dist.get_rank() if seeds_by_rank else 7)
    rows = torch.randn(RANKS * BATCH * length, 8, generator=torch.Generator().manual_seed(0))
    model = DistributedDataParallel(Net())
    *body, weight, bias = model.parameters()
    optimizer = torch.optim.Adam(body if two else [*body, weight, bias], lr=0.01)
    optimizers = [optimizer, torch.optim.SGD([weight, bias], lr=0.01, momentum=0.9)] if two else [optimizer]
    schedule = torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)]
    )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=50)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38, growth_interval=9)
    loader = Prefetching(rows, workers)
    check = DataLoader(TensorDataset(rows[:BATCH]), batch_size=BATCH)
    made = epoch = 0
    with Path(log).open("a", buffering=1) as file:
        for epoch in range(10_000):
            model.train()
            for number, (indices, batch) in enumerate(loader):
                loss = model(batch)["out"].square().mean()
                scaler.scale(loss / accumulate).backward()
                if (number + 1) % accumulate == 0:
                    for one in optimizers:
                        scaler.unscale_(one)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    made += 1
                    if made == die_at:
                        trainers.die()
                    for one in optimizers:
                        scaler.step(one)
                    scaler.update()
                    schedule.step()
                    with torch.no_grad():
                        weight.mul_(0.999)  # by hand, which the newcomer must not do once more
                    model.zero_grad()
                total = loss.detach().clone()
                dist.all_reduce(total)
                told = {
                    "at": (epoch, number, made),
                    "rank": dist.get_rank(),
                    "indices": indices.tolist(),
                    "loss": total.item() / RANKS,
                    "random": torch.rand(()).item(),
                    "rate": optimizer.param_groups[0]["lr"],
                    "scale": scaler.get_scale(),
                    "digest": trainers.digest_of(model, optimizer),
                    "normalised": [int(buffer) for buffer in model.buffers() if buffer.dtype == torch.int64],
                    "time": time.monotonic(),
                    "replays": _replay.installed().replays(),
                }
                file.write(json.dumps(told) + "\n")
            model.eval()
            for (held,) in check:
                with torch.no_grad():
                    checked = model(held)["out"].sum()
                dist.all_reduce(checked)
                plateau.step(checked.item())
            torch.save(model.state_dict(), f"{log} checkpoint {dist.get_rank()}")
            enough = torch.tensor(float(ends.exists()))
            dist.all_reduce(enough)
            if enough:
                break
    return epoch + 1


class Unmodified(trainers.Trainer):
    """A process that runs the script under `--adapt torch`."""

    def start(self, port: int, rank: int, size: int, timeout: float) -> None:
        _replay.installed()
        super().start(port, rank, size, timeout)
        self._stand_in()

    def join(self, masters: str, keys: str, timeout: float) -> None:
        _replay.installed()
        pccl.distributed.join(masters, timeout=timedelta(seconds=timeout), keys=keys)
        self._stand_in()

    def _stand_in(self) -> None:
        """As Options(stands_in=True): in place of rank 0 another one says how to shuffle."""
        group: Any = dist.GroupMember.WORLD
        group._launcher.stands_in = True

    def _make(self) -> None:
        pass

    def run(self, *how: Any) -> int:
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # its loader has a worker
        return script(self.file.name, *how)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """What members have logged, without that of processes that catch up."""
    lines = [line for path in sorted(folder.glob("log ?")) for line in path.read_text().splitlines(keepends=True)]
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one for one in found if not one["replays"]]


def wait_for(folder: Path, rank: int, after: int, epochs: int) -> None:
    """Waits until a rank has logged a number of epochs after so many steps."""
    end = time.monotonic() + PATIENCE
    while len({one["at"][0] for one in lines_of(folder) if one["rank"] == rank and one["at"][2] > after}) < epochs:
        assert time.monotonic() < end, lines_of(folder)[-9:]
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("victim", "length", "workers", "accumulate", "by_rank", "two"),
    # with one batch the loader has always ended when its batch is trained on
    [(1, 16, 0, 1, True, True), (0, 16, 1, 2, False, False), (2, 1, 0, 1, False, True)],
)
def test_a_replacement_gets_to_the_place_of_the_others(tmp_path, victim, length, workers, accumulate, by_rank, two):
    how = length, workers, accumulate, by_rank, two
    with Job(tmp_path, environment=FIXED, role=Unmodified) as job:
        members = job.start(RANKS)
        masters = job.masters()
        for rank, member in enumerate(members):
            member.tell("run", *how, 11 if rank == victim else 0)
        assert members[victim].answer() is None
        if by_rank:  # a first replacement dies while it catches up, and the others go on
            dying = job.join(masters, RANK=str(victim), WORLD_SIZE=str(RANKS))
            assert dying.ask("run", *how, 5) is None
        members[victim] = job.join(masters, RANK=str(victim), WORLD_SIZE=str(RANKS))
        members[victim].tell("run", *how, 0)
        wait_for(tmp_path, victim, 11, 3)
        (tmp_path / "enough").touch()
        epochs = {member.answer() for member in members}
        assert len(epochs) == 1
    steps: dict[tuple[int, ...], dict[int, dict[str, Any]]] = {}
    for one in lines_of(tmp_path):
        steps.setdefault(tuple(one["at"]), {})[one["rank"]] = one
    replaced = [at for at, ranks in steps.items() if victim in ranks and at[2] > 11]
    assert len(replaced) >= 2 * length
    assert {at for at in steps if at >= replaced[0]} == set(replaced), "the replacement has missed a step"
    for at, ranks in steps.items():
        assert len({one["digest"] for one in ranks.values()}) == 1, at
        for name in ("loss", "rate", "scale", "normalised"):
            assert len({str(one[name]) for one in ranks.values()}) == 1, (at, name)
        shown = [index for one in ranks.values() for index in one["indices"]]
        assert len(set(shown)) == len(ranks) * BATCH, at
    for at in replaced:
        assert sorted(steps[at]) == [0, 1, 2]
        donor = steps[at][min(set(range(RANKS)) - {victim})]
        assert (steps[at][victim]["random"] == donor["random"]) is not by_rank, at
    for epoch in range(replaced[0][0] + 1, replaced[-1][0] + 1):
        read = [index for at, ranks in steps.items() if at[0] == epoch for one in ranks.values() for index in one["indices"]]
        assert sorted(read) == list(range(RANKS * BATCH * length)), epoch
