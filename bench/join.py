"""From connect() to accepted, while the peers of the run idle in a voting loop or are busy with reduces."""

from __future__ import annotations

import random
import time
from typing import Any

import harness
import methods
from harness import MIB, Master, Peer, Row

import pccl

METHOD = """Two peers are in a run; a third makes a communicator, connects and leaves, again and again; the time of connect()
is taken. Idle: the two do nothing but `if are_peers_pending(): update_topology()` (asking), or nothing but update_topology()
(updating). Busy: they also sum a tensor of 1 MiB each time round. The third pauses for a random time between its visits."""

ACCEPTED = 2
BARS_MS = {"idle, asking": 4.0, "idle, updating": 4.0, "busy": 15.0}
WARM_UPS = 2


def worker(peer: Peer, address: str, kind: str, visits: int) -> list[float]:
    if peer.rank < ACCEPTED:
        serve(peer, address, kind)
    peer.barrier.wait()
    draw = random.Random(visits)
    seconds = []
    for _ in range(WARM_UPS + visits):
        time.sleep(draw.uniform(0.005, 0.02))
        with pccl.Communicator(address) as comm:
            start = time.perf_counter()
            comm.connect()
            seconds.append(time.perf_counter() - start)
    return seconds[WARM_UPS:]


def serve(peer: Peer, address: str, kind: str) -> None:
    """An accepted peer; goes round until the fleet ends it."""
    import numpy as np

    comm = methods.join_run(address, ACCEPTED)
    source = np.ones(MIB // 4, dtype=np.float32)
    target = np.ones_like(source)
    peer.barrier.wait()
    while True:
        if kind == "idle, updating" or comm.are_peers_pending():
            comm.update_topology()
        if kind == "busy":
            reduce(comm, source, target)


def reduce(comm: pccl.Communicator, source: Any, target: Any) -> None:
    """Again after each loss: every visit ends in one."""
    while True:
        try:
            comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
            return
        except pccl.PeerLostError:
            pass


def run() -> None:
    parser = harness.parser(__doc__, blocks=40)
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for kind, most in BARS_MS.items():
        shape = {"kind": kind, "visits": args.blocks}
        with Master() as master, harness.Fleet(worker, ACCEPTED + 1, address=master.address, **shape) as fleet:
            time_ = harness.summary(fleet.receive(ACCEPTED, timeout=120))
        row = {"others": kind, **{f"{key}_ms": time_[key] * 1e3 for key in ("median", "min", "max")}, "visits": args.blocks}
        rows.append(row)
        what = f"join on loopback, connect() to accepted, the others {kind}"
        bars.append(harness.bar(what, f"median under {most:g} ms", f"{row['median_ms']:.2f} ms", row["median_ms"] < most))
    harness.report(args, "join", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
