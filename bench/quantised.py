"""A quantised sum against an unquantised one on a link of 1 Gbit/s. Needs root."""

from __future__ import annotations

from typing import Any

import harness
import methods
from harness import MIB, Master, Peer, Row
from netlab import Lab

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers in two network namespaces joined by a veth pair, what leaves each limited by tc tbf; fp32 sum out of
place, quantised to uint8 (MinMax), unquantised, and gloo in place, in turn; the median of the slowest peer's time."""

LEAST = 3.0


def worker(
    peer: Peer, address: str, host: str, port: int, devices: list[str], size: int, blocks: int, with_gloo: bool
) -> tuple[Any, float]:
    import numpy as np

    draw = np.random.default_rng(peer.rank)
    source = draw.uniform(-1.0, 1.0, size // 4).astype(np.float32)
    target = np.ones_like(source)
    comm = methods.join_run(address, peer.world)
    options = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
    calls: dict[str, Any] = {
        "uint8 MinMax": lambda: comm.all_reduce(source, target, op=pccl.ReduceOp.SUM, quantization_options=options),
        "unquantised": lambda: comm.all_reduce(source, target, op=pccl.ReduceOp.SUM),
    }
    if with_gloo:
        import torch

        dist = methods.join_gloo(peer, port, host, devices[peer.rank])
        gloo = torch.zeros(size // 4).fill_(1.0).zero_()
        calls["gloo"] = lambda: dist.all_reduce(gloo)
    times = harness.alternate(peer, calls, blocks)
    calls["unquantised"]()
    exact = target.copy()
    calls["uint8 MinMax"]()
    error = float(np.abs(target - exact).max())
    comm.close()
    peer.barrier.wait()
    return times, error


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--size", type=int, default=64 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--megabits", type=float, default=1000, help="rate of the link, each way")
    parser.add_argument("--no-gloo", action="store_true", help="leave gloo out")
    args = parser.parse_args()
    where = harness.machine()
    with Lab() as lab:
        places = lab.pair()
        for place in places:
            lab.limit(place, args.megabits)
        home = places[0]
        with (
            Master(home.address, home.namespace) as master,
            harness.Fleet(
                worker,
                2,
                namespaces=[place.namespace for place in places],
                address=master.address,
                host=home.address,
                port=free_ports(1)[0],
                devices=[place.device for place in places],
                size=args.size,
                blocks=args.blocks,
                with_gloo=not args.no_gloo,
            ) as fleet,
        ):
            results = fleet.results()
    medians = {name: harness.summary(values) for name, values in harness.slowest([times for times, _ in results]).items()}
    plain = medians["unquantised"]["median"]
    rows: list[Row] = [
        {
            "link": f"{args.megabits:g} Mbit/s",
            "size": harness.size_text(args.size),
            "method": name,
            "median_s": time["median"],
            "min_s": time["min"],
            "x unquantised": plain / time["median"],
            "largest error": results[0][1] if name.startswith("uint8") else 0.0,
        }
        for name, time in medians.items()
    ]
    what = f"uint8 MinMax against unquantised, 2 peers, {harness.size_text(args.size)}, {args.megabits:g} Mbit/s"
    bars = [harness.ratio_bar(what, LEAST, plain / medians["uint8 MinMax"]["median"])]
    harness.report(args, "quantised", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
