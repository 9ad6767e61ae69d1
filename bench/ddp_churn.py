"""Backs "Losses and newcomers" of docs/benchmarks.md: kills and joins in one run of unmodified DistributedDataParallel.

Each round lets one process join, and kills one, rank 0 too, at a random moment. Each process checks in each step that every
gradient is the average over members that were there; at the end all that have made a step must have had the same bits after
it. The delay of a kill is the time from SIGKILL to the end of the first optimizer step that each survivor makes without the
victim, less an undisturbed step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
from harness import BenchError, Report
from performers import Performer
from trainers import Job

FOREVER = 1 << 40
RANKS = 3
LIMIT_SECONDS = 60.0
"""Without a step, it hangs."""


class Log:
    """The steps of one process, as it writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.steps: list[dict[str, Any]] = []

    def read(self) -> None:
        if self._path.exists():
            with self._path.open() as opened:
                opened.seek(self._read)
                while (line := opened.readline()).endswith("\n"):
                    self._read = opened.tell()
                    self.steps.append(json.loads(line))

    def after(self, moment: float, size: int = 0) -> list[dict[str, Any]]:
        """The steps that have ended after a moment, of groups of this size if it is given; at least one."""
        while True:
            self.read()
            found = [step for step in self.steps if step["time"] > moment and size in (0, step["size"])]
            if found:
                return found
            if time.monotonic() > moment + LIMIT_SECONDS:
                raise BenchError(f"{self._path.name}: no step has ended for {LIMIT_SECONDS:g} s")
            time.sleep(0.001)


def body(args: argparse.Namespace) -> Report:
    kills = args.blocks
    chance = random.Random(args.seed)
    delays: list[float] = []
    undisturbed: list[float] = []
    faults = 0
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), width=args.width, options={"bucket_cap_mb": 1}) as job:
        alive: list[Performer] = job.start(RANKS)
        logs = {trainer.number: Log(Path(folder) / f"log {trainer.number}") for trainer in alive}
        masters = job.masters()
        for trainer in alive:
            trainer.tell("train", FOREVER)
        for _ in range(kills):
            begun = time.monotonic()
            fresh = job.join(masters)
            fresh.tell("train", FOREVER)
            alive.append(fresh)
            log = logs[fresh.number] = Log(Path(folder) / f"log {fresh.number}")
            log.after(begun)
            settled = time.monotonic()
            while len(steps := log.after(settled)) < 6:
                time.sleep(0.001)
            times = [step["time"] for step in steps]
            usual = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
            undisturbed.append(usual)
            time.sleep(chance.random() * 2 * usual)
            victim = alive.pop(chance.randrange(len(alive)))
            killed = time.monotonic()
            victim.signal(signal.SIGKILL)
            for trainer in alive:
                first = logs[trainer.number].after(killed, len(alive))[0]
                delays.append(max(0.0, first["time"] - killed - usual))
        settled = time.monotonic()
        for trainer in alive:
            last = logs[trainer.number].after(settled)[-1]
            faults += last["size"] != len(alive) or last["contributors"] != [len(alive)] * len(last["contributors"])
        faults += sum(trainer._pipe.poll(0) for trainer in alive)  # an average was wrong: the check has ended its training
        for trainer in alive:
            trainer.kill()
        made = job.steps()
        faults += list(made) != list(range(len(made)))
    what = f"{kills} kills and {kills} joins in one run of DDP"
    figures = [
        harness.figure(f"{what}: wrong averages, different bits, missing steps", str(faults), "0", faults == 0),
        harness.figure(f"{what}: the optimizer's next step comes later by", harness.milliseconds(statistics.median(delays))),
    ]
    return Report(figures, [{"step s": statistics.median(undisturbed), "steps": len(made), "most s": max(delays)}])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=512, help="of the layers: about 4 * width² bytes of gradients [512]")
    parser.add_argument("--seed", type=int, default=11)


if __name__ == "__main__":
    harness.measure(body, 50, options)
