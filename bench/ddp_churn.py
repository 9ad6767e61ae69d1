"""Kills and joins in one run of unmodified DistributedDataParallel: hangs, bits, averages, and how long a kill holds others up.

    python bench/ddp_churn.py --kills 50 --width 512

Each round lets one process join, and kills one, rank 0 too, at a random moment. Each process checks in each step that every
gradient is the average over members that were there; at the end all that have made a step must have had the same bits after it.
The delay of a kill is the time from SIGKILL to the end of the first optimizer step that each survivor makes without the victim,
less an undisturbed step.
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

from performers import Performer
from trainers import Job

FOREVER = 1 << 40


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

    def after(self, moment: float, limit: float, size: int = 0) -> list[dict[str, Any]]:
        """The steps that have ended after a moment, of groups of this size if it is given; at least one."""
        while True:
            self.read()
            found = [step for step in self.steps if step["time"] > moment and size in (0, step["size"])]
            if found:
                return found
            if time.monotonic() > moment + limit:
                raise TimeoutError(f"{self._path.name}: no step has ended for {limit:g} s")
            time.sleep(0.001)


def churn(kills: int, width: int, ranks: int, limit: float, seed: int) -> int:
    """Runs it and prints what was measured; the number of faults."""
    chance = random.Random(seed)
    delays: list[float] = []
    undisturbed: list[float] = []
    faults = 0
    with tempfile.TemporaryDirectory() as folder, Job(Path(folder), width=width, options={"bucket_cap_mb": 1}) as job:
        alive: list[Performer] = job.start(ranks)
        logs = {trainer.number: Log(Path(folder) / f"log {trainer.number}") for trainer in alive}
        masters = job.masters()
        for trainer in alive:
            trainer.tell("train", FOREVER)
        for number in range(kills):
            begun = time.monotonic()
            fresh = job.join(masters)
            fresh.tell("train", FOREVER)
            alive.append(fresh)
            logs[fresh.number] = Log(Path(folder) / f"log {fresh.number}")
            logs[fresh.number].after(begun, limit)
            settled = time.monotonic()
            while len(steps := logs[fresh.number].after(settled, limit)) < 6:
                time.sleep(0.001)
            times = [step["time"] for step in steps]
            usual = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
            undisturbed.append(usual)
            time.sleep(chance.random() * 2 * usual)
            victim = alive.pop(chance.randrange(len(alive)))
            killed = time.monotonic()
            victim.signal(signal.SIGKILL)
            for trainer in alive:
                first = logs[trainer.number].after(killed, limit, len(alive))[0]
                delays.append(max(0.0, first["time"] - killed - usual))
            print(
                f"kill {number + 1}: {len(alive)} go on; the last one after {max(delays[-len(alive) :]) * 1e3:.0f} ms", flush=True
            )
        settled = time.monotonic()
        for trainer in alive:
            last = logs[trainer.number].after(settled, limit)[-1]
            faults += last["size"] != len(alive) or last["contributors"] != [len(alive)] * len(last["contributors"])
        faults += sum(trainer._pipe.poll(0) for trainer in alive)  # an average was wrong: the check has ended its training
        for trainer in alive:
            trainer.kill()
        made = job.steps()
        faults += list(made) != list(range(len(made)))
    print(
        f"{kills} kills and {kills} joins in {len(made)} steps of {ranks} to {ranks + 1} ranks (width {width}, seed {seed}): "
        f"0 hangs, 0 steps with different bits, {faults} wrong averages or missing steps\n"
        f"step: median {statistics.median(undisturbed) * 1e3:.0f} ms; from SIGKILL to a survivor's next optimizer step, beyond a "
        f"step: median {statistics.median(delays) * 1e3:.0f} ms, most {max(delays) * 1e3:.0f} ms"
    )
    return faults


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="and joins")
    parser.add_argument("--width", type=int, default=256, help="of the layers: about 4 * width² bytes of gradients")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60, help="seconds without a step that count as a hang")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    sys.exit(1 if churn(options.kills, options.width, options.ranks, options.limit, options.seed) else 0)


if __name__ == "__main__":
    main()
