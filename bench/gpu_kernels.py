"""The library's kernels by themselves at one GPU, launched through the CUDA driver and timed by events of torch.

What is counted are the bytes that a kernel has to read and write in the GPU's memory, against those of a copy within it.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import harness
from harness import KIB, Peer, Row

from pccl._native import ffi, lib

LEAF_BYTES = 256 * KIB
BLOCK = 256
"""Elements that share a scale."""

_POINTER, _COUNT, _NUMBER = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32


class HashLeavesJob(ctypes.Structure):
    """`struct hash_leaves_job` of cuda/kernels/kernel.h."""

    _fields_ = [
        ("content", _POINTER),
        ("leaves", _POINTER),
        ("bytes", _COUNT),
        ("first", _COUNT),
        ("count", _COUNT),
        ("secret", ctypes.c_uint64 * 24),
    ]


class CodesJob(ctypes.Structure):
    """`struct codes_job` there."""

    _fields_ = [
        *((name, _POINTER) for name in ("own", "residual_in", "inputs", "codes", "result", "residual_out")),
        *((name, _COUNT) for name in ("count", "stride", "seed", "index")),
        *((name, _NUMBER) for name in ("terms", "own_term", "block", "code", "dtype", "op", "divisor", "is_stochastic")),
        ("times", ctypes.c_float),
    ]


class Kernels:
    """Those of the library, in torch's context."""

    def __init__(self) -> None:
        image = lib.pccl_ext_cuda_fatbin()
        if image == ffi.NULL:
            raise harness.BenchError("the library has no kernels for GPUs")
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), ctypes.c_void_p(int(ffi.cast("uintptr_t", image)))))

    def _check(self, error: int) -> None:
        if error != 0:
            raise harness.BenchError(f"the CUDA driver gives error {error}")

    def launcher(self, name: str, blocks: int, threads: int, job: ctypes.Structure, stream: int) -> Callable[[], None]:
        """What launches this kernel."""
        function = ctypes.c_void_p()
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(job))

        def launch() -> None:
            size = blocks, 1, 1, threads, 1, 1, 0
            self._check(self._driver.cuLaunchKernel(function, *size, ctypes.c_void_p(stream), parameters, None))

        return launch


def alternate(torch: Any, calls: Mapping[str, Callable[[], object]], blocks: int, per_block: int) -> dict[str, float]:
    """Seconds of one call of each, by the GPU's clock: the calls in turn, and the median over blocks."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks + 1):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(per_block):
                call()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) / 1e3 / per_block)
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def worker(peer: Peer, size: int, state: int, blocks: int) -> dict[str, float]:
    """Bytes read and written in each second: by a copy, by the hash, by encoding to int8, by decoding and adding."""
    import torch

    del peer
    elements = torch.randn(size // 4, device="cuda")  # makes the context that the kernels are loaded in
    kernels = Kernels()
    other = torch.empty_like(elements)
    stream = torch.cuda.current_stream().cuda_stream
    count = elements.numel()
    coded = -(-count // BLOCK) * (4 + BLOCK)
    codes = torch.zeros(coded, dtype=torch.uint8, device="cuda")
    tile = 16 * BLOCK
    common = {"count": count, "block": BLOCK, "dtype": 10, "own": elements.data_ptr()}
    encode = CodesJob(**common, codes=codes.data_ptr(), terms=1)
    add = CodesJob(**common, inputs=codes.data_ptr(), result=other.data_ptr(), terms=2)
    launch_encode = kernels.launcher("pccl_codes", -(-count // tile), 512, encode, stream)
    launch_add = kernels.launcher("pccl_codes", -(-count // tile), 512, add, stream)
    launch_encode()
    launch_add()
    largest = float(elements.abs().max())
    wrong = float((other / 2 - elements).abs().max())
    if not wrong <= largest / 254:
        raise harness.BenchError(f"what was encoded and decoded is off by {wrong}, with elements up to {largest}")
    moved = {"copy": 2 * size, "encode int8": size + coded, "decode int8 and add": 2 * size + coded}
    calls = {"copy": lambda: other.copy_(elements), "encode int8": launch_encode, "decode int8 and add": launch_add}
    rates = {name: moved[name] / seconds for name, seconds in alternate(torch, calls, blocks, 10).items()}
    content = torch.empty(state, dtype=torch.uint8, device="cuda").random_()
    leaves = torch.zeros(state // LEAF_BYTES, dtype=torch.int64, device="cuda")
    hashes = HashLeavesJob(content=content.data_ptr(), leaves=leaves.data_ptr(), bytes=state, count=leaves.numel())
    launch_hash = kernels.launcher("pccl_hash_leaves", -(-leaves.numel() // 4), 128, hashes, stream)
    rates["hash"] = state / alternate(torch, {"hash": launch_hash}, blocks, 3)["hash"]
    return rates


def add_rows(rows: list[Row], bars: list[Row], rates: dict[str, float]) -> None:
    """What the worker has found, and the bars."""
    rows.extend({"what": f"kernel: {name}", "GB_per_s": rate / 1e9} for name, rate in rates.items())
    for name in ("encode int8", "decode int8 and add"):
        bars.append(harness.ratio(f"{name}, against a copy at the GPU", 0.5, rates[name] / rates["copy"]))
    rate = rates["hash"] / 1e12
    bars.append(harness.figure("hash, the kernel alone", f"{rate:.3g} TB/s", "1.5 TB/s", rate >= 1.5))
