"""Tensors at one GPU that two peers share, against tensors on the CPU and copies by hand; loopback TCP.

Skipped where there is no GPU. With `--device cpu` everything runs on the CPU, which tests this script alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/gpu"))

import gpu_kernels
import harness
from harness import KIB, MIB, BenchError, Peer, Row
from run import why_not

import pccl
from pccl import Communicator, ReduceOp, SharedStateSyncStrategy

LANES = 4
LIMIT_SECONDS = 200.0
"""For what the processes of each part tell."""
SQUARE = 8192
"""Of the matrices whose product a reduce may slow down."""

METHOD = """two processes on one GPU, loopback TCP (PCCL_SAME_HOST_MEMORY=0), methods in turn block by block, median over
blocks of the slower peer's time per op, the GPU waited for at the end of each; the product is bf16 on a stream of its own, and
its time is that of the GPU's events."""


def reduces(peer: Peer, comm: Communicator, device: str, size: int, blocks: int) -> harness.Samples:
    """All-reduces in place of one number of bytes, and of as many elements of bf16."""
    import torch

    def wait() -> None:
        if device != "cpu":
            torch.cuda.current_stream().synchronize()

    count = size // 4
    there = torch.ones(count, device=device)
    half = torch.ones(count, dtype=torch.bfloat16, device=device)
    host = torch.ones(count)

    def at_gpu() -> None:
        comm.all_reduce(there, op=ReduceOp.AVG)
        wait()

    def at_gpu_half() -> None:
        comm.all_reduce(half, op=ReduceOp.AVG)
        wait()

    def on_host() -> None:
        comm.all_reduce(host, op=ReduceOp.AVG)

    def by_hand() -> None:
        copy = there.to("cpu", copy=True)
        comm.all_reduce(copy, op=ReduceOp.AVG)
        there.copy_(copy)
        wait()

    calls: dict[str, Callable[[], object]] = {"GPU": at_gpu, "GPU bf16": at_gpu_half, "CPU": on_host, "by hand": by_hand}
    return harness.alternate(peer, calls, blocks)


def product(peer: Peer, comm: Communicator, device: str, size: int, blocks: int) -> dict[str, list[float]]:
    """Seconds of a run of matrix products alone, and while reduces are under way. Member 0 multiplies."""
    import torch

    if device == "cpu":
        return {}
    tensor = torch.ones(size // 4, device=device)
    square = torch.rand(SQUARE, SQUARE, dtype=torch.bfloat16, device=device)
    stream = torch.cuda.Stream()
    seconds: dict[str, list[float]] = {"alone": [], "beside a reduce": []}
    for block in range(blocks + 1):
        for name in seconds:
            torch.cuda.synchronize()
            peer.barrier.wait()
            handle = None if name == "alone" else comm.all_reduce_async(tensor, op=ReduceOp.AVG)
            if peer.rank == 0:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                with torch.cuda.stream(stream):
                    begin.record()
                    for _ in range(50):
                        torch.matmul(square, square)
                    end.record()
            if handle is not None:
                handle.result()
            if peer.rank == 0:
                end.synchronize()
                if block > 0:
                    seconds[name].append(begin.elapsed_time(end) / 1e3)
            peer.barrier.wait()
    return seconds


def state(peer: Peer, comm: Communicator, device: str, size: int) -> dict[str, float]:
    """Seconds of a sync of which 1 % of the leaves differ, and the rate of the hash."""
    import torch

    tensor = torch.zeros(size // 4, device=device)
    if peer.rank == 1:
        tensor[:: 100 * 256 * KIB // 4] = 1
    shared = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, "weights")])
    shared.hash()
    begun = time.perf_counter()
    shared.hash()
    hashed = time.perf_counter() - begun
    strategy = SharedStateSyncStrategy.SEND_ONLY if peer.rank == 0 else SharedStateSyncStrategy.RECEIVE_ONLY
    info = comm.sync_shared_state(shared, strategy)
    return {"hash_bytes_per_s": size / hashed, "sync_s": info.seconds, "rx_bytes": float(info.rx_bytes)}


