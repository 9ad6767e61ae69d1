"""From the SIGKILL of one of three peers in an op to the success of the survivors' repeated op."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import harness
import methods
from harness import MIB, Master, Peer, Row

import pccl

METHOD = """Three peers sum one fp32 tensor again and again; one, drawn at random, is killed by SIGKILL at a random point of
an op. Time from the kill to the moment when the op that the slower survivor repeated has succeeded, minus the median time of
an undisturbed op of the two survivors. A new process then takes the place of the killed one. `exit` is how long the kernel
needed to end the killed process altogether."""

WORLD = 3
SETTLED_OPS = 7
BAR_MS = 50.0


def worker(peer: Peer, address: str, size: int) -> None:
    import numpy as np

    source = np.full(size // 4, 1.0, dtype=np.float32)
    target = np.ones_like(source)
    comm = pccl.Communicator(address)

    def reduce() -> float:
        start = time.monotonic()
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
        return time.monotonic() - start

    comm.connect()
    while True:
        word, argument = harness.order(peer)
        if word == "form":
            methods.form(comm, WORLD)
            reduce()
            harness.tell(peer, statistics.median(reduce() for _ in range(SETTLED_OPS)))
        elif word == "reduce until a loss":
            time.sleep(max(0.0, argument - time.monotonic()))
            harness.tell(peer, reduce_until_loss(comm, reduce))
            if target[0] != WORLD - 1 or target[-1] != WORLD - 1:
                raise harness.BenchError("the survivors' sum is wrong")
            harness.tell(peer, statistics.median(reduce() for _ in range(SETTLED_OPS)))
        else:
            comm.close()
            harness.tell(peer, "closed")
            return


def reduce_until_loss(comm: pccl.Communicator, reduce: Any) -> tuple[float, float]:
    """When the error came and when the repeated op had succeeded."""
    while True:
        try:
            reduce()
        except pccl.PeerLostError:
            failed = time.monotonic()
            reduce()
            return failed, time.monotonic()


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--size", type=int, default=64 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--seed", type=int, default=1, help="of the victims and moments")
    args = parser.parse_args()
    where = harness.machine()
    draw = random.Random(args.seed)
    trials = []
    with Master() as master, harness.Fleet(worker, WORLD, address=master.address, size=args.size) as fleet:
        for _ in range(args.blocks):
            trials.append(trial(fleet, draw))
        fleet.send_all(("form", None))
        fleet.results()
        fleet.send_all(("close", None))
    rows: list[Row] = []
    for key in ("until the error", "until the repeat succeeded", "beyond the op's own time", "exit"):
        values = [one[key] * 1e3 for one in trials]
        made = harness.summary(values)
        rows.append(
            {"kill to": key, "median_ms": made["median"], "min_ms": made["min"], "max_ms": made["max"], "trials": len(values)}
        )
    median = statistics.median(one["beyond the op's own time"] for one in trials) * 1e3
    own = statistics.median(one["own"] for one in trials) * 1e3
    rows.append({"kill to": "(an undisturbed op of the survivors)", "median_ms": own})
    what = (
        f"kill until the survivors' repeated op has succeeded, {WORLD} peers, {harness.size_text(args.size)}, "
        "beyond the op's own time"
    )
    bars = [harness.bar(what, f"median under {BAR_MS:.0f} ms", f"{median:.1f} ms", median < BAR_MS)]
    harness.report(args, "recovery", METHOD, where, rows, bars)


def trial(fleet: harness.Fleet, draw: random.Random) -> dict[str, float]:
    victim = draw.randrange(WORLD)
    survivors = [rank for rank in range(WORLD) if rank != victim]
    fleet.send_all(("form", None))
    op_seconds = max(fleet.results())
    start = time.monotonic() + 0.05
    fleet.send_all(("reduce until a loss", start))
    time.sleep(max(0.0, start + draw.random() * op_seconds - time.monotonic()))
    killed = fleet.kill(victim)
    gone = fleet.wait_gone(victim)
    moments = [fleet.receive(rank) for rank in survivors]
    own = max(fleet.receive(rank) for rank in survivors)
    fleet.replace(victim)
    repeated = max(moment[1] for moment in moments) - killed
    return {
        "until the error": max(moment[0] for moment in moments) - killed,
        "until the repeat succeeded": repeated,
        "beyond the op's own time": repeated - own,
        "own": own,
        "exit": gone - killed,
    }


if __name__ == "__main__":
    harness.main(run)
