"""Backs "GPUs" of docs/benchmarks.md: tensors on one GPU that two peers share, against tensors on the CPU and copies by hand.

Skipped where there is no GPU. With `--device cpu` everything but the kernels runs on the CPU, which tests this program alone.
Two processes on one GPU, loopback TCP, methods in turn block by block, median over blocks of the slower peer's time, the GPU
waited for at the end of each. By hand: the tensor's copy on the CPU is reduced and copied back, into memory that torch takes
anew each time, or into the same page-locked memory. The product is bf16 on a stream of its own, timed by the GPU's events;
`outlasted` counts runs of it that ended after the reduce beside them. Both processes take turns on the GPU, so the product is
also measured with the other peer's tensor on the CPU. Reduced on the GPU: with PCCL_CUDA_REDUCE=gpu. The sync's bar is its
hash, with both peers at it, and as many bytes over as many plain TCP connections.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/gpu"))

import gpu_kernels
import gpu_peers
import harness
import methods
from harness import MIB, BenchError, Report, Row, SkippedError
from run import why_not

import pccl
from pccl.lab.ports import free_ports

ALL_SECONDS = 440.0
"""For all parts together: with what comes before and after them, less than eight minutes."""

PART_SECONDS = 120.0
"""For a part at most. It makes fewer blocks where they take longer than WORK_SECONDS."""

WORK_SECONDS = 25.0

ALLOWED = 1.1
"""What a sync may take, against the sum of what it has to do: such sums are not measured more exactly."""


def add_reduces(rows: list[Row], bars: list[Row], by_rank: list[harness.Samples], size: int, where: str) -> None:
    medians = {name: harness.summary(values)["median"] for name, values in harness.slowest(by_rank).items()}
    blocks = len(next(iter(by_rank[0].values())))
    for name, median in medians.items():
        row = {"what": f"all-reduce, {name}{where}", "size": harness.size_text(size // (2 if "bf16" in name else 1))}
        rows.append({**row, "median_ms": median * 1e3, "blocks": blocks})
    gpu = medians["GPU"]
    bars.append(harness.ratio(f"tensors at the GPU against tensors on the CPU{where}", 0.9, medians["CPU"] / gpu))
    bars.append(
        harness.ratio(
            f"one of two tensors at the GPU against both on the CPU{where}", 0.9, medians["CPU"] / medians["GPU and CPU"]
        )
    )
    for name in ("by hand", "by hand, page-locked"):
        if name in medians:
            bars.append(harness.ratio(f"tensors at the GPU against copies {name}", 1.3, medians[name] / gpu))
    bars.append(harness.ratio(f"as many elements of bf16 against fp32{where}", 1.8, gpu / medians["GPU bf16"]))


def add_products(rows: list[Row], bars: list[Row], found: gpu_peers.Products, where: str) -> None:
    alone = statistics.median(found.seconds["alone"])
    rows.append({"what": f"{found.count} matrix products alone", "median_ms": alone * 1e3, "blocks": len(found.seconds["alone"])})
    for name in gpu_peers.BESIDE:
        seconds = found.seconds[name]
        row = {"what": f"{found.count} matrix products beside a reduce, {name}{where}", "blocks": len(seconds)}
        slower = statistics.median(seconds) / alone - 1
        rows.append({**row, "median_ms": statistics.median(seconds) * 1e3, "outlasted": found.outlasted[name]})
        what = f"a matrix product beside a reduce, {name}{where}"
        bars.append(harness.figure(f"{what}: slower by", f"{slower:.1%}", "5 %", slower <= 0.05))


def measure_ops(args: argparse.Namespace, rows: list[Row], bars: list[Row], limit: float, reduced_at: str) -> None:
    arguments = {"device": args.device, "size": args.size, "blocks": args.blocks, "seconds": WORK_SECONDS}
    where = ", reduced at the GPU" if reduced_at == "gpu" else ""
    with (
        harness.Master() as master,
        harness.Fleet(gpu_peers.ops, 2, address=master.address, reduced_at=reduced_at, **arguments) as fleet,
    ):
        end = time.monotonic() + limit
        add_reduces(rows, bars, fleet.results(limit), args.size, where)
        [products] = [found for found in fleet.results(max(1.0, end - time.monotonic())) if found is not None]
    add_products(rows, bars, products, where)


def measure_ops_by_default(args: argparse.Namespace, rows: list[Row], bars: list[Row], limit: float) -> None:
    measure_ops(args, rows, bars, limit, "")


def measure_ops_at_gpu(args: argparse.Namespace, rows: list[Row], bars: list[Row], limit: float) -> None:
    measure_ops(args, rows, bars, limit, "gpu")


def of_slower_peer(told: list[list[dict[str, Any]]], part: str) -> float:
    """Seconds of this part at the slower peer: the median over all blocks but the first."""
    return statistics.median(max(one[part] for one in both) for both in told[1:])


def measure_state(args: argparse.Namespace, rows: list[Row], bars: list[Row], limit: float) -> None:
    """The hash of a state, and a sync of which 1 % of the leaves differ."""
    end = time.monotonic() + limit
    lanes = methods.LANES * MIB
    plain_bytes = max(1, round(args.state / 100 / lanes)) * lanes
    with (
        harness.Master() as master,
        harness.Fleet(gpu_peers.state, 2, address=master.address, device=args.device, size=args.state) as fleet,
        harness.Fleet(methods.plain_tcp, 2, size=plain_bytes, port=free_ports(1)[0]) as plain,
    ):

        def ask(asked: harness.Fleet, word: str) -> list[Any]:
            asked.send_all(word)
            return asked.results(max(1.0, end - time.monotonic()))

        ask(fleet, "hash")
        until = time.monotonic() + WORK_SECONDS
        hashes: list[Any] = []
        syncs: list[Any] = []
        sends: list[Any] = []
        while len(syncs) <= args.blocks and (len(syncs) < 4 or time.monotonic() < until):
            sends.append(ask(plain, "")[1])
            hashes.append(ask(fleet, "hash"))
            syncs.append(ask(fleet, "sync"))
        if len(set(ask(fleet, "digest"))) != 1:
            raise BenchError("the states differ after a sync that succeeded")
        ask(fleet, "end")
    alone, at_once, found = of_slower_peer(hashes, "alone"), of_slower_peer(hashes, "at once"), of_slower_peer(syncs, "seconds")
    moved = max(one["rx"] for one in syncs[-1])
    send = statistics.median(sends[1:]) * moved / plain_bytes
    size, blocks = harness.size_text(args.state), len(syncs) - 1
    rows.append({"what": "hash, one peer at a time", "size": size, "median_ms": alone * 1e3, "blocks": blocks})
    rows.append({"what": "hash, both peers at once", "size": size, "median_ms": at_once * 1e3, "blocks": blocks})
    rows.append({"what": "1 % by plain TCP", "size": harness.size_text(moved), "median_ms": send * 1e3, "blocks": blocks})
    rows.append({"what": "sync, 1 % differs", "size": size, "median_ms": found * 1e3, "blocks": blocks})
    for part in ("hash", "transfer"):
        median_ms = of_slower_peer(syncs, part) * 1e3
        rows.append({"what": f"sync, 1 % differs: its {part}", "size": size, "median_ms": median_ms, "blocks": blocks})
    rate = args.state / alone / 1e12
    bars.append(harness.figure(f"hash of {size} at the GPU", f"{rate:.3g} TB/s", "1.5 TB/s", rate >= 1.5))
    expected = at_once + send
    wanted = f"{ALLOWED:g} x ({at_once * 1e3:.1f} ms hash + {send * 1e3:.1f} ms for 1 % by plain TCP)"
    measured = f"{found * 1e3:.1f} ms, {found / expected:.2f} x"
    bars.append(harness.figure(f"sync of {size}, 1 % of the leaves differ", measured, wanted, found <= ALLOWED * expected))


def measure_kernels(args: argparse.Namespace, rows: list[Row], bars: list[Row], limit: float) -> None:
    why = "nothing is at a GPU" if args.device == "cpu" else pccl.cuda.why_no_kernels(load=True)
    if why:
        rows.append({"what": "kernels", "failed": why})
        return
    with harness.Fleet(gpu_kernels.worker, 1, size=args.size, state=args.state, blocks=args.blocks) as fleet:
        gpu_kernels.add_rows(rows, bars, fleet.results(limit)[0])


PARTS: dict[str, Callable[[argparse.Namespace, list[Row], list[Row], float], None]] = {
    "kernels": measure_kernels,
    "ops": measure_ops_by_default,
    "state": measure_state,
    "ops-gpu": measure_ops_at_gpu,
}


def body(args: argparse.Namespace) -> Report:
    end = time.monotonic() + ALL_SECONDS
    if args.quick:
        args.size, args.state = MIB, 16 * MIB
    args.out.mkdir(parents=True, exist_ok=True)
    args.json = args.json or args.out / "gpu.json"
    if why := why_not() if args.device == "cuda" else "":
        (args.out / "skipped").write_text(why + "\n")
        raise SkippedError(why)
    rows: list[Row] = []
    figures: list[Row] = []
    for name in args.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            limit = min(PART_SECONDS, end - time.monotonic())
            if limit < WORK_SECONDS:
                raise BenchError("no time was left")
            PARTS[name](args, rows, figures, limit)
        except BenchError as error:  # the other parts have their figures all the same
            rows.append({"what": name, "failed": str(error).strip().splitlines()[-1]})
            figures.append(harness.figure(name, "failed", "works", reached=False))
    return Report(figures, rows, device=pccl.cuda.describe())


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("gpu-out/bench"), help="folder of the report [gpu-out/bench]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=256 * MIB, metavar="BYTES", help="of a tensor of fp32 [256 MiB]")
    parser.add_argument("--state", type=int, default=8192 * MIB, metavar="BYTES", help="of a shared state [8 GiB]")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")


if __name__ == "__main__":
    harness.measure(body, options=options)
