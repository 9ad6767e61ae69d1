#!/usr/bin/env python3
"""Tensors at a real GPU: two processes that share it, compared with tensors on the CPU. Skipped where there is no GPU.

    tests/gpu/run.py [--out gpu-out/test] [--device cpu]

It needs torch and the installed package, and no network. Each case has processes of its own and a deadline; `results.json` in
the folder has their verdicts. With `--device cpu` the cases are run without a GPU, which tests this script alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pccl
from pccl import Communicator, DataType, PeerLostError, QuantizationAlgorithm, QuantizationOptions, ReduceOp, UsageError

LIMIT_SECONDS = float(os.environ.get("PCCL_GPU_LIMIT_SECONDS", "30"))
"""For each case, most of which take seconds: all, and one once more under compute-sanitizer, end within eight minutes."""

SANITIZER_SECONDS = 85.0

CLOSE_SECONDS = 2.0
"""For a member to leave after its verdict."""

SIZES = [1, 1_000, 300_001, 6_000_000]


@dataclass
class Member:
    """One of the two processes."""

    rank: int
    comm: Communicator
    device: str
    torch: Any
    address: str
    """Of the master."""
    verdict: Connection

    def filled(self, count: int, dtype: str, device: str | None = None) -> Any:
        """Other elements on each member, the same on every device."""
        torch = self.torch
        values = torch.arange(count) % 61 + self.rank
        return values.to(getattr(torch, dtype)).to(device or self.device)

    def same(self, found: Any, expected: Any) -> None:
        """Bit for bit."""
        found, expected = (tensor.cpu().contiguous().view(self.torch.uint8) for tensor in (found, expected))
        assert self.torch.equal(found, expected), "the bits differ from those of tensors on the CPU"


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


def torch_distributed(member: Member) -> None:
    """The backend of torch.distributed: calls on tensors that lie together and not, futures, and DDP."""
    importlib.import_module("pccl.distributed")  # also where the package has no entry points
    torch = member.torch
    dist = torch.distributed
    store = Path(tempfile.gettempdir()) / f"pccl-gpu-{member.address.rpartition(':')[2]}-{os.getppid()}"
    dist.init_process_group("pccl", init_method=f"file://{store}", rank=member.rank, world_size=2)
    count = 1_000_000
    own, expected = member.filled(count, "float32"), (torch.arange(count) % 61 * 2 + 1).to(torch.float32)
    summed, turned = own.clone(), own.clone().view(1000, 1000).t()
    dist.all_reduce(summed)
    dist.all_reduce(turned)
    future = dist.all_reduce(own.clone(), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    both = torch.zeros(2 * count, device=member.device)
    dist.all_gather_into_tensor(both, own)
    parts = [torch.zeros_like(own) for _ in range(2)]
    dist.all_gather(parts, own)
    part = torch.zeros(count, device=member.device)
    dist.reduce_scatter_tensor(part, both)
    member.same(summed, expected)
    member.same(turned, expected.view(1000, 1000).t())
    member.same(future.wait(), expected * 2)
    member.same(both, torch.cat([torch.arange(count) % 61, torch.arange(count) % 61 + 1]).to(torch.float32))
    member.same(torch.cat(parts), both)
    member.same(part, 2 * both[member.rank * count : (member.rank + 1) * count])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)).to(member.device)
    replicated = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
    gradients = []
    for rank in range(2):
        input = torch.full((8, 300), 0.01 * (rank + 1), device=member.device)
        model.zero_grad()
        model(input).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    model.zero_grad()
    replicated(torch.full((8, 300), 0.01 * (member.rank + 1), device=member.device)).sum().backward()
    for parameter, one, other in zip(model.parameters(), *gradients, strict=True):
        torch.testing.assert_close(parameter.grad, (one + other) / 2)
    dist.destroy_process_group()


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


def nothing(_: Member) -> None:
    """Begins, and ends."""


CASES: list[Callable[[Member], None]] = [
    reduces,
    other_reduces,
    mixed,
    kernels,
    collectives,
    streams,
    waiting_streams,
    graphs,
    torch_distributed,
    shared_state,
    loss,
    failing_kernel,
    leaks,
]


# ---- running them ----


def run_member(pipe: Connection, name: str, address: str, device: str) -> None:
    """In a process: the case, and "ok" or why not."""
    import torch

    try:
        with Communicator(address, p2p_connection_pool_size=4) as comm:
            comm.connect()
            comm.wait_for_peers(2, timeout=LIMIT_SECONDS)
            case = next(case for case in (nothing, *CASES) if case.__name__ == name)
            case(Member(comm.rank, comm, device, torch, address, pipe))
            pipe.send("ok")
    except BaseException:
        pipe.send(traceback.format_exc())


def run_case(name: str, device: str, start: str = "forkserver") -> str:
    """The verdict: "ok", or why not."""
    context = multiprocessing.get_context(start)
    if start == "forkserver":
        context.set_forkserver_preload(["pccl", "torch"])
    master = pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30)
    master.run()
    end = time.monotonic() + LIMIT_SECONDS
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
        except EOFError:
            verdicts.append("its process has died")
    for _, process in pairs:
        process.join(CLOSE_SECONDS)
        process.kill()
        process.join()
    master.interrupt()
    if verdicts == ["ok", "ok"]:
        return "ok"
    return "\n".join(verdict for verdict in verdicts if verdict != "ok")


def run_sanitized(out: Path, device: str) -> str:
    """The verdict over the kernels under NVIDIA's compute-sanitizer, which looks for accesses that are not allowed."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None or device != "cuda":
        return "skipped: there is no compute-sanitizer" if tool is None else "skipped: nothing is at a GPU"
    # Calls of the driver that fail are no errors: the library asks it about memory that it does not know.
    command = [tool, "--target-processes", "all", "--report-api-errors", "no", "--error-exitcode", "9"]
    command += [sys.executable, str(Path(__file__).resolve())]
    command += ["--out", str(out / "sanitized"), "--start", "spawn", "kernels"]  # it need not follow a fork without exec
    slow = {**os.environ, "PCCL_GPU_LIMIT_SECONDS": str(SANITIZER_SECONDS - 10)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SANITIZER_SECONDS, env=slow)
    except subprocess.TimeoutExpired:
        return "it did not end in time"
    (out / "sanitizer.txt").write_text(done.stdout + done.stderr)
    if "Device not supported" in done.stdout + done.stderr:
        return "skipped: compute-sanitizer does not support this device"
    return "ok" if done.returncode == 0 else f"it ended with {done.returncode}: see sanitizer.txt"


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
    parser.add_argument("--start", default="forkserver", choices=["forkserver", "spawn"], help="how processes are started")
    parser.add_argument("cases", nargs="*", help="all by default")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.resolve()
    # Processes look in the working directory first, where there may be sources without the library.
    paths = [str(Path(pccl.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    os.chdir(options.out)
    why = why_not() if options.device == "cuda" else ""
    results: dict[str, Any] = {"gpu": pccl.cuda.describe(), "device": options.device, "version": pccl.__version__}
    if why:
        results["skipped"] = why
        print(f"skipped: {why}")
    else:
        run_case("nothing", options.device, options.start)  # the first process is slow: what it needs is read from disk
        names = options.cases or [case.__name__ for case in CASES]
        results["cases"] = {}
        for name in names:
            begun = time.monotonic()
            verdict = run_case(name, options.device, options.start)
            results["cases"][name] = {"verdict": verdict, "seconds": round(time.monotonic() - begun, 2)}
            print(f"{name}: {verdict}", flush=True)
        if not options.cases:
            results["sanitizer"] = run_sanitized(options.out, options.device)
            print(f"compute-sanitizer: {results['sanitizer']}", flush=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    sanitized = results.get("sanitizer", "ok")
    good = sanitized == "ok" or sanitized.startswith("skipped")
    return 0 if good and all(case["verdict"] == "ok" for case in results.get("cases", {}).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
