"""What a member that leaves on SIGTERM costs the others, and how soon a spare takes part after a kill.

    python bench/leaving.py --trials 10
    python bench/leaving.py --trials 1 --megabytes 1      # seconds

Four processes train in one of four ways, with steps of 10 ms; one of them gets SIGTERM in the middle of a step. Then three train
with DistributedDataParallel while a fourth is a spare (max_members=3), and one of the three is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from leavers import KINDS, Team

STEPS = 60
PAUSE = 0.01


def leave(kind: str) -> dict[str, Any]:
    """One trial: the operations that were aborted on the others, the steps that were lost, and the seconds until it had left."""
    with Team(kind, 4, PAUSE) as job:
        for rank, trainer in enumerate(job.trainers):
            trainer.tell("train", STEPS, 20 if rank == 1 else -1)
        told = [trainer.answer(120) for trainer in job.trainers]
    left = told.pop(1)
    assert left["left"]
    assert all(one["steps"] == STEPS for one in told)
    together = min(one["log"].count(4) for one in told)
    return {
        "aborted": sum(one["lost"] for one in told),
        "lost": left["steps"] - together * (5 if kind == "diloco" else 1),  # it averages after five steps
        "seconds": left["seconds"],
    }


def replace(megabytes: int) -> float:
    """One trial: the seconds from the kill to the end of the spare's first operation."""
    os.environ["PCCL_MAX_MEMBERS"] = "3"
    width = int((megabytes * (1 << 20) / 4) ** 0.5)
    try:
        with Team("ddp", 3, PAUSE, "elastic", width) as job:
            where = job.trainers[0].ask("where")
            spare = job.add()
            spare.ask("join", *where)
            for trainer in job.trainers[:3]:
                trainer.tell("train", 1 << 30)
            spare.tell("train", 1 << 30, -1, 3)
            time.sleep(2)
            killed_at = time.monotonic()
            job.trainers[2].signal(signal.SIGKILL)
            told = spare.answer(120)
            assert told["first"] > 0
            seconds: float = told["first_at"] - killed_at
            return seconds
    finally:
        del os.environ["PCCL_MAX_MEMBERS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--megabytes", type=int, nargs="*", default=[1, 64], help="MiB of parameters, for the spare")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["PCCL_LOG_LEVEL"] = "ERR"
    found: dict[str, Any] = {}
    for kind in KINDS:
        trials = [leave(kind) for _ in range(options.trials)]
        seconds = [one["seconds"] for one in trials]
        found[kind] = trials
        aborted, lost = sum(one["aborted"] for one in trials), max(one["lost"] for one in trials)
        left = f"left {statistics.median(seconds):.3f} s after SIGTERM, at most {max(seconds):.3f} s"
        print(f"{kind}: {aborted} aborted operations, {lost} steps lost, {left} ({options.trials} trials)")
    for megabytes in options.megabytes:
        spares = [replace(megabytes) for _ in range(options.trials)]
        found[f"spare, {megabytes} MiB"] = spares
        print(
            f"spare, {megabytes} MiB: {statistics.median(spares):.3f} s after the kill, at most {max(spares):.3f} s", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
