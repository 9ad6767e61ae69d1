"""Kills, joins and a dead master in one DiLoCo run: parity after each outer step, and the loss against an undisturbed run.

    python bench/diloco_churn.py --method diloco --compression int8

Four peers train the GPT of examples/diloco.py. After every third outer step one is killed, at a random moment, or another one
joins, in turn; in the middle the master is killed, and started again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import defaultdict

from diloco import Peer
from harness import BenchError
from master_loss import Restarted

MODEL = "--width 32 --batch 8"


def train(arguments: list[str], peers: int, rounds: int, every: int, chance: random.Random | None) -> tuple[float, list[Peer]]:
    """Trains once, disturbed if `chance` is given; the validation loss at the end, and all peers with what they have told."""
    started: list[Peer] = []
    with contextlib.ExitStack() as stack:
        master = Restarted()
        stack.callback(master.kill)

        def start(needed: int) -> Peer:
            started.append(Peer(len(started), None, master.address, needed, arguments))
            stack.callback(started[-1].kill)
            return started[-1]

        alive = [start(peers) for _ in range(peers)]
        events = list(range(every, rounds, every)) if chance is not None else []
        spares = [start(1) for _ in events[1::2]]
        for peer in alive:
            peer.go()
        for number, step in enumerate(events):
            assert chance is not None
            victim = alive.pop(chance.randrange(len(alive))) if number % 2 == 0 else None
            alive[0].await_step(step)
            if victim:
                time.sleep(chance.random() * alive[0].usual_seconds())
                victim.kill()
            else:
                alive.append(spares.pop())
                alive[-1].go()
                alive[-1].await_step(1)
            if step >= rounds // 2 > step - every:
                master.kill()
                master.start()
            now = alive[0].lines[-1]["step"]
            print(f"after outer step {now}: {'a kill' if victim else 'a join'}, {len(alive)} peers", flush=True)
            if now > rounds - 2 * every:
                break  # what is left is too short for a joiner
        for peer in alive:
            peer.await_step(None)
    return alive[0].lines[-1]["validation"], started


def faults(peers: list[Peer]) -> list[str]:
    """Outer steps after which not all had the same outer state, or that a peer has left out."""
    found = []
    parities: dict[int, set[str]] = defaultdict(set)
    for number, peer in enumerate(peers):
        steps = [line["step"] for line in peer.lines]
        if steps and steps != list(range(steps[0], steps[0] + len(steps))):
            found.append(f"peer {number} has told of the outer steps {steps}")
        for line in peer.lines:
            parities[line["step"]].add(line["parity"])
    return found + [f"outer step {step}: parities {sorted(seen)}" for step, seen in parities.items() if len(seen) > 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="diloco", choices=["diloco", "async", "streaming", "sparse"])
    parser.add_argument("--compression", choices=["int8", "int4", "e3m0"])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=60, help="outer steps")
    parser.add_argument("--every", type=int, default=3, help="outer steps from one event to the next")
    parser.add_argument("--sync-every", type=int, default=50, help="inner steps of an outer step")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the moments and the victims")
    options = parser.parse_args()
    arguments = ["--method", options.method, *MODEL.split(), "--sync-every", str(options.sync_every)]
    arguments += ["--steps", str(options.rounds * options.sync_every)]
    arguments += ["--compression", options.compression] if options.compression else []
    undisturbed, _ = train(arguments, options.peers, options.rounds, options.every, None)
    loss, peers = train(arguments, options.peers, options.rounds, options.every, random.Random(options.seed))
    found = faults(peers)
    print(*found, sep="\n")
    print(
        f"{options.method}, compression {options.compression}, {options.rounds} outer steps, {len(peers)} processes, seed "
        f"{options.seed}: {len(found)} faults; validation loss {loss:.3f}, undisturbed {undisturbed:.3f} "
        f"({loss / undisturbed - 1:+.1%})"
    )
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(str(error))
