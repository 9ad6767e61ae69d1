"""An fp32 sum of one tensor: pccl out of place and in place, gloo (in place: it has no other), and the floor under both.

pccl is measured twice: as it is, when neighbours on one host may share memory, and by TCP alone, as between hosts.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row

import pccl
from pccl.lab.ports import free_ports

SIZES = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 50
"""A block of small ops is so many bytes, but at most so many calls."""

METHOD = """fp32 sum on loopback, methods in turn block by block, median over blocks of the slowest peer's time per op;
throughput = bytes of the tensor / time; small ops are timed back to back, many to a
block; CPU time is that of all peers together, without the master's; slowest block: over the median. The floor
(bench/floor.c) is a ring with one thread for each peer and chunks of 256 KiB that sums and does nothing else, by TCP with Reno
and by slots in shared memory. `% of the floor` is the floor's time over the method's: shared slots for pccl, which may read its
neighbour's memory, and TCP for the others. Congestion: of the connections that a method made; load: the machine's average
when the size was begun."""


BARS = {2: {1: 1.2, 16: 1.5, 64: 1.6, 256: 1.4}, 4: {1: 1.3, 16: 1.3, 64: 1.4, 256: 1.4}}
"""The ratio to gloo that is aimed at, by peers and MiB; in place 0.95 of that. Below 1 MiB it is 1."""
IN_PLACE = ", in place"
FLOOR_BARS = {2: {1: (90, 85), 16: (90, 85), 64: (95, 0), 256: (95, 0)}, 4: {64: (98, 0)}}
"""The least per cent of the floor, by TCP and by memory, by peers and MiB; 0: none."""
SLOWEST_BLOCK = 1.15
"""The most that the slowest block of 64 MiB may take, over the median."""


def bar_of(world: int, size: int, in_place: bool) -> float | None:
    least = 1.0 if size < MIB else BARS.get(world, {}).get(size // MIB)
    return round(least * 0.95, 2) if least is not None and in_place else least


def worker(
    peer: Peer, addresses: methods.Addresses, gloo_port: int, plan: methods.FloorPlan, sizes: list[int], blocks: int
) -> dict[str, Any]:
    import torch

    before = methods.descriptors()
    comms = methods.join_both(addresses, peer.world)
    congestion = dict.fromkeys([*comms, *(name + IN_PLACE for name in comms)], methods.congestion_since(before))
    before = methods.descriptors()
    dist = methods.join_gloo(peer, gloo_port)
    dist.barrier()  # it connects when it has something to send
    congestion["gloo"] = methods.congestion_since(before)
    floor = methods.Floor(peer, plan)
    timed, loads = [], []
    for size in sizes:
        loads.append(os.getloadavg()[0])
        source = torch.full((size // 4,), float(peer.rank + 1))
        target, in_place = torch.ones_like(source), source.clone()
        calls: dict[str, Any] = {**floor.calls(source, target)}
        for name, comm in comms.items():
            calls[name] = lambda c=comm, s=source, t=target: c.all_reduce(s, t, op=pccl.ReduceOp.SUM)
            calls[name + IN_PLACE] = lambda c=comm, t=in_place: c.all_reduce(t, t, op=pccl.ReduceOp.SUM)
        calls["gloo"] = lambda t=in_place: dist.all_reduce(t)
        for name, call in calls.items():
            in_place.copy_(source)
            target.zero_()
            call()
            made = in_place if name == "gloo" or name.endswith(IN_PLACE) else target
            if not bool((made == peer.world * (peer.world + 1) / 2).all()):  # every peer gives its rank + 1
                raise harness.BenchError(f"a sum of {name} is wrong")
        source.zero_()
        in_place.zero_()  # sums in place stay finite
        per_block = max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))
        timed.append(harness.alternate(peer, calls, blocks, per_block))
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return {"timed": timed, "loads": loads, "congestion": congestion}


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of peers")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="tensor sizes")
    harness.add_pin(parser)
    parser.add_argument("--normal", action="store_true", help="peers at normal priority; without --realtime too, both in turn")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for world, realtime in itertools.product(args.worlds, harness.priorities(args)):
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            methods.floor_plan(world) as plan,
            harness.Fleet(
                worker,
                world,
                addresses=methods.Addresses(usual.address, by_tcp.address),
                gloo_port=free_ports(1)[0],
                plan=plan,
                sizes=args.sizes,
                blocks=args.blocks,
                pin=args.pin,
                realtime=realtime,
            ) as fleet,
        ):
            by_rank = fleet.results()
        for index, size in enumerate(args.sizes):
            beside = {"peers run": harness.placement(args, realtime), "load": by_rank[0]["loads"][index]}
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
    times, spent = harness.slowest(by_rank), harness.spent(by_rank)
    medians = {name: harness.summary(values) for name, values in times.items()}
    gloo = medians["gloo"]["median"]
    for name, time in medians.items():
        costs = harness.costs(name, times, spent, size)
        ratio = gloo / time["median"]
        rows.append(
            {
                "peers": world,
                "size": harness.size_text(size),
                "method": name,
                "median_ms": time["median"] * 1e3,
                "min_ms": time["min"] * 1e3,
                "GB/s": size / time["median"] / 1e9,
                "x gloo": ratio,
                **costs,
                "congestion": congestion.get(name, "-"),
                **beside,
            }
        )
        if not name.startswith("pccl"):
            continue
        what = f"{world} peers, {harness.size_text(size)}, {name}, {beside['peers run']}"
        least = bar_of(world, size, name.endswith(IN_PLACE))
        if least is not None:
            bars.append(harness.ratio_bar(f"{what}, against gloo", least, ratio))
        by_tcp, by_memory = FLOOR_BARS.get(world, {}).get(size // MIB, (0, 0))
        if of_floor := by_tcp if "by TCP" in name else by_memory:
            share = costs["% of the floor"]
            bars.append(harness.bar(f"{what}, of the floor", f"at least {of_floor} %", f"{share:.0f} %", share >= of_floor))
        if size == 64 * MIB:
            most = costs["slowest block"]
            bars.append(
                harness.bar(f"{what}, slowest block", f"at most {SLOWEST_BLOCK} x", f"{most:.2f} x", most <= SLOWEST_BLOCK)
            )


if __name__ == "__main__":
    harness.main(run)
