#!/usr/bin/env python3
"""Tensors at a real GPU: two processes that share it, compared with tensors on the CPU. Skipped where there is no GPU.

    tests/gpu/run.py [--out gpu-out/test] [--device cpu] [CASE ...]

It needs torch and the installed package, and no network. Each case has processes of its own and a deadline; `results.json` in
the folder has their verdicts so far. With `--device cpu` the cases are run without a GPU, as the tests do with some of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from member import Member, SkippedError
from training import diloco, diloco_joiner, fully_sharded, replicated, sharded_snapshots, snapshots, torch_distributed

import pccl
from pccl import Communicator, DataType, PeerLostError, QuantizationAlgorithm, QuantizationOptions, ReduceOp, UsageError

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what tests share

LIMIT_SECONDS = float(os.environ.get("PCCL_GPU_LIMIT_SECONDS", "40"))
"""For each case, most of which take seconds."""

ALL_SECONDS = 460.0
"""For all together: with what comes before the first, less than eight minutes. What has not begun by then is not run."""

FIRST_SECONDS = 100.0
"""For the first processes, which read torch from disk and wake up the GPU."""

SANITIZER_SECONDS = 85.0

CLOSE_SECONDS = 2.0
"""For a member to leave after its verdict."""

SIZES = [1, 1_000, 300_001, 6_000_000]


def reduces(member: Member) -> None:
    """Every type, in place and not, quantised and in retry mode."""
    for dtype in ("float32", "bfloat16", "float16", "float64", "int64", "uint8"):
        for count in SIZES if dtype in ("bfloat16", "float64") else SIZES[:-1]:
            expected = member.filled(count, dtype, "cpu")
            member.comm.all_reduce(expected, op=ReduceOp.SUM)
            tensor = member.filled(count, dtype)
            out = member.torch.zeros_like(tensor)
            member.comm.all_reduce(tensor, out, op=ReduceOp.SUM, retry=count == SIZES[-1])
            member.same(out, expected)
            member.same(tensor, member.filled(count, dtype, "cpu"))
            member.comm.all_reduce(tensor, op=ReduceOp.SUM)
            member.same(tensor, expected)


def other_reduces(member: Member) -> None:
    """Every operation and quantisation; several ops at once."""
    for op in (ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN):
        expected, tensor = member.filled(300_001, "float32", "cpu"), member.filled(300_001, "float32")
        for one in (expected, tensor):
            member.comm.all_reduce(one, op=op)
        member.same(tensor, expected)
    for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.BLOCK_INT8, QuantizationAlgorithm.BLOCK_INT4):
        options = QuantizationOptions(DataType.UINT8, algorithm)
        expected, tensor = member.filled(300_001, "float32", "cpu"), member.filled(300_001, "float32")
        for one in (expected, tensor):
            member.comm.all_reduce(one, op=ReduceOp.SUM, quantization_options=options)
        member.same(tensor, expected)
    tensors = [member.filled(count, "float32") for count in range(100, 400_000, 40_000)]
    handles = [member.comm.all_reduce_async(tensor, op=ReduceOp.SUM, tag=tag) for tag, tensor in enumerate(tensors)]
    for handle, tensor in zip(handles, tensors, strict=True):
        handle.result()
        expected = member.filled(tensor.numel(), "float32", "cpu")
        member.comm.all_reduce(expected, op=ReduceOp.SUM, tag=1000)
        member.same(tensor, expected)


def mixed(member: Member) -> None:
    """One member on the CPU."""
    for count in SIZES:
        expected = member.filled(count, "float32", "cpu")
        member.comm.all_reduce(expected, op=ReduceOp.AVG)
        tensor = member.filled(count, "float32", "cpu" if member.rank == 0 else None)
        member.comm.all_reduce(tensor, op=ReduceOp.AVG)
        member.same(tensor, expected)


def any_bits(member: Member, count: int, dtype: str) -> Any:
    """On the CPU: among random bits, others on each member, are NaN of all kinds, infinities, denormals and -0."""
    torch = member.torch
    generator = torch.Generator().manual_seed(1000 * member.rank + count)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, (count,), generator=generator, dtype=torch.uint8).to(kind)
    size = torch.empty(0, dtype=kind).element_size()
    values = torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(kind).clone()
    if values.is_floating_point():
        denormal = 5e-324 if dtype == "float64" else 1e-40
        for at, special in enumerate((0.0, -0.0, float("inf"), -float("inf"), float("nan"), denormal, 1.0, -1.0)):
            values[at + member.rank :: 17] = special
    return values


def kernels(member: Member) -> None:
    """Each kernel against the CPU's: reductions of all types, codes in blocks with error feedback, hashes of all lengths."""
    os.environ["PCCL_CUDA_REDUCE"] = "gpu"  # by default the host reduces
    comm, torch = member.comm, member.torch
    if member.device != "cpu":
        assert pccl.cuda.why_no_kernels(load=True) == ""
    floats, others = ["float16", "bfloat16", "float32", "float64"], ["int8", "int16", "int32", "int64", "uint16", "uint32"]
    for dtype in (*floats, *others, "uint8", "uint64", "bool"):
        bitwise = [] if dtype in floats else [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, *bitwise):
            if dtype == "bool" and op == ReduceOp.AVG:
                continue
            expected = any_bits(member, 1_400_001, dtype)
            tensor = expected.to(member.device, copy=True)
            for one in (expected, tensor):
                comm.all_reduce(one, op=op)
            member.same(tensor, expected)
    for algorithm in (QuantizationAlgorithm.BLOCK_INT8, QuantizationAlgorithm.BLOCK_INT4, QuantizationAlgorithm.BLOCK_E3M0):
        for dtype, block in (("float32", 256), ("float16", 32), ("bfloat16", 4096), ("float32", 1024)):
            seed = None if block == 256 else 7 + member.rank
            codes(member, QuantizationOptions(DataType.UINT8, algorithm, block=block, stochastic_seed=seed), dtype)
    for length in (8 << 18, (8 << 18) + 1, (20 << 18) + 240, (20 << 18) + 241, (9 << 18) + 100_003):
        for shift in (0, 4, 1):
            content = torch.randint(0, 256, (length + shift,), dtype=torch.uint8)
            at_gpu = content.to(member.device, copy=True)
            hashes = [pccl.SharedState([pccl.TensorInfo.from_torch(one[shift:], "content")]).hash() for one in (content, at_gpu)]
            assert hashes[0] == hashes[1], f"the hash of {length} bytes, {shift} bytes from a boundary, is wrong"


