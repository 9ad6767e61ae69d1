"""Real trainings whose processes are killed and joined at random: is each sample in exactly one committed step?

    python bench/elastic_data.py --runs 30
    python bench/elastic_data.py --quick
    python bench/elastic_data.py --kind workers --kind "two loaders"

Each run reads two epochs with DistributedDataParallel, with shards, with a sharded model or with DiLoCo. One or two of its
members kill themselves at a random point of a random step, and others join. At the end each survivor has an account of all
commits, and a model with a weight for each sample. Prints a line for each run, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from data_trainers import Job, Reader, check
from performers import MasterProcess, Performer

WORKERS = {"num_workers": 2, "prefetch_factor": 3, "multiprocessing_context": "fork"}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "stream": ("stream", {}),
    "fsdp": ("fsdp", {}),
    "hsdp": ("hsdp", {}),
    "workers": ("ddp", {"loader": WORKERS}),
    "persistent workers": ("ddp", {"loader": {**WORKERS, "persistent_workers": True}}),
    "fsdp workers": ("fsdp", {"loader": WORKERS}),
    "two loaders": ("ddp", {"second": 77}),
    "two with workers": ("ddp", {"second": 50, "loader": WORKERS}),
    "two for fsdp": ("fsdp", {"second": 50}),
    "accumulation": ("ddp", {"accumulate": 3}),
    "global batch": ("ddp", {"global": 24, "loader": {}}),
    "global, workers": ("ddp", {"global": 24, "loader": WORKERS}),
    "DiLoCo": ("DiLoCo", {}),
    "AsyncDiLoCo": ("AsyncDiLoCo", {}),
    "StreamingDiLoCo": ("StreamingDiLoCo", {}),
    "DiLoCo workers": ("DiLoCo", {"loader": {**WORKERS, "persistent_workers": True}}),
}
"""The training of a run, and the options of its members."""


def collective(kind: str, options: dict[str, Any], chance: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A run over a process group."""
    with Job(kind, chance.randint(100, 300), **{"ahead": chance.choice([0, 1, 3]), **options}) as job:
        sharded = kind in ("fsdp", "hsdp")
        first = job.start(chance.randint(3, 4) if kind != "hsdp" else 4)
        joined = [job.join(first[0]) for _ in range(chance.randint(0, 1 if sharded else 2))]
        members = [*first, *joined]
        kills = 1 if sharded else chance.randint(1, 2)
        dying = {one: chance.randint(1, 20 if "global" not in options else 6) for one in chance.sample(members[1:], kills)}
        where = chance.choice(["forward", "backward", "step"])
        for one in members:
            one.tell("train", dying.get(one), where, len(members))
        told = [one.answer() for one in members if one not in dying]
        return f"{len(first)} members, {len(joined)} joined, killed at {sorted(dying.values())} ({where})", told


def outer(kind: str, options: dict[str, Any], chance: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A run of DiLoCo."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterProcess(heartbeat_limit=30))
        size, ahead = chance.randint(100, 300), chance.choice([0, 1, 3])
        first, joined = chance.randint(2, 3), chance.randint(1, 2)
        peers = [Performer(Reader, number, ("diloco", size, {"ahead": ahead, **options})) for number in range(first + joined)]
        for peer in peers:
            stack.callback(peer.kill)
        dying = {one: chance.randint(0, 8) for one in chance.sample(peers[1:], 1)}
        where = chance.choice(["inner", "meeting"])
        for number, peer in enumerate(peers):
            begins = first if number < first else 1
            peer.tell("outer", master.address, kind, begins, len(peers), dying.get(peer), where)
        told = [peer.answer() for peer in peers if peer not in dying]
        return f"{first} members, {joined} joined, killed at {sorted(dying.values())} ({where})", told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="these alone, in turn")
    parser.add_argument("--quick", action="store_true", help="one run of each kind")
    arguments = parser.parse_args()
    wrong = 0
    kinds = arguments.kind or list(KINDS)
    runs = len(kinds) if arguments.quick else arguments.runs
    for number in range(runs):
        kind = kinds[number % len(kinds)]
        training, options = KINDS[kind]
        chance = random.Random(arguments.seed * 1000 + number)
        began = time.monotonic()
        try:
            text, told = (outer if "DiLoCo" in kind else collective)(training, options, chance)
            check(told)
            text += f": equal on {len(told)}, {told[0]['step']} steps"
        except (AssertionError, TimeoutError) as error:
            wrong += 1
            text = f"WRONG: {error}"
        print(f"{number:3} {kind:18} {text}, {time.monotonic() - began:.1f} s", flush=True)
    print(f"{runs - wrong} of {runs} runs have committed each sample of each epoch once")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
