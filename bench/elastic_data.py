"""Real trainings whose processes are killed and joined at random: is each sample in exactly one committed step?

    python bench/elastic_data.py --runs 30
    python bench/elastic_data.py --quick

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

KINDS = ("ddp", "stream", "fsdp", "DiLoCo", "AsyncDiLoCo", "StreamingDiLoCo")


def collective(kind: str, chance: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A run over a process group."""
    with Job(kind, chance.randint(100, 300), ahead=chance.choice([0, 1, 3])) as job:
        first = job.start(chance.randint(3, 4))
        joined = [job.join(first[0]) for _ in range(chance.randint(0, 2) if kind != "fsdp" else chance.randint(0, 1))]
        members = [*first, *joined]
        kills = 1 if kind == "fsdp" else chance.randint(1, 2)
        dying = {one: chance.randint(1, 20) for one in chance.sample(members[1:], kills)}
        where = chance.choice(["forward", "backward", "step"])
        for one in members:
            one.tell("train", dying.get(one), where, len(members))
        told = [one.answer() for one in members if one not in dying]
        return f"{len(first)} members, {len(joined)} joined, killed at {sorted(dying.values())} ({where})", told


def outer(kind: str, chance: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """A run of DiLoCo."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterProcess(heartbeat_limit=30))
        size, ahead = chance.randint(100, 300), chance.choice([0, 1, 3])
        first, joined = chance.randint(2, 3), chance.randint(1, 2)
        peers = [Performer(Reader, number, ("diloco", size, {"ahead": ahead})) for number in range(first + joined)]
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
    parser.add_argument("--quick", action="store_true", help="one run of each kind")
    arguments = parser.parse_args()
    wrong = 0
    runs = len(KINDS) if arguments.quick else arguments.runs
    for number in range(runs):
        kind = KINDS[number % len(KINDS)]
        chance = random.Random(arguments.seed * 1000 + number)
        began = time.monotonic()
        try:
            text, told = (outer if "DiLoCo" in kind else collective)(kind, chance)
            check(told)
            text += f": equal on {len(told)}, {told[0]['step']} steps"
        except (AssertionError, TimeoutError) as error:
            wrong += 1
            text = f"WRONG: {error}"
        print(f"{number:3} {kind:16} {text}, {time.monotonic() - began:.1f} s", flush=True)
    print(f"{runs - wrong} of {runs} runs have committed each sample of each epoch once")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