def codes(member: Member, options: QuantizationOptions, dtype: str) -> None:
    """Two averages with this codec and error feedback."""
    torch = member.torch
    expected = torch.sin(torch.arange(500_001) * (member.rank + 1.3)).to(getattr(torch, dtype))
    expected[77 + member.rank :: 100_000] = float("inf")
    tensor = expected.to(member.device, copy=True)
    feedbacks = [pccl.ErrorFeedback(one) for one in (expected, tensor)]
    for one, feedback in zip((expected, tensor), feedbacks, strict=True):
        for _ in range(2):
            member.comm.all_reduce(one, op=ReduceOp.AVG, quantization_options=options, residual=feedback)
    member.same(tensor, expected)
    member.same(feedbacks[1].residual, feedbacks[0].residual)


def collectives(member: Member) -> None:
    """Those that move pieces."""
    comm, torch = member.comm, member.torch
    for count in (10, 500_000):
        results = []
        for device in ("cpu", member.device):
            own = member.filled(count, "float32", device)
            both, turned, part = (torch.zeros(size, device=device) for size in (2 * count, 2 * count, count))
            comm.all_gather(own, both)
            comm.all_to_all(both, turned)
            comm.reduce_scatter(both, part, op=ReduceOp.SUM)
            comm.broadcast(own, root=1)
            if member.rank == 0:
                comm.send(own, to=1)
            else:
                comm.recv(own, source=0)
            results.append([both, turned, part, own])
        for expected, found in zip(*results, strict=True):
            member.same(found, expected)


