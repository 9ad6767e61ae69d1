"""Backs "All-reduce on one host, against gloo" of docs/benchmarks.md: an fp32 sum of one tensor by pccl, by gloo, and by a floor.

Methods take turns block by block in the same processes; small operations are timed back to back, many to a block. pccl is
measured as it is, when neighbours on one host share memory, and by TCP alone, as between hosts. gloo works in place only. The
floor (bench/floor.c) is a ring with one thread for each peer and chunks of 256 KiB that sums and does nothing else: by slots
in shared memory, or by TCP with Reno. "Of the floor" is the floor's time over pccl's. CPU time is that of all peers, without
the master's.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Report, Row

import pccl
from pccl.lab.ports import free_ports

SIZES = [4 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 50
"""A block of small operations is so many bytes, but at most so many calls."""

IN_PLACE = ", in place"
GLOO_BARS = {2: {1: 1.2, 16: 1.5, 64: 1.6, 256: 1.4}, 4: {1: 1.3, 16: 1.3, 64: 1.4, 256: 1.4}}
"""The ratio to gloo that is aimed at, by peers and MiB; in place 0.95 of it."""
FLOOR_BARS = {2: {1: (85, 90), 16: (85, 90), 64: (0, 95), 256: (0, 95)}, 4: {64: (0, 98)}}
"""The least per cent of the floor, by memory and by TCP, by peers and MiB; 0: none."""


def worker(
    peer: Peer, addresses: methods.Addresses, gloo_port: int, plan: methods.FloorPlan, sizes: list[int], blocks: int
) -> list[harness.Samples]:
    import torch

    comms = methods.join_both(addresses, peer.world)
    dist = methods.join_gloo(peer, gloo_port)
    floor = methods.Floor(peer, plan)
    timed = []
    for size in sizes:
        source = torch.full((size // 4,), float(peer.rank + 1))
        target, in_place = torch.ones_like(source), source.clone()
        calls: dict[str, Any] = {**floor.calls(source, target), "gloo": lambda t=in_place: dist.all_reduce(t)}
        for name, comm in comms.items():
            calls[name] = lambda c=comm, s=source, t=target: c.all_reduce(s, t, op=pccl.ReduceOp.SUM)
            calls[name + IN_PLACE] = lambda c=comm, t=in_place: c.all_reduce(t, t, op=pccl.ReduceOp.SUM)
        for name, call in calls.items():
            in_place.copy_(source)
            target.zero_()
            call()
            made = in_place if name == "gloo" or name.endswith(IN_PLACE) else target
            if not bool((made == peer.world * (peer.world + 1) / 2).all()):  # every peer gives its rank + 1
                raise harness.BenchError(f"a sum of {name} is wrong")
        source.zero_()
        in_place.zero_()  # sums in place stay finite
        timed.append(harness.alternate(peer, calls, blocks, max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))))
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return timed


def body(args: argparse.Namespace) -> Report:
    if args.quick:
        args.worlds, args.sizes = [2], [4 * KIB, MIB]
    figures: list[Row] = []
    rows: list[Row] = []
    bars: list[Row] = []
    for world, realtime in itertools.product(args.worlds, harness.priorities()):
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
                realtime=realtime,
            ) as fleet,
        ):
            by_rank = fleet.results()
        priority = "real-time" if realtime else "normal"
        for size, samples in zip(args.sizes, zip(*by_rank, strict=True), strict=True):
            times, cpu = harness.slowest(samples), harness.spent(samples)
            medians = {name: statistics.median(values) for name, values in times.items()}
            where = {"peers": world, "size": harness.size_text(size), "priority": priority}
            for name, seconds in medians.items():
                row = {"method": name, "ms": seconds * 1e3, "x gloo": medians["gloo"] / seconds}
                rows.append(where | row | harness.costs(name, times, cpu, size))
            figures.append(figure(where, medians))
            bars += missed(world, size, priority, medians)
    return Report(figures, rows, bars)


def figure(where: Row, medians: dict[str, float]) -> Row:
    """Returns a row of the page: pccl's time by memory, and what gloo and the floor take of pccl's time."""
    made: Row = {**where, "ms by memory": f"{medians['pccl'] * 1e3:.3g}"}
    for name, title in (("pccl", "by memory"), ("pccl by TCP", "by TCP")):
        for way in ("", IN_PLACE):
            made[title + way] = f"{medians['gloo'] / medians[name + way]:.2g} x"
    for name, title in (("pccl", "of the floor, by memory"), ("pccl by TCP", "of the floor, by TCP")):
        made[title] = f"{100 * medians[harness.FLOORS['TCP' in name]] / medians[name]:.0f} %"
    return made


def missed(world: int, size: int, priority: str, medians: dict[str, float]) -> list[Row]:
    """Returns the bars of this size, which are for real-time priority."""
    if priority != "real-time":
        return []
    what = f"all-reduce of {harness.size_text(size)}, {world} peers"
    made = []
    for name, least in zip(("pccl", "pccl by TCP"), FLOOR_BARS.get(world, {}).get(size // MIB, ()), strict=False):
        share = 100 * medians[harness.FLOORS["TCP" in name]] / medians[name]
        made.append(harness.figure(f"{what}, {name}, of the floor", f"{share:.0f} %", f"{least} %", share >= least))
    if (of_gloo := GLOO_BARS.get(world, {}).get(size // MIB)) is not None:
        for name, seconds in medians.items():
            if name.startswith("pccl"):
                wanted = round(of_gloo * 0.95, 2) if name.endswith(IN_PLACE) else of_gloo
                made.append(harness.ratio(f"{what}, {name}, against gloo", wanted, medians["gloo"] / seconds))
    return made


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of peers")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="tensor sizes")


if __name__ == "__main__":
    harness.measure(body, 11, options)
