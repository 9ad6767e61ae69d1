"""Quantised sums against an unquantised one on a link of 1 Gbit/s. Needs root."""

from __future__ import annotations

import functools
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row
from netlab import Lab, fleet_at

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers in two network namespaces joined by a veth pair, what leaves each limited by tc tbf; fp32 sum out of
place, quantised to uint8 (MinMax) and in blocks of 256, unquantised, and gloo in place, in turn; the median of the slowest peer's
time. `bytes/element` is what one peer sends for an element of the tensor, without frame heads."""

LEAST = {"uint8 MinMax": 3.0, "int4": 6.0}
QUANTISED = {
    "uint8 MinMax": pccl.QuantizationOptions(),
    "int8": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_INT8),
    "int4": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_INT4),
    "E3M0": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_E3M0),
    "int4, stochastic": pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.BLOCK_INT4, stochastic_seed=1),
}


def worker(
    peer: Peer, address: str, host: str, port: int, devices: list[str], size: int, blocks: int, with_gloo: bool
) -> tuple[Any, dict[str, tuple[float, float]]]:
    """Times, and by method the largest error and the bytes that were sent for an element."""
    import numpy as np

    draw = np.random.default_rng(peer.rank)
    source = draw.uniform(-1.0, 1.0, size // 4).astype(np.float32)
    target = np.ones_like(source)
    comm = methods.join_run(address, peer.world)
    feedback = pccl.ErrorFeedback(source)

    def reduce(options: pccl.QuantizationOptions | None, residual: pccl.ErrorFeedback | None = None) -> pccl.ReduceInfo:
        return comm.all_reduce(source, target, op=pccl.ReduceOp.SUM, quantization_options=options, residual=residual)

    calls: dict[str, Any] = {"unquantised": functools.partial(reduce, None)}
    calls |= {name: functools.partial(reduce, options) for name, options in QUANTISED.items()}
    calls["int4, error feedback"] = functools.partial(reduce, QUANTISED["int4"], feedback)
    ours = list(calls)
    if with_gloo:
        import torch

        dist = methods.join_gloo(peer, port, host, devices[peer.rank])
        gloo = torch.zeros(size // 4).fill_(1.0).zero_()
        calls["gloo"] = lambda: dist.all_reduce(gloo)
    times = harness.alternate(peer, calls, blocks)
    calls["unquantised"]()
    exact = target.copy()
    figures = {}
    for name in ours:
        sent = calls[name]().tx_bytes / len(source)
        figures[name] = float(np.abs(target - exact).max()), sent
    comm.close()
    peer.barrier.wait()
    return times, figures


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
        with fleet_at(
            places,
            worker,
            host=places[0].address,
            port=free_ports(1)[0],
            devices=[place.device for place in places],
            size=args.size,
            blocks=args.blocks,
            with_gloo=not args.no_gloo,
        ) as fleet:
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
            "largest error": results[0][1].get(name, (0.0, 0.0))[0],
            "bytes/element": results[0][1].get(name, (0.0, 4.0))[1],
        }
        for name, time in medians.items()
    ]
    of = f"against unquantised, 2 peers, {harness.size_text(args.size)}, {args.megabits:g} Mbit/s"
    bars = [harness.ratio_bar(f"{name} {of}", least, plain / medians[name]["median"]) for name, least in LEAST.items()]
    harness.report(args, "quantised", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