def streams(member: Member) -> None:
    """An op comes after slow work on its stream, and what the stream has behind `wait_stream` finds the result."""
    torch = member.torch
    if member.device == "cpu":
        return
    square = torch.rand(4096, 4096, device=member.device)
    counts = (1_000, 3_000_000)
    for count in counts:
        # What a kernel or an op needs the first time, and would wait for the GPU to get, is there before a stream waits.
        warm = torch.zeros(count, device=member.device)
        member.comm.all_reduce(warm, op=ReduceOp.SUM)
        assert not torch.mul(warm, 2, out=torch.empty_like(warm)).any()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for count in counts:
                tensor, doubled = torch.zeros(count, device=member.device), torch.empty(count, device=member.device)
                for _ in range(20):
                    square = square @ square
                    square /= square.norm()
                tensor += member.rank + 1
                handle = member.comm.all_reduce_async(tensor, op=ReduceOp.SUM)
                handle.wait_stream()
                torch.mul(tensor, 2, out=doubled)
                handle.result()
                assert bool((doubled == 6).all()), "the stream went on before the op had ended, or the op began too early"


def waiting_streams(member: Member) -> None:
    """One stream waits for more ops in place than are kept rooms for, one of them in retry mode: all end."""
    torch = member.torch
    if member.device == "cpu":
        return
    counts = [3_000_000] * 5 + [20_000_000]
    tensors = [member.filled(count, "float32") for count in counts]
    last = len(counts) - 1
    stream = torch.cuda.Stream()
    sums = [tensor.clone() for tensor in tensors]  # memory that torch does not have yet may wait for the whole GPU
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        # The streams of so many ops are made before anything waits.
        first = [member.comm.all_reduce_async(copy, op=ReduceOp.SUM, tag=tag, retry=tag == last) for tag, copy in enumerate(sums)]
        for handle in first:
            handle.result()
        handles = []
        for tag, tensor in enumerate(tensors):
            handles.append(member.comm.all_reduce_async(tensor, op=ReduceOp.SUM, tag=tag, retry=tag == last))
            handles[-1].wait_stream()
            sums[tag].copy_(tensor)
        for handle in handles:
            handle.result()
        for count, found in zip(counts, sums, strict=True):
            member.same(found, (torch.arange(count) % 61 * 2 + 1).to(torch.float32))


def graphs(member: Member) -> None:
    """Graphs are captured while an op is under way; an op cannot be part of one, and is refused without harm to it."""
    torch = member.torch
    tensor, other = member.filled(20_000_000, "float32"), member.filled(1_000, "float32")
    expected = (torch.arange(20_000_000) % 61 * 2 + 1).to(torch.float32)
    if member.device == "cpu":
        return
    for _ in range(5):
        reduced = tensor.clone()
        graph = torch.cuda.CUDAGraph()
        handle = member.comm.all_reduce_async(reduced, op=ReduceOp.SUM)
        refused = False
        with torch.cuda.graph(graph):
            doubled = other * 2
            try:
                member.comm.all_reduce_async(other, op=ReduceOp.SUM, tag=1)
            except UsageError as error:
                refused = "capturing a CUDA graph" in error.detail
            doubled += 1
        handle.result()
        graph.replay()
        assert refused, "an op was launched into a graph, or refused for another reason"
        member.same(doubled, other * 2 + 1)
        member.same(reduced, expected)


