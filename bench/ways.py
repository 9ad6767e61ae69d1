"""Large all-reduces with an update vote after each, where members or sites are unlike: against the ring, and what links allow.

Needs root.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import harness
import methods
from diagnosis import Switch
from harness import MIB, Peer, Row
from netlab import Lab, Link, Place, fleet_at

import pccl

METHOD = """fp32 sums out of place in a loop with `update_topology` after each op, as in training; each op's time is that of
the slowest peer. `ring`: the first op, before the master changed anything. `chosen`: the median of the last ops, in what
the master had chosen from what it saw of the links meanwhile; nothing was probed. Four peers around an emulated switch
(bench/switch, 1 ms one way): one line has a quarter of the others' rate, each way; the bound is the tensor once over that
line. Six peers in three sites (bench/wan between each two of them); the bound: each site sends and receives 4/3 tensors,
half of them over each of its two links. The rates are low enough that two cores are not what limits the ops."""

SLOW = 2
SITES = (2, 2, 2)


def worker(peer: Peer, address: str, size: int, ops: int) -> Any:
    import numpy as np

    source = np.full(size // 4, float(peer.rank + 1), dtype=np.float32)
    target = np.empty_like(source)
    time.sleep(0.3 * peer.rank)  # the order of the ring is that of joining
    comm = methods.join_run(address, peer.world)
    methods.settle(comm)
    times = []
    for _ in range(ops):
        start = time.perf_counter()
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
        times.append(time.perf_counter() - start)
        comm.update_topology()
    if not np.all(target == peer.world * (peer.world + 1) / 2):
        raise harness.BenchError("the sum is wrong")
    comm.close()
    return times


def loop(places: Sequence[Place], size: int, ops: int) -> list[float]:
    """Seconds of each op."""
    with fleet_at(places, worker, size=size, ops=ops) as fleet:
        return [max(all_of_it) for all_of_it in zip(*fleet.results(), strict=True)]


def row(what: str, size: int, bound: float, times: Sequence[float], last: int) -> Row:
    ring, chosen = times[0], statistics.median(times[-last:])
    return {
        "what": what,
        "size": harness.size_text(size),
        "bound s": bound,
        "ring s": ring,
        "chosen s": chosen,
        "ring/chosen": ring / chosen,
        "chosen/bound": chosen / bound,
        "ops s": " ".join(f"{seconds:.2f}" for seconds in times),
    }


def one_slow(size: int, ops: int, last: int, megabits: float) -> Row:
    with Switch(4, 1) as switch:
        for index in range(4):
            rate = megabits / 4 if index == SLOW else megabits
            switch.tell(f"up {index} {rate} 0")
            switch.tell(f"down {index} {rate} 0")
        times = loop(switch.places, size, ops)
    bound = size * 8 / (megabits / 4 * 1e6)
    return row(f"4 peers, {megabits:g} Mbit/s each, one {megabits / 4:g}", size, bound, times, last)


def three_sites(size: int, ops: int, last: int, link: Link, control: str) -> Row:
    with Lab() as lab:
        places = lab.sites(SITES, link)
        for place in places:
            lab.congestion(place, control)
        times = loop(places, size, ops)
    bound = size * 8 * 2 / 3 / (link.megabits * 1e6)
    return row(f"6 peers in 3 sites, {link.megabits:g} Mbit/s and {2 * link.delay_ms:g} ms", size, bound, times, last)


def run() -> None:
    parser = harness.parser(__doc__, blocks=1)
    parser.add_argument("--size", type=int, default=64 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--ops", type=int, default=12, help="in each loop")
    parser.add_argument("--last", type=int, default=4, help="ops that count for the chosen way")
    parser.add_argument("--megabits", type=float, default=200, help="of the lines of four peers; one has a quarter")
    parser.add_argument("--site-megabits", type=float, default=200, help="of each link between two sites")
    parser.add_argument("--delay-ms", type=float, default=40, help="one way, between sites")
    parser.add_argument("--site-control", default="cubic", help="congestion control of six peers in three sites")
    parser.add_argument("--only", choices=["slow", "sites"], help="one of both")
    args = parser.parse_args()
    where = harness.machine()
    rows, bars = [], []
    if args.only != "sites":
        slow = one_slow(args.size, args.ops, args.last, args.megabits)
        rows.append(slow)
        times_bound, faster = slow["chosen/bound"], slow["ring/chosen"]
        bars.append(harness.bar("one slow of 4: time over the bound", "at most 1.15", f"{times_bound:.2f}", times_bound <= 1.15))
        bars.append(harness.ratio_bar("one slow of 4: faster than the ring", 1.3, faster))
    if args.only != "slow":
        link = Link(megabits=args.site_megabits, delay_ms=args.delay_ms)
        sites = three_sites(args.size, args.ops, args.last, link, args.site_control)
        rows.append(sites)
        bars.append(harness.ratio_bar("3 sites: part of what links between sites allow", 0.85, 1 / sites["chosen/bound"]))
    harness.report(args, "ways", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
