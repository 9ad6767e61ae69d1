"""What the programs share: the switches in their environment, the death of a rank, and the report of each process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

BACKEND = os.environ.get("BACKEND", "gloo")
ADAPTED = BACKEND == "pccl" and os.environ.get("ADAPTED", "1") == "1"
"""Whether the program calls pccl; otherwise it is what a user of the framework writes without it."""
STEPS = int(os.environ.get("STEPS", "12"))
KILL_STEP = 4
JOIN_STEP = 7
"""At which the members wait for a newcomer, in a run that a newcomer is to join."""
MEMBERS = int(os.environ.get("MEMBERS", "2"))
KILL_RANK = int(os.environ.get("KILL_RANK", "-1"))
JOINS = os.environ.get("JOINS") == "1"
NEWCOMER = os.environ.get("PCCL_JOIN") == "1"
FIRST_RANK = int(os.environ.get("RANK", "0"))
EXACTLY = int(os.environ.get("EXACTLY", "0"))
"""How many steps an undisturbed run makes, to be compared with one that ended by itself."""
UNTIL_REPLACED = (JOINS or EXACTLY > 0) and not ADAPTED
"""Whether the program goes on until all ranks have been there for some steps after the kill."""
REPORTS = Path(os.environ.get("REPORTS", "."))

torch.set_num_threads(1)

_losses: list[float] = []
_steps_left = 12


def step_ends(number: int, loss: Any) -> None:
    """Keeps the loss of a step. Kills this process if the run wants it to die here."""
    _losses.append(float(loss))
    if not NEWCOMER and FIRST_RANK == KILL_RANK and number == KILL_STEP:
        os.kill(os.getpid(), signal.SIGKILL)


def enough(made: int) -> bool:
    """Whether an unmodified program that a newcomer joins may end, once it has made so many steps; all ranks say the same."""
    global _steps_left
    if EXACTLY:
        return made >= EXACTLY
    if UNTIL_REPLACED:
        import pccl.distributed

        time.sleep(0.05)
        _steps_left -= made > KILL_STEP + 2 and not pccl.distributed.lost_ranks()
    return _steps_left <= 0


def admit_newcomer(step: int, sync: Any) -> None:
    """At the step where a newcomer is due, calls `sync` until it has joined."""
    if JOINS and not NEWCOMER and step >= JOIN_STEP:
        limit = time.monotonic() + 120
        while _members() < MEMBERS:
            if time.monotonic() > limit:
                raise TimeoutError("no newcomer joined within 120 s")
            sync()
            time.sleep(0.02)


def _members() -> int:
    import pccl.distributed

    return dist.get_world_size() - len(pccl.distributed.lost_ranks())


def steps(model: torch.nn.Module, optimizer: Any, **values: Any) -> Iterator[int]:
    """Yields the number of each step to make. Under pccl, Elastic lets newcomers in before each of them."""
    if not ADAPTED:
        for step in range(1_000_000 if UNTIL_REPLACED else STEPS):
            yield step
            if enough(step + 1):
                break
        return
    import pccl.distributed

    elastic = pccl.distributed.Elastic(model, optimizer, step=0, **values)
    while elastic.step < STEPS:
        elastic.sync()
        admit_newcomer(elastic.step, elastic.sync)
        yield elastic.step
        elastic.step += 1


def finish(model: torch.nn.Module, **more: Any) -> None:
    """Writes the report of this process."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    report = {
        "first_rank": FIRST_RANK,
        "newcomer": NEWCOMER,
        "backend": dist.get_backend() if dist.is_initialized() else "",
        "rank": dist.get_rank() if dist.is_initialized() else 0,
        "world_size": dist.get_world_size() if dist.is_initialized() else 1,
        "losses": _losses,
        "weights": digest.hexdigest(),
        **more,
    }
    path = REPORTS / f"{os.getpid()}.json"
    path.with_suffix(".new").write_text(json.dumps(report))
    path.with_suffix(".new").rename(path)


def batch(step: int, rank: int, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that no other rank has in this step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(rows, 16, generator=generator)
    return x, x[:, :4].argmax(1)


def classifier(norm: bool = True) -> torch.nn.Module:
    """A small model, the same in each process."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 64), *([torch.nn.BatchNorm1d(64)] if norm else []), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
    return torch.nn.Sequential(*layers)