def shared_state(member: Member) -> None:
    """Of which a few leaves differ."""
    torch = member.torch
    tensor = torch.arange(3_000_000, dtype=torch.float32).to(member.device)
    if member.rank == 1:
        tensor[1_234_567] = -1
        tensor[-1] = -1
    state = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, "weights")])
    strategy = pccl.SharedStateSyncStrategy
    info = member.comm.sync_shared_state(state, strategy.SEND_ONLY if member.rank == 0 else strategy.RECEIVE_ONLY)
    assert torch.equal(tensor.cpu(), torch.arange(3_000_000, dtype=torch.float32))
    assert info.leaves == (2 if member.rank == 1 else 0), f"{info.leaves} leaves have moved"
    on_host = pccl.SharedState([pccl.TensorInfo.from_torch(tensor.cpu(), "weights")])
    assert state.hash() == on_host.hash()


def loss(member: Member) -> None:
    """Member 1 dies under an op: the input of the other is as it was."""
    tensor = member.filled(50_000_000, "float32")
    if member.rank == 1:
        member.comm.all_reduce_async(tensor, op=ReduceOp.SUM)
        time.sleep(0.02)  # any moment will do
        member.verdict.send("ok")
        os._exit(0)
    try:
        member.comm.all_reduce(tensor, op=ReduceOp.SUM)
    except PeerLostError:
        member.same(tensor, member.filled(50_000_000, "float32", "cpu"))


def failing_kernel(member: Member) -> None:
    """A kernel of member 0 fails: its op ends with the driver's words, and its process goes on."""
    torch = member.torch
    tensor = member.filled(1_000_000, "float32")
    if member.rank == 0 and member.device != "cpu":
        torch.zeros(4, device=member.device)[torch.tensor([1 << 20], device=member.device)]  # asserts on the GPU, later
    try:
        member.comm.all_reduce(tensor, op=ReduceOp.SUM)
        told = "nothing"
    except Exception as error:  # torch may see it first
        told = f"{type(error).__name__}: {error}"
    expected = "nothing" if member.device == "cpu" else "CUDA" if member.rank == 0 else "PeerLostError"
    assert expected in told, told


def leaks(member: Member) -> None:
    """Many ops take no more memory at the GPU than a few."""
    torch = member.torch
    if member.device == "cpu":
        return
    tensor = member.filled(2_000_000, "float32")
    free = []
    for _ in range(2):
        for _ in range(100):
            member.comm.all_reduce(tensor, op=ReduceOp.AVG)
        torch.cuda.synchronize()
        member.comm.barrier()
        free.append(torch.cuda.mem_get_info()[0])
        member.comm.barrier()
    assert free[0] - free[1] < 32 << 20, f"{free[0] - free[1]} bytes less are free after 100 more ops"


def nothing(member: Member) -> None:
    """Begins, and ends."""
    member.torch.zeros(1, device=member.device)


CASES: list[Callable[[Member], None]] = [
    reduces,
    other_reduces,
    mixed,
    kernels,
    collectives,
    torch_distributed,
    replicated,
    fully_sharded,
    snapshots,
    sharded_snapshots,
    diloco,
    diloco_joiner,
    shared_state,
    loss,
    leaks,
    streams,
    waiting_streams,
    graphs,
    failing_kernel,
]
"""Those that may leave a GPU in a bad state come last."""


# ---- running them ----


def run_member(pipe: Connection, name: str, address: str, device: str) -> None:
    """In a process: the case, and "ok" or why not."""
    import torch

    try:
        if device != "cpu":
            torch.cuda.set_device(0)
        with Communicator(address, p2p_connection_pool_size=4) as comm:
            comm.connect()
            comm.wait_for_peers(2, timeout=FIRST_SECONDS)
            case = next(case for case in (nothing, *CASES) if case.__name__ == name)
            case(Member(comm.rank, comm, device, torch, address, pipe))
            pipe.send("ok")
    except SkippedError as skipped:
        pipe.send(f"skipped: {skipped}")
    except BaseException:
        pipe.send(traceback.format_exc())


