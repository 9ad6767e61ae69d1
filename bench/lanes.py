"""One op over four lanes against one lane, on a long link where the window limits a single connection. Needs root."""

from __future__ import annotations

from typing import Any

import harness
import methods
from harness import KIB, MIB, Master, Peer, Row
from netlab import Lab, Link, fleet_at

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers in two network namespaces, joined by bench/wan's emulated link; the largest send buffer of a TCP
connection is held down (tcp_wmem), so that a window per round trip limits each connection well below the link. fp32 sum out
of place; one and several lanes, and bare TCP over one connection, in turn; the median of the slowest peer's time."""

LEAST = 3.5


def worker(peer: Peer, address: str, with_lanes: tuple[int, str], host: str, port: int, size: int, blocks: int) -> Any:
    """One lane at `address`, and that many at the other master."""
    import numpy as np

    source = np.full(size // 4, float(peer.rank + 1), dtype=np.float32)
    target = np.ones_like(source)
    comms = {lanes: methods.join_run(master, peer.world, lanes) for lanes, master in ((1, address), with_lanes)}
    raw = methods.RawTcp(peer, port, host)
    calls: dict[str, Any] = {"tcp, 1 connection": lambda: raw.exchange(source.data.cast("B"))}
    for lanes, comm in comms.items():
        calls[f"{lanes} lanes"] = lambda c=comm: c.all_reduce(source, target, op=pccl.ReduceOp.SUM)
    times = harness.alternate(peer, calls, blocks)
    if not np.all(target == 3.0):
        raise harness.BenchError("the sum is wrong")
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return times


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--size", type=int, default=32 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--lanes", type=int, default=4, help="compared with one")
    parser.add_argument("--megabits", type=float, default=2000, help="rate of the link, each way")
    parser.add_argument("--delay-ms", type=float, default=10, help="one way")
    parser.add_argument("--window", type=int, default=512 * KIB, metavar="BYTES", help="largest send buffer of one connection")
    args = parser.parse_args()
    where = harness.machine()
    with Lab() as lab:
        places = lab.long_pair(Link(megabits=args.megabits, delay_ms=args.delay_ms, queue_bytes=4 * MIB))
        for place in places:
            lab.sysctl(place, "net.ipv4.tcp_wmem", f"4096 16384 {args.window}")
        home = places[0]
        with (
            Master(home.address, home.namespace) as many,
            fleet_at(
                places,
                worker,
                with_lanes=(args.lanes, many.address),
                host=home.address,
                port=free_ports(1)[0],
                size=args.size,
                blocks=args.blocks,
            ) as fleet,
        ):
            medians = {name: harness.summary(values) for name, values in harness.slowest(fleet.results()).items()}
    slow = medians["1 lanes"]["median"]
    rows: list[Row] = [
        {
            "link": f"{args.megabits:g} Mbit/s, {2 * args.delay_ms:g} ms round trip, window {harness.size_text(args.window)}",
            "size": harness.size_text(args.size),
            "method": name,
            "median_s": time["median"],
            "min_s": time["min"],
            "Mbit/s": args.size * 8 / time["median"] / 1e6,
            "x 1 lane": slow / time["median"],
        }
        for name, time in medians.items()
    ]
    what = f"1 op over {args.lanes} lanes against 1 lane, where the window limits one connection"
    bars = [harness.ratio_bar(what, LEAST, slow / medians[f"{args.lanes} lanes"]["median"])]
    harness.report(args, "lanes", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
