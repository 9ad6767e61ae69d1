"""torch.distributed on the backend "pccl" against gloo: collectives, DDP's steps, new_group.

All groups are made in the same processes and measured in turn. pccl is measured twice: as it is, when processes on one host may
share memory, and by TCP alone, as between hosts; and in strict mode, to see what going on after a loss costs.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row

from pccl.lab.ports import free_ports

SIZES = [4 * KIB, MIB, 16 * MIB, 64 * MIB]
LARGE = 16 * MIB
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 100
HIDDEN, LAYERS, BATCH = 2740, 4, 64
"""A perceptron of 30 million parameters."""
BY_TCP, STRICT = "pccl by TCP", "pccl, strict"
ALONE, SILENT = "alone", "DDP without a reduce"
BARS = {"pccl": 1.5, BY_TCP: 1.1}

METHOD = """Methods in turn block by block on loopback, each process with one thread for its arithmetic; median over blocks of
the slowest process; a size is that of the larger tensor of a call; `step` is forward, backward with DDP's reduce in 25 MiB
buckets, and an SGD step of a perceptron of 30 million fp32 parameters, `reduce` its gradients in the same buckets alone, begun
together; `communication` is a step's time beyond that of the same step whose hook reduces nothing, in which DDP copies
gradients to its buckets and back as well; `alone` is without DDP."""


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
    peer: Peer, masters: dict[str, str], gloo_port: int, sizes: list[int], blocks: int, ddp: bool
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
    if ddp:
        timed += ddp_steps(peer, groups, blocks)
    timed.append(("new_group", 0, new_groups(peer, blocks)))
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
    steps[ALONE] = step_of(model())
    alone = harness.alternate(peer, steps, blocks)
    gradients = sum(parameter.numel() for parameter in model().parameters())
    buckets = torch.zeros(gradients).split(25 * MIB // 4)

    def reduce(group: Any) -> None:
        for work in [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]:
            work.wait()

    reduces = {name: functools.partial(reduce, group) for name, group in groups.items()}
    return [("step", 4 * gradients, alone), ("reduce", 4 * gradients, harness.alternate(peer, reduces, blocks))]


def no_reduce(bucket: Any) -> Any:
    """A hook that leaves the gradients as they are."""
    import torch

    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def new_groups(peer: Peer, blocks: int) -> harness.Samples:
    """Of torch's whole function: most of it is torch's own."""
    import torch.distributed as dist

    from pccl.distributed import _group

    samples: harness.Samples = {name: [] for name in ("gloo", "pccl")}
    above = next(group for group in dist.distributed_c10d._world.pg_map if isinstance(group, _group.ProcessGroup))
    for _ in range(blocks):
        for name in samples:
            peer.barrier.wait()
            start, cpu = time.perf_counter(), time.process_time()
            if name == "gloo":
                group = dist.new_group(list(range(peer.world)))
                dist.destroy_process_group(group)
            else:
                above.subgroup(above.get_group_store(), list(range(peer.world)), dist.default_pg_timeout)
            samples[name].append(harness.Sample(time.perf_counter() - start, time.process_time() - cpu))
    return samples


def run() -> None:
    parser = harness.parser(__doc__, blocks=11)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of processes")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, metavar="BYTES", help="tensor sizes")
    parser.add_argument("--no-ddp", action="store_true", help="leave DDP out")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for world in args.worlds:
        (gloo_port,) = free_ports(1)
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            harness.Master() as strict,
            harness.Fleet(
                worker,
                world,
                masters={"pccl": usual.address, BY_TCP: by_tcp.address, STRICT: strict.address},
                gloo_port=gloo_port,
                sizes=args.sizes,
                blocks=args.blocks,
                ddp=not args.no_ddp,
                pin=args.pin,
                realtime=args.realtime,
            ) as fleet,
        ):
            by_rank = fleet.results()
        for index, (call, size, _) in enumerate(by_rank[0]):
            add_rows(rows, bars, world, call, size, [rank[index][2] for rank in by_rank])
    harness.report(args, "distributed", METHOD, where, rows, bars)


def add_rows(rows: list[Row], bars: list[Row], world: int, call: str, size: int, by_rank: list[harness.Samples]) -> None:
    walls, spent = harness.slowest(by_rank), harness.spent(by_rank)
    times = {name: statistics.median(values) for name, values in walls.items()}
    gloo = times["gloo"]
    what = f"{world} processes, {call}{f' {harness.size_text(size)}' if size else ''}"
    for name, seconds in times.items():
        row: Row = {"processes": world, "call": call, "size": harness.size_text(size) if size else "", "method": name}
        row |= {"median_ms": seconds * 1e3, "x gloo": gloo / seconds}
        row |= harness.costs(name, walls, spent, size) if size else {}
        if SILENT in times and name not in (SILENT, ALONE):
            row["communication_ms"] = (seconds - times[SILENT]) * 1e3
        rows.append(row)
        if name not in BARS:
            continue
        if call == "new_group":
            bars.append(harness.bar(what, "under 5 ms", f"{seconds * 1e3:.2f} ms", seconds < 0.005))
        elif call == "step":
            spared = (gloo - times[SILENT]) / max(seconds - times[SILENT], 1e-9)
            bars.append(harness.ratio_bar(f"{what}, {name}, communication against gloo's", BARS[name], spared))
            bars.append(harness.ratio_bar(f"{what}, {name}, the whole against gloo's", 1.0, gloo / seconds))
        else:
            least = BARS[name] if size >= LARGE else 1.0
            bars.append(harness.ratio_bar(f"{what}, {name}, against gloo", least, gloo / seconds))
    if call == "step":
        ratio = times["pccl"] / times[STRICT]
        bars.append(harness.bar(f"{what}, elastic against strict", "at most 1.03 x", f"{ratio:.3f} x", ratio <= 1.03))


if __name__ == "__main__":
    harness.main(run)