def run_case(name: str, device: str, limit: float) -> str:
    """The verdict: "ok", or why not."""
    context = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
    master = pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30)
    master.run()
    end = time.monotonic() + limit
    pairs = []
    for _ in range(2):
        pipe, inner = context.Pipe()
        process = context.Process(target=run_member, args=(inner, name, f"127.0.0.1:{master.port}", device), daemon=True)
        process.start()
        inner.close()
        pairs.append((pipe, process))
    verdicts = []
    for pipe, _ in pairs:
        try:
            verdicts.append(pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else "it did not end in time")
        except (EOFError, OSError):
            verdicts.append("its process has died")
    for _, process in pairs:
        process.join(CLOSE_SECONDS)
        process.kill()
        process.join(CLOSE_SECONDS)  # one that the driver holds is left behind
    master.interrupt()
    if verdicts[0] == verdicts[1] and verdicts[0].startswith(("ok", "skipped")):
        return verdicts[0]
    return "\n".join(verdict for verdict in verdicts if verdict != "ok")


def run_sanitized(out: Path, device: str, limit: float) -> str:
    """The verdict over the kernels under NVIDIA's compute-sanitizer, which looks for accesses that are not allowed."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None or device != "cuda":
        return "skipped: there is no compute-sanitizer" if tool is None else "skipped: nothing is at a GPU"
    # Calls of the driver that fail are no errors: the library asks it about memory that it does not know.
    command = [tool, "--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "9"]
    command += [sys.executable, str(Path(__file__).resolve()), "--out", str(out / "sanitized"), "kernels"]
    slow = {**os.environ, "PCCL_GPU_LIMIT_SECONDS": str(limit - 10)}
    with (out / "sanitizer.txt").open("w") as log:
        tested = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=slow, start_new_session=True)
        try:
            status = tested.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(tested.pid, signal.SIGKILL)  # those that it has started, too
            tested.wait()
            return "it did not end in time"
    if "Device not supported" in (out / "sanitizer.txt").read_text():
        return "skipped: compute-sanitizer does not support this device"
    return "ok" if status == 0 else f"it ended with {status}: see sanitizer.txt"


def why_not() -> str:
    """Why there is nothing to test; "" where there is."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not pccl.cuda.is_available():
        return pccl.cuda.describe()
    return "" if torch.cuda.is_available() else "this torch does not support CUDA"


def main() -> int:
    """0: all cases are well, or there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-out/test"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all by default: {' '.join(case.__name__ for case in CASES)}")
    options = parser.parse_args()
    if unknown := {*options.cases} - {case.__name__ for case in CASES}:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    end = time.monotonic() + ALL_SECONDS
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    # Processes look in the working directory first, where there may be sources without the library.
    paths = [str(Path(pccl.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    os.chdir(options.out)
    why = why_not() if options.device == "cuda" else ""
    results: dict[str, Any] = {"gpu": pccl.cuda.describe(), "device": options.device, "version": pccl.__version__}

    def write() -> None:
        (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")

    if why:
        results["skipped"] = why
        write()
        print(f"skipped: {why}")
        return 0
    if not options.cases:
        print(f"the first processes: {run_case('nothing', options.device, FIRST_SECONDS)}", flush=True)
    verdicts = results["cases"] = {}
    for name in options.cases or [case.__name__ for case in CASES]:
        begun = time.monotonic()
        limit = min(LIMIT_SECONDS, end - begun)
        verdict = run_case(name, options.device, limit) if limit > 1 else "it was not run: no time was left"
        verdicts[name] = {"verdict": verdict, "seconds": round(time.monotonic() - begun, 2)}
        print(f"{name}: {verdict}", flush=True)
        write()
    if not options.cases:
        left = min(SANITIZER_SECONDS, end - time.monotonic())
        sanitized = run_sanitized(options.out, options.device, left) if left > 20 else "skipped: no time was left"
        results["sanitizer"] = sanitized
        print(f"compute-sanitizer: {sanitized}", flush=True)
        write()
    good = results.get("sanitizer", "ok").startswith(("ok", "skipped"))
    return 0 if good and all(case["verdict"].startswith(("ok", "skipped")) for case in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
