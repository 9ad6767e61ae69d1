"""All-reduces over two network cards against one. Needs root."""

from __future__ import annotations

import functools
import os
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row
from netlab import Lab, fleet_at

import pccl

METHOD = """Two peers in two network namespaces joined by two veth pairs, what leaves each limited by tc tbf. Each peer has
a communicator with PCCL_INTERFACE of one card, and then one with both; fp32 average in place; the median of the slowest peer's
time."""

LEAST = 1.9
CARDS = {"one card": 1, "two cards": 2}


def worker(peer: Peer, address: str, devices: list[list[str]], size: int, blocks: int) -> Any:
    import numpy as np

    times: dict[str, Any] = {}
    for name, count in CARDS.items():
        os.environ["PCCL_INTERFACE"] = ",".join(devices[peer.rank][:count])
        with methods.join_run(address, peer.world) as comm:
            tensor = np.ones(size // 4, np.float32)
            calls = {name: functools.partial(comm.all_reduce, tensor, op=pccl.ReduceOp.AVG)}
            times |= harness.alternate(peer, calls, blocks)
            peer.barrier.wait()
        peer.barrier.wait()
    return times


def run() -> None:
    parser = harness.parser(__doc__, blocks=5)
    parser.add_argument("--size", type=int, default=16 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--megabits", type=float, default=100, help="rate of each card, each way")
    args = parser.parse_args()
    where = harness.machine()
    with Lab() as lab:
        first = lab.pair()
        second = lab.second_cards(*first)
        for place in (*first, *second):
            lab.limit(place, args.megabits)
        devices = [[a.device, b.device] for a, b in zip(first, second, strict=True)]
        with fleet_at(first, worker, devices=devices, size=args.size, blocks=args.blocks) as fleet:
            results = fleet.results()
    medians = {name: harness.summary(values) for name, values in harness.slowest(results).items()}
    one = medians["one card"]["median"]
    rows: list[Row] = [
        {
            "cards": f"{args.megabits:g} Mbit/s each",
            "size": harness.size_text(args.size),
            "method": name,
            "median_s": time["median"],
            "min_s": time["min"],
            "x one card": one / time["median"],
            "Mbit/s": args.size * 8 / 1e6 / time["median"],
        }
        for name, time in medians.items()
    ]
    of = f"two cards against one, 2 peers, {harness.size_text(args.size)}, {args.megabits:g} Mbit/s each"
    bars = [harness.ratio_bar(of, LEAST, one / medians["two cards"]["median"])]
    harness.report(args, "cards", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
