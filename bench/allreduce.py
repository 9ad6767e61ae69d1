"""An fp32 sum of one tensor: pccl out of place and in place, gloo (in place: it has no other), bare TCP.

pccl is measured twice: as it is, when neighbours on one host may read each other's memory, and by TCP alone, as between hosts.
"""

from __future__ import annotations

import os
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row

import pccl
from pccl.cli.bare_tcp import BareTcp
from pccl.lab.ports import free_ports

SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 50
"""A block of small ops is so many bytes, but at most so many calls."""

METHOD = """fp32 sum on loopback, methods in turn block by block, median over blocks of the slowest peer's time per op;
throughput = bytes of the tensor / time; small ops are timed back to back, many to a
block; CPU time is that of all peers together, without the master's; `tcp` sends the bytes of a ring to the next peer and sums
nothing, once with the congestion control that pccl chooses within a host and once with the system's; congestion: of the
connections that a method made; load: the machine's average when the size was begun."""


BARS = {2: {1: 1.2, 16: 1.5, 64: 1.6, 256: 1.4}, 4: {1: 1.3, 16: 1.3, 64: 1.4, 256: 1.4}}
"""The ratio to gloo that is aimed at, by peers and MiB; in place 0.95 of that. Below 1 MiB it is 1."""
IN_PLACE = ", in place"


def bar_of(world: int, size: int, in_place: bool) -> float | None:
    least = 1.0 if size < MIB else BARS.get(world, {}).get(size // MIB)
    return round(least * 0.95, 2) if least is not None and in_place else least


def worker(
    peer: Peer, addresses: methods.Addresses, gloo_port: int, tcp_ports: list[list[int]], sizes: list[int], blocks: int
) -> dict[str, Any]:
    import torch

    before = methods.descriptors()
    comms = methods.join_both(addresses, peer.world)
    congestion = dict.fromkeys([*comms, *(name + IN_PLACE for name in comms)], methods.congestion_since(before))
    before = methods.descriptors()
    dist = methods.join_gloo(peer, gloo_port)
    dist.barrier()  # it connects when it has something to send
    congestion["gloo"] = methods.congestion_since(before)
    bare = {"tcp": BareTcp(peer.rank, tcp_ports[0], "reno"), "tcp, system's choice": BareTcp(peer.rank, tcp_ports[1])}
    congestion |= {name: one.congestion for name, one in bare.items()}
    timed, loads = [], []
    for size in sizes:
        loads.append(os.getloadavg()[0])
        source = torch.full((size // 4,), float(peer.rank + 1))
        target, in_place = torch.ones_like(source), source.clone()
        for comm in comms.values():
            check(comm, source, target, peer.world)
            check(comm, in_place.copy_(source), in_place, peer.world)
        source.zero_()
        in_place.zero_()  # sums in place stay finite
        calls: dict[str, Any] = {"gloo": lambda t=in_place: dist.all_reduce(t)}
        for name, comm in comms.items():
            calls[name] = lambda c=comm, s=source, t=target: c.all_reduce(s, t, op=pccl.ReduceOp.SUM)
            calls[name + IN_PLACE] = lambda c=comm, t=in_place: c.all_reduce(t, t, op=pccl.ReduceOp.SUM)
        data = memoryview(source.numpy()).cast("B")
        for name, one in bare.items():
            calls[name] = lambda o=one, d=data: o.exchange(d)
        per_block = max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))
        timed.append(harness.alternate(peer, calls, blocks, per_block))
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return {"timed": timed, "loads": loads, "congestion": congestion}


def check(comm: pccl.Communicator, source: Any, target: Any, world: int) -> None:
    """Every peer gives its rank + 1."""
    comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
    if not bool((target == world * (world + 1) / 2).all()):
        raise harness.BenchError("a sum is wrong")


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of peers")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="tensor sizes")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for world in args.worlds:
        gloo_port, *tcp_ports = free_ports(1 + 2 * world)
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            harness.Fleet(
                worker,
                world,
                addresses=methods.Addresses(usual.address, by_tcp.address),
                gloo_port=gloo_port,
                tcp_ports=[tcp_ports[:world], tcp_ports[world:]],
                sizes=args.sizes,
                blocks=args.blocks,
                pin=args.pin,
                realtime=args.realtime,
            ) as fleet,
        ):
            by_rank = fleet.results()
        for index, size in enumerate(args.sizes):
            beside = {"peers run": harness.placement(args), "load": by_rank[0]["loads"][index]}
            add_rows(rows, bars, world, size, [rank["timed"][index] for rank in by_rank], by_rank[0]["congestion"], beside)
    harness.report(args, "allreduce", METHOD + (" Each peer on one core." if args.pin else ""), where, rows, bars)


def add_rows(
    rows: list[Row],
    bars: list[Row],
    world: int,
    size: int,
    by_rank: list[harness.Samples],
    congestion: dict[str, str],
    beside: Row,
) -> None:
    times = {name: harness.summary(values) for name, values in harness.slowest(by_rank).items()}
    spent = {name: harness.summary(values) for name, values in harness.spent(by_rank).items()}
    gloo = times["gloo"]["median"]
    for name, time in times.items():
        rows.append(
            {
                "peers": world,
                "size": harness.size_text(size),
                "method": name,
                "median_ms": time["median"] * 1e3,
                "min_ms": time["min"] * 1e3,
                "GB/s": size / time["median"] / 1e9,
                "x gloo": gloo / time["median"],
                "x tcp": times["tcp"]["median"] / time["median"] if "tcp" in times else "",
                "cpu_ms": spent[name]["median"] * 1e3,
                "congestion": congestion[name],
                **beside,
            }
        )
    for name in times:
        least = bar_of(world, size, name.endswith(IN_PLACE))
        if least is not None and name.startswith("pccl"):
            what = f"{world} peers, {harness.size_text(size)}, {name}, against gloo"
            bars.append(harness.ratio_bar(what, least, gloo / times[name]["median"]))


if __name__ == "__main__":
    harness.main(run)
