"""Ops one after another over an emulated long link with losses, from cold, in steady state, and after a pause. Needs root."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row
from netlab import Lab, Link, Place, fleet_at

import pccl

METHOD = """Two peers in two network namespaces, joined by bench/wan's emulated link, whose queue holds one bandwidth-delay
product; congestion control by the route, as if it were the system's. Packets arrive each when it is due (`exact`, which
takes twice the processor time), or in ticks of 0.5 ms (`ticks`), as from a card that coalesces its interrupts. fp32 sums
out of place, one after another, with the lanes that the library chooses and with four, each over a new link. The rate is
the tensor's bits over the slowest peer's time: of the first op, of the last one that ended within 10 s from cold, of the
median of the second half, and of the first op after a pause. `sent again` is the part of all TCP segments."""

COLD_SECONDS = 10
BARS = (("by 10 s Mbit/s", 850), ("steady Mbit/s", 900))  # over 1 Gbit/s


def worker(peer: Peer, address: str, size: int, ops: int, pause: float, lanes: int) -> Any:
    import numpy as np

    source = np.full(size // 4, float(peer.rank + 1), dtype=np.float32)
    target = np.ones_like(source)
    comm = methods.join_run(address, peer.world, lanes)
    methods.settle(comm)
    times = []
    for op in range(ops + 1):
        if op == ops:
            peer.barrier.wait()
            time.sleep(pause)
        start = time.perf_counter()
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
        times.append(time.perf_counter() - start)
    if not np.all(target == 3.0):
        raise harness.BenchError("the sum is wrong")
    comm.close()
    return times


def segments(place: Place) -> tuple[int, int]:
    """TCP segments sent in this namespace so far, and those of them that were sent again."""
    text = subprocess.run(
        ["ip", "netns", "exec", place.namespace, "cat", "/proc/net/snmp"], capture_output=True, text=True, check=True
    ).stdout
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
    counts = dict(zip(names, map(int, values), strict=True))
    return counts["OutSegs"], counts["RetransSegs"]


def measure(link: Link, control: str, size: int, ops: int, pause: float, lanes: int) -> Row:
    with Lab() as lab:
        places = lab.long_pair(link)
        for place in places:
            lab.congestion(place, control)
        before = [segments(place) for place in places]
        with fleet_at(places, worker, size=size, ops=ops, pause=pause, lanes=lanes) as fleet:
            times = [max(both) for both in zip(*fleet.results(), strict=True)]
        after = [segments(place) for place in places]
    sent, again = (sum(b[i] - a[i] for a, b in zip(before, after, strict=True)) for i in (0, 1))
    rates = [size * 8 / 1e6 / seconds for seconds in times]
    ends = itertools.accumulate(times[:ops])
    return {
        "link": f"{link.megabits:g} Mbit/s, {2 * link.delay_ms:g} ms, loss {link.loss:g}",
        "control": control,
        "size": harness.size_text(size),
        "arrivals": "exact" if link.exact else "ticks",
        "lanes": lanes or "chosen",
        "first Mbit/s": rates[0],
        "by 10 s Mbit/s": rates[max(sum(end <= COLD_SECONDS for end in ends) - 1, 0)],
        "steady Mbit/s": statistics.median(rates[ops // 2 : ops]),
        "after a pause Mbit/s": rates[ops],
        "sent again %": 100 * again / sent,
    }


def run() -> None:
    parser = harness.parser(__doc__, blocks=1)
    parser.add_argument("--size", type=int, nargs="+", default=[256 * MIB], metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--ops", type=int, default=10, help="one after another, before the pause")
    parser.add_argument("--pause", type=float, default=10, metavar="SECONDS", help="before the last op")
    parser.add_argument("--control", nargs="+", default=["cubic", "bbr"], help="congestion control algorithms")
    parser.add_argument("--lanes", type=int, nargs="+", default=[0, 4], help="0: what the library chooses")
    parser.add_argument("--megabits", type=float, default=1000, help="rate of the link, each way")
    parser.add_argument("--delay-ms", type=float, default=40, help="one way")
    parser.add_argument("--loss", type=float, default=1e-4, help="part of the packets")
    parser.add_argument(
        "--arrivals", nargs="+", choices=["exact", "ticks"], default=["exact", "ticks"], help="of packets: when due, or in ticks"
    )
    args = parser.parse_args()
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    where = harness.machine()
    link = Link(megabits=args.megabits, delay_ms=args.delay_ms, loss=args.loss)
    rows = [
        measure(replace(link, exact=arrivals == "exact"), control, size, args.ops, args.pause, lanes)
        for _ in range(args.blocks)
        for control in args.control
        if control in known
        for size in args.size
        for lanes in args.lanes
        for arrivals in args.arrivals
    ]
    harness.report(args, "longlink", METHOD, where, rows, bars(rows, link))


def bars(rows: list[Row], link: Link) -> list[Row]:
    """The medians of each congestion control and way of arriving, with the lanes that the library chooses, over the link
    of the bars.
    """
    chosen = [row for row in rows if row["lanes"] == "chosen" and row["size"] == harness.size_text(256 * MIB)]
    if link != Link(megabits=1000, delay_ms=40, loss=1e-4):
        return []
    made = []
    for control, arrivals in dict.fromkeys((row["control"], row["arrivals"]) for row in chosen):
        for name, least in BARS:
            rate = statistics.median(row[name] for row in chosen if row["control"] == control and row["arrivals"] == arrivals)
            what = f"long link, {control}, arrivals {arrivals}, one op: {name.removesuffix(' Mbit/s')}"
            made.append(harness.bar(what, f"at least {least} Mbit/s", f"{rate:.0f} Mbit/s", rate >= least))
    return made


if __name__ == "__main__":
    harness.main(run)
