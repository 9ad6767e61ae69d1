"""Eight sums of 16 MiB at once, against the same number of gloo's asynchronous ops."""

from __future__ import annotations

import os
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """fp32 sums launched together and then awaited, pccl (as it is, and by TCP alone) and gloo (in place) in turn; time
from the first launch to the last result on the slowest peer. The floor is that of bench/allreduce.py, one sum after another."""

LEAST = {2: 1.4, 4: 1.3}


def worker(
    peer: Peer, addresses: methods.Addresses, gloo_port: int, plan: methods.FloorPlan, ops: int, size: int, blocks: int
) -> Any:
    import torch

    floor = methods.Floor(peer, plan)
    before = methods.descriptors()
    comms = methods.join_both(addresses, peer.world)
    congestion = dict.fromkeys([*comms, *(f"{name}, in place" for name in comms)], methods.congestion_since(before))
    before = methods.descriptors()
    dist = methods.join_gloo(peer, gloo_port)
    dist.barrier()  # it connects when it has something to send
    congestion["gloo"] = methods.congestion_since(before)
    sources = [torch.full((size // 4,), float(tag)) for tag in range(ops)]
    targets = [torch.ones_like(source) for source in sources]

    def reduce(comm: pccl.Communicator, outputs: list[Any]) -> None:
        handles = [
            comm.all_reduce_async(source, output, op=pccl.ReduceOp.SUM, tag=tag)
            for tag, (source, output) in enumerate(zip(sources, outputs, strict=True))
        ]
        for handle in handles:
            success, status, _ = handle.wait()
            if not success:
                raise harness.BenchError(f"an op ended with {status}")

    def gloo() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in sources]:
            work.wait()

    for comm in comms.values():
        reduce(comm, targets)
        if any(not bool((target == tag * peer.world).all()) for tag, target in enumerate(targets)):
            raise harness.BenchError("a sum is wrong")
    for source in sources:
        source.zero_()  # sums in place stay finite
    floors = [floor.calls(*pair) for pair in zip(sources, targets, strict=True)]
    calls: dict[str, Any] = {name: lambda n=name: [each[n]() for each in floors] for name in floors[0]}
    calls["gloo"] = gloo
    for name, comm in comms.items():
        calls[name] = lambda c=comm: reduce(c, targets)
        calls[f"{name}, in place"] = lambda c=comm: reduce(c, sources)
    times = harness.alternate(peer, calls, blocks)
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return times, congestion


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of peers")
    parser.add_argument("--ops", type=int, default=8, help="ops at once")
    parser.add_argument("--size", type=int, default=16 * MIB, metavar="BYTES", help="bytes of each tensor")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for world in args.worlds:
        shape = {"ops": args.ops, "size": args.size, "blocks": args.blocks, "pin": args.pin}
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
                realtime=args.realtime,
                **shape,
            ) as fleet,
        ):
            load = os.getloadavg()[0]
            made = fleet.results()
            times = harness.slowest([times for times, _ in made])
            spent = harness.spent([times for times, _ in made])
            congestion = made[0][1]
        medians = {name: harness.summary(values) for name, values in times.items()}
        gloo = medians["gloo"]["median"]
        for name, time in medians.items():
            rows.append(
                {
                    "peers": world,
                    "ops": f"{args.ops} x {harness.size_text(args.size)}",
                    "method": name,
                    "median_ms": time["median"] * 1e3,
                    "min_ms": time["min"] * 1e3,
                    "GB/s": args.ops * args.size / time["median"] / 1e9,
                    "x gloo": gloo / time["median"],
                    **harness.costs(name, times, spent, args.ops * args.size),
                    "congestion": congestion.get(name, "-"),
                    "peers run": harness.placement(args),
                    "load": load,
                }
            )
        if world in LEAST:
            for name in medians:
                if name.startswith("pccl"):
                    what = (
                        f"{args.ops} ops of {harness.size_text(args.size)} at once, {world} peers, {name}, against gloo's async"
                    )
                    bars.append(harness.ratio_bar(what, LEAST[world], gloo / medians[name]["median"]))
    harness.report(args, "concurrent_ops", METHOD + (" Each peer on one core." if args.pin else ""), where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