def worker(peer: Peer, address: str, device: str, size: int, state_size: int, blocks: int) -> tuple[Any, Any, Any]:
    os.environ["PCCL_SAME_HOST_MEMORY"] = "0"
    with Communicator(address, p2p_connection_pool_size=LANES) as comm:
        comm.connect()
        comm.wait_for_peers(peer.world)
        placed = Peer(rank=comm.rank, world=peer.world, pipe=peer.pipe, barrier=peer.barrier)
        found = (
            reduces(placed, comm, device, size, blocks),
            product(placed, comm, device, size, blocks),
            state(placed, comm, device, state_size),
        )
        peer.barrier.wait()
    return found


def add_reduces(rows: list[Row], bars: list[Row], by_rank: list[harness.Samples], size: int) -> None:
    medians = {name: harness.summary(values)["median"] for name, values in harness.slowest(by_rank).items()}
    for name, median in medians.items():
        rows.append({"what": f"all-reduce, {name}", "size": harness.size_text(size), "median_ms": median * 1e3})
    gpu = medians["GPU"]
    bars.append(harness.ratio_bar("tensors at the GPU against tensors on the CPU", 0.9, medians["CPU"] / gpu))
    bars.append(harness.ratio_bar("tensors at the GPU against copies by hand", 1.3, medians["by hand"] / gpu))
    bars.append(harness.ratio_bar("as many elements of bf16 against fp32", 1.8, gpu / medians["GPU bf16"]))


def add_product(rows: list[Row], bars: list[Row], seconds: dict[str, list[float]]) -> None:
    if not seconds.get("alone"):
        return
    alone, beside = (harness.summary(seconds[name])["median"] for name in ("alone", "beside a reduce"))
    rows.append({"what": "50 matrix products alone", "median_ms": alone * 1e3})
    rows.append({"what": "50 matrix products beside a reduce", "median_ms": beside * 1e3})
    slower = beside / alone - 1
    bars.append(harness.bar("a matrix product beside a reduce", "at most 5 % slower", f"{slower:.1%}", slower <= 0.05))


def add_kernels(rows: list[Row], bars: list[Row], args: argparse.Namespace) -> BenchError | None:
    """Why there are no figures of them, if they failed: those of the rest are reported all the same."""
    if pccl.cuda.why_no_kernels(load=True):
        return None
    try:
        with harness.Fleet(gpu_kernels.worker, 1, size=args.size, state=args.state, blocks=args.blocks) as fleet:
            gpu_kernels.add_rows(rows, bars, fleet.results(LIMIT_SECONDS)[0])
    except BenchError as error:
        return error
    return None


def run() -> None:
    parser = harness.parser(__doc__, blocks=9)
    parser.add_argument("--out", type=Path, default=Path("gpu-out/bench"), help="folder of the report")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=256 * MIB, metavar="BYTES", help="of a tensor of fp32")
    parser.add_argument("--state", type=int, default=8192 * MIB, metavar="BYTES", help="of a shared state")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.json = args.json or str(args.out / "gpu.json")
    why = why_not() if args.device == "cuda" else ""
    if why:
        print(f"skipped: {why}")
        (args.out / "skipped").write_text(why + "\n")
        return
    where = {**harness.machine(), "gpu": pccl.cuda.describe(), "reduced at": os.environ.get("PCCL_CUDA_REDUCE", "gpu")}
    rows: list[Row] = []
    bars: list[Row] = []
    with (
        harness.Master() as master,
        harness.Fleet(
            worker,
            2,
            address=master.address,
            device=args.device,
            size=args.size,
            state_size=args.state,
            blocks=args.blocks,
        ) as fleet,
    ):
        by_rank = fleet.results(LIMIT_SECONDS)
    add_reduces(rows, bars, [rank[0] for rank in by_rank], args.size)
    for rank in by_rank:
        add_product(rows, bars, rank[1])
    for rank in by_rank:
        rows.append({"what": "state", "size": harness.size_text(args.state), **rank[2]})
    rate = min(rank[2]["hash_bytes_per_s"] for rank in by_rank) / 1e12
    bars.append(harness.bar("hash at the GPU", "at least 1.5 TB/s", f"{rate:.3g} TB/s", rate >= 1.5))
    failed = add_kernels(rows, bars, args) if args.device == "cuda" else None
    harness.report(args, "gpu", METHOD, where, rows, bars)
    if failed is not None:
        raise failed


if __name__ == "__main__":
    harness.main(run)
