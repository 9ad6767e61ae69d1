"""Eight sums of 16 MiB at once, against the same number of gloo's asynchronous ops."""

from __future__ import annotations

from typing import Any

import harness
import methods
from harness import MIB, Peer, Row

import pccl

METHOD = """fp32 sums launched together and then awaited, pccl (out of place and in place) and gloo (in place) in turn; time
from the first launch to the last result on the slowest peer."""

LEAST = {2: 1.5, 4: 1.2}


def worker(peer: Peer, address: str, gloo_port: int, ops: int, size: int, blocks: int) -> Any:
    import torch

    comm = methods.join_run(address, peer.world)
    dist = methods.join_gloo(peer, gloo_port)
    sources = [torch.full((size // 4,), float(tag)) for tag in range(ops)]
    targets = [torch.ones_like(source) for source in sources]
    others = [torch.ones_like(source).zero_() for source in sources]

    def reduce(outputs: list[Any]) -> None:
        handles = [
            comm.all_reduce_async(source, output, op=pccl.ReduceOp.SUM, tag=tag)
            for tag, (source, output) in enumerate(zip(sources, outputs, strict=True))
        ]
        for handle in handles:
            success, status, _ = handle.wait()
            if not success:
                raise harness.BenchError(f"an op ended with {status}")

    def gloo() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in others]:
            work.wait()

    reduce(targets)
    if any(not torch.all(target == tag * peer.world) for tag, target in enumerate(targets)):
        raise harness.BenchError("a sum is wrong")
    for source in sources:
        source.zero_()
    calls = {"pccl": lambda: reduce(targets), "gloo": gloo, "pccl in place": lambda: reduce(sources)}
    times = harness.alternate(peer, calls, blocks)
    comm.close()
    peer.barrier.wait()
    return times


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
            harness.Master() as master,
            harness.Fleet(worker, world, address=master.address, gloo_port=harness.free_port(), **shape) as fleet,
        ):
            times = harness.slowest(fleet.results())
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
                }
            )
        if world in LEAST:
            for name in ("pccl", "pccl in place"):
                place = "in place" if name.endswith("place") else "out of place"
                what = f"{args.ops} ops of {harness.size_text(args.size)} at once, {world} peers, {place}, against gloo's async"
                bars.append(harness.ratio_bar(what, LEAST[world], gloo / medians[name]["median"]))
    harness.report(args, "concurrent_ops", METHOD + (" Each peer on one core." if args.pin else ""), where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
