"""What a relay passes on, of what its line carries. Needs root."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row
from netlab import Lab, fleet_at

import pccl

METHOD = """Three network namespaces on a bridge; what leaves that of `pccl relay` is limited by tc tbf. Two peers that nobody
can dial (PCCL_ADDRESS=none) reduce through it; fp32 average in place. Each peer sends the tensor once, and the relay's line
carries both ways. The median of the slowest peer's time."""

LEAST = 0.8
PORT = 48150


def worker(peer: Peer, address: str, relay: str, size: int, blocks: int) -> Any:
    import numpy as np

    os.environ |= {"PCCL_ADDRESS": "none", "PCCL_RELAY": relay}
    with methods.join_run(address, peer.world) as comm:
        tensor = np.ones(size // 4, np.float32)
        times = harness.alternate(peer, {"relayed": functools.partial(comm.all_reduce, tensor, op=pccl.ReduceOp.AVG)}, blocks)
        peer.barrier.wait()
    return times


def run() -> None:
    parser = harness.parser(__doc__, blocks=5)
    parser.add_argument("--size", type=int, default=32 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--megabits", type=float, default=1000, help="rate of the relay's line")
    args = parser.parse_args()
    where = harness.machine()
    with Lab() as lab:
        one, two, third = lab.star(3)
        lab.limit(third, args.megabits)
        command = ["ip", "netns", "exec", third.namespace, sys.executable, "-m", "pccl.cli", "relay", f"{third.address}:{PORT}"]
        relay = subprocess.Popen([*command, "--insecure"], stdout=subprocess.PIPE, text=True)
        try:
            assert relay.stdout is not None
            relay.stdout.readline()  # it listens
            with fleet_at([one, two], worker, relay=f"{third.address}:{PORT}", size=args.size, blocks=args.blocks) as fleet:
                results = fleet.results()
        finally:
            relay.kill()
            relay.wait()
    time = harness.summary(harness.slowest(results)["relayed"])
    rate = 2 * args.size * 8 / 1e6 / time["median"]
    rows: list[Row] = [
        {
            "line": f"{args.megabits:g} Mbit/s",
            "size": harness.size_text(args.size),
            "median_s": time["median"],
            "min_s": time["min"],
            "Mbit/s relayed": rate,
        }
    ]
    what = f"relayed rate against the relay's line, {args.megabits:g} Mbit/s"
    harness.report(args, "relay", METHOD, where, rows, [harness.ratio_bar(what, LEAST, rate / args.megabits)])


if __name__ == "__main__":
    harness.main(run)
