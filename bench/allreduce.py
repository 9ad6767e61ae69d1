"""An fp32 sum of one tensor: pccl out of place and in place, gloo (in place: it has no other), bare TCP for two peers.

pccl is measured twice: as it is, when neighbours on one host may read each other's memory, and by TCP alone, as between hosts.
"""

from __future__ import annotations

from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row

import pccl
from pccl.stress.ports import free_ports

SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 50
"""A block of small ops is so many bytes, but at most so many calls."""

METHOD = """fp32 sum on loopback, methods in turn block by block, median over blocks of the slowest peer's time per op;
throughput = bytes of the tensor / time; small ops are timed back to back, many to a
block; CPU time is that of all peers together, without the master's."""


def bar_of(world: int, size: int) -> float | None:
    """The ratio to gloo that is aimed at."""
    if size <= MIB:
        return 1.0
    if world == 2:
        return 1.7 if size == 16 * MIB else 2.0
    return 1.3 if world == 4 else None


def worker(peer: Peer, addresses: methods.Addresses, gloo_port: int, raw_port: int, sizes: list[int], blocks: int) -> list[Any]:
    import torch

    comms = methods.join_both(addresses, peer.world)
    dist = methods.join_gloo(peer, gloo_port)
    raw = methods.RawTcp(peer, raw_port) if peer.world == 2 else None
    timed = []
    for size in sizes:
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
            calls[f"{name}, in place"] = lambda c=comm, t=in_place: c.all_reduce(t, t, op=pccl.ReduceOp.SUM)
        if raw is not None:
            data = memoryview(source.numpy()).cast("B")
            calls["tcp"] = lambda d=data: raw.exchange(d)
        per_block = max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))
        timed.append(harness.alternate(peer, calls, blocks, per_block))
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return timed


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
        gloo_port, raw_port = free_ports(2)
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            harness.Fleet(
                worker,
                world,
                addresses=methods.Addresses(usual.address, by_tcp.address),
                gloo_port=gloo_port,
                raw_port=raw_port,
                sizes=args.sizes,
                blocks=args.blocks,
                pin=args.pin,
            ) as fleet,
        ):
            by_rank = fleet.results()
        for index, size in enumerate(args.sizes):
            add_rows(rows, bars, world, size, [rank[index] for rank in by_rank])
    harness.report(args, "allreduce", METHOD + (" Each peer on one core." if args.pin else ""), where, rows, bars)


def add_rows(rows: list[Row], bars: list[Row], world: int, size: int, by_rank: list[harness.Samples]) -> None:
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
            }
        )
    least = bar_of(world, size)
    for name in times:
        if least is not None and name.startswith("pccl"):
            what = f"{world} peers, {harness.size_text(size)}, {name}, against gloo"
            bars.append(harness.ratio_bar(what, least, gloo / times[name]["median"]))


if __name__ == "__main__":
    harness.main(run)
