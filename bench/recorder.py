"""What the flight recorder costs: processor time of small all-reduces with it and without it."""

from __future__ import annotations

import statistics
from typing import Any

import harness
import numpy as np
from harness import Fleet, Master, Peer, Row

import pccl

METHOD = """fp32 sums in place, one after another, on two communicators of each peer: one keeps events, the other has none. Blocks
in turn. Processor time of all threads of all peers, in microseconds for each call of one peer; the ratio is the median of the
blocks' ratios, each to its neighbour."""

CALLS = 200
MOST = 1.01


def worker(peer: Peer, address: str, plain: str, size: int, blocks: int) -> Any:
    with pccl.Communicator(address) as kept, pccl.Communicator(plain, events=False) as without:
        for comm in (kept, without):
            comm.connect()
            comm.wait_for_peers(peer.world)
        array = np.zeros(size // 4, np.float32)
        calls = {"recorder": lambda: kept.all_reduce(array, array), "none": lambda: without.all_reduce(array, array)}
        found = harness.alternate(peer, calls, blocks, CALLS)
        peer.barrier.wait()
    return found


def run() -> None:
    parser = harness.parser(__doc__, blocks=60)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--size", type=int, default=4096, metavar="BYTES", help="bytes of the tensor")
    args = parser.parse_args()
    with Master() as master, Master() as second:
        arguments = {"address": master.address, "plain": second.address, "size": args.size, "blocks": args.blocks}
        with Fleet(worker, args.peers, **arguments) as fleet:
            results = fleet.results()
    cpu = harness.spent(results)
    ratio = statistics.median(a / b for a, b in zip(cpu["recorder"], cpu["none"], strict=True))
    row: Row = {"peers": args.peers, "size": harness.size_text(args.size)}
    row |= {f"us, {name}": 1e6 * statistics.median(values) / args.peers for name, values in cpu.items()}
    rows = [{**row, "recorder / none": ratio}]
    bars = [harness.bar("processor time with the recorder", f"at most {MOST:g}", f"{ratio:.3f}", ratio <= MOST)]
    harness.report(args, "recorder", METHOD, harness.machine(), rows, bars)


if __name__ == "__main__":
    harness.main(run)
