"""Backs "Under torch.distributed, against gloo" of docs/benchmarks.md: collectives, buckets and steps of DDP by pccl and gloo.

All groups are made in the same processes, and methods take turns block by block on loopback, each process with one thread for
its arithmetic. pccl is measured as it is, when processes on one host share memory; by TCP alone, as between hosts; and in
strict mode, to see what continuing after a loss costs. A size is that of the larger tensor of a call. `step` is forward,
backward with DDP's reduce in buckets of 25 MiB, and an SGD step of a perceptron of 30 million fp32 parameters; `reduce` is
its buckets alone, begun together. Communication is a step's time beyond that of the same step whose hook reduces nothing.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from collections.abc import Callable
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Report, Row

from pccl.lab.ports import free_ports

SIZES = [4 * KIB, MIB, 16 * MIB, 64 * MIB]
LARGE = 16 * MIB
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 100
HIDDEN, LAYERS, BATCH = 2740, 4, 64
"""A perceptron of 30 million parameters."""
BY_TCP, STRICT, SILENT = "pccl by TCP", "pccl, strict", "DDP without a reduce"
BARS = {"pccl": 1.5, BY_TCP: 1.1}


def make_groups(peer: Peer, masters: dict[str, str], gloo_port: int) -> dict[str, Any]:
    """The world is gloo's; the others are beside it."""
    dist = methods.join_gloo(peer, gloo_port)
    import pccl.distributed

    groups = {"gloo": dist.group.WORLD}
    for name, address in masters.items():
        os.environ["PCCL_MASTER"] = address
        os.environ[methods.SAME_HOST_MEMORY] = "0" if name == BY_TCP else "1"
        options = pccl.distributed.Options(strict=name == STRICT)
        groups[name] = dist.new_group(backend="pccl", pg_options=options)
        dist.barrier(group=groups[name])  # what each said first on its links is what it offers
    del os.environ[methods.SAME_HOST_MEMORY], os.environ["PCCL_MASTER"]
    return groups


def collectives(dist: Any, group: Any, size: int, world: int) -> dict[str, Callable[[], object]]:
    """Each call with its largest tensor of `size` bytes."""
    import torch

    count = size // 4 // world * world
    whole, other, part = torch.zeros(count), torch.zeros(count), torch.zeros(count // world)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }


def worker(
    peer: Peer, masters: dict[str, str], gloo_port: int, sizes: list[int], blocks: int
) -> list[tuple[str, int, harness.Samples]]:
    import torch.distributed as dist

    groups = make_groups(peer, masters, gloo_port)
    timed: list[tuple[str, int, harness.Samples]] = []
    for size in sizes:
        by_group = {name: collectives(dist, group, size, peer.world) for name, group in groups.items()}
        per_block = max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))
        for call in by_group["gloo"]:
            calls = {name: by_group[name][call] for name in groups}
            timed.append((call, size, harness.alternate(peer, calls, blocks, per_block)))
    calls = {name: functools.partial(dist.barrier, group=group) for name, group in groups.items()}
    timed.append(("barrier", 0, harness.alternate(peer, calls, blocks, CALLS_PER_BLOCK)))
    timed += ddp_steps(peer, groups, blocks)
    peer.barrier.wait()
    return timed


def ddp_steps(peer: Peer, groups: dict[str, Any], blocks: int) -> list[tuple[str, int, harness.Samples]]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS)]
        return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))

    batch = torch.randn(BATCH, HIDDEN)
    steps: dict[str, Callable[[], object]] = {}

    def step_of(net: torch.nn.Module) -> Callable[[], object]:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step() -> None:
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    for name, group in groups.items():
        steps[name] = step_of(DistributedDataParallel(model(), process_group=group))
    silent = DistributedDataParallel(model(), process_group=groups["gloo"])
    silent.register_comm_hook(None, lambda _, bucket: no_reduce(bucket))
    steps[SILENT] = step_of(silent)
    whole = harness.alternate(peer, steps, blocks)
    gradients = sum(parameter.numel() for parameter in model().parameters())
    buckets = torch.zeros(gradients).split(25 * MIB // 4)

    def reduce(group: Any) -> None:
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]:
            work.wait()

    reduces = {name: functools.partial(reduce, group) for name, group in groups.items()}
    return [("step", 4 * gradients, whole), ("reduce", 4 * gradients, harness.alternate(peer, reduces, blocks))]


def no_reduce(bucket: Any) -> Any:
    """A hook that leaves the gradients as they are."""
    import torch

    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def body(args: argparse.Namespace) -> Report:
    if args.quick:
        args.worlds, args.sizes = [2], [MIB]
    rows: list[Row] = []
    bars: list[Row] = []
    table: dict[str, Row] = {}
    for world in args.worlds:
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            harness.Master() as strict,
            harness.Fleet(
                worker,
                world,
                masters={"pccl": usual.address, BY_TCP: by_tcp.address, STRICT: strict.address},
                gloo_port=free_ports(1)[0],
                sizes=args.sizes,
                blocks=args.blocks,
            ) as fleet,
        ):
            by_rank = fleet.results()
        for index, (call, size, _) in enumerate(by_rank[0]):
            what = f"{call}, {harness.size_text(size)}" if size else call
            samples = [rank[index][2] for rank in by_rank]
            times = {name: statistics.median(values) for name, values in harness.slowest(samples).items()}
            costs = harness.spent(samples)
            for name, seconds in times.items():
                cpu = {"CPU ms": statistics.median(costs[name]) * 1e3}
                rows.append({"ranks": world, "call": what, "method": name, "ms": seconds * 1e3} | cpu)
            row = table.setdefault(what, {"times gloo": what})
            for name, title in (("pccl", "by memory"), (BY_TCP, "by TCP")):
                if name in times:
                    row[f"{world} ranks, {title}"] = f"{times['gloo'] / times[name]:.2f} x"
            bars += bars_of(world, what, size, times)
    return Report([*table.values()], rows, bars)


def bars_of(world: int, what: str, size: int, times: dict[str, float]) -> list[Row]:
    what, gloo = f"torch.distributed, {world} ranks, {what}", times["gloo"]
    if SILENT not in times:
        least = BARS if size >= LARGE else dict.fromkeys(BARS, 1.0)
        return [harness.ratio(f"{what}, {name}", least[name], gloo / times[name]) for name in BARS if name in times]
    made = [harness.ratio(f"{what}, {name}", 1.0, gloo / times[name]) for name in BARS]
    for name in BARS:
        spared = (gloo - times[SILENT]) / max(times[name] - times[SILENT], 1e-9)
        made.append(harness.ratio(f"{what}, {name}, its communication", BARS[name], spared))
    elastic = times["pccl"] / times[STRICT]
    return [*made, harness.figure(f"{what}, elastic over strict", f"{elastic:.3f} x", "1.03 x", elastic <= 1.03)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of ranks")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, metavar="BYTES", help="tensor sizes")


if __name__ == "__main__":
    harness.measure(body, 11, options)
