"""The two peers of bench/gpu.py, which share a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import harness
from harness import KIB, Peer

import pccl
from pccl import Communicator, ReduceOp, SharedStateSyncStrategy

LANES = 4
SIDE = {"cuda": 8192, "cpu": 256}
"""Of the matrices whose product a reduce may slow down."""

PART = 0.6
"""Of the time of a reduce, which a run of products takes, so that the reduce is under way for all of it."""

BESIDE = ("both at the GPU", "the other at the CPU")

SPOILT = 100 * 256 * KIB
"""Bytes from one leaf that differs to the next: 1 % do."""


@contextlib.contextmanager
def joined(peer: Peer, address: str) -> Iterator[tuple[Peer, Communicator]]:
    """A member, and the peer with its rank there."""
    os.environ["PCCL_SAME_HOST_MEMORY"] = "0"
    with Communicator(address, p2p_connection_pool_size=LANES) as comm:
        comm.connect()
        comm.wait_for_peers(peer.world)
        yield dataclasses.replace(peer, rank=comm.rank), comm
        peer.barrier.wait()


def largest(comm: Communicator, seconds: float) -> float:
    """Of both members."""
    import torch

    found = torch.tensor([seconds], dtype=torch.float64)
    comm.all_reduce(found, op=ReduceOp.MAX)
    return float(found)


def fitting(blocks: int, seconds: float, each: float) -> int:
    """As many blocks as fit into the time, three at least."""
    return max(3, min(blocks, int(seconds / each)))


def synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.current_stream().synchronize()


def ops(peer: Peer, address: str, device: str, size: int, blocks: int, seconds: float, reduced_at: str) -> Products | None:
    """Tells of the reduces first."""
    os.environ["PCCL_CUDA_REDUCE"] = reduced_at
    with joined(peer, address) as (placed, comm):
        harness.tell(placed, reduces(placed, comm, device, size, blocks, seconds, reduced_at))
        return products(placed, comm, device, size, blocks, seconds)


def reduces(
    peer: Peer, comm: Communicator, device: str, size: int, blocks: int, seconds: float, reduced_at: str
) -> harness.Samples:
    """All-reduces in place of one number of bytes, and of as many elements of bf16."""
    import torch

    count = size // 4
    there = torch.full((count,), peer.rank + 1.0, device=device)
    half = torch.full((count,), peer.rank + 1.0, dtype=torch.bfloat16, device=device)
    host = torch.full((count,), peer.rank + 1.0)
    mixed = (there if peer.rank == 0 else host).clone()
    locked = torch.empty(count, pin_memory=device != "cpu")

    def in_place(tensor: torch.Tensor) -> None:
        comm.all_reduce(tensor, op=ReduceOp.AVG)
        synchronize(device)

    def by_hand(copy: torch.Tensor | None = None) -> None:
        if copy is None:
            copy = there.to("cpu", copy=True)
        else:
            copy.copy_(there, non_blocking=True)
            synchronize(device)
        comm.all_reduce(copy, op=ReduceOp.AVG)
        there.copy_(copy, non_blocking=copy is locked)
        synchronize(device)

    tensors = {"GPU": there, "GPU bf16": half, "GPU and CPU": mixed, "CPU": host}
    calls: dict[str, Callable[[], object]] = {name: functools.partial(in_place, tensor) for name, tensor in tensors.items()}
    if reduced_at == "":
        calls |= {"by hand": by_hand, "by hand, page-locked": functools.partial(by_hand, locked)}
    for call in calls.values():
        call()
    begun = time.perf_counter()
    for call in calls.values():
        call()
    each = largest(comm, time.perf_counter() - begun)
    samples = harness.alternate(peer, calls, fitting(blocks, seconds, each))
    for tensor in tensors.values():
        if not bool((tensor == 1.5).all()):
            raise harness.BenchError("an average is wrong")
    return samples


class Products(NamedTuple):
    """Seconds of a run of so many products, alone and beside reduces."""

    count: int  # type: ignore[assignment] # the field hides a method of tuples that nobody calls
    seconds: dict[str, list[float]]
    outlasted: dict[str, int]
    """How many ended after the reduce, and so were not beside it for all of their time."""


class Multiplier:
    """Matrix products on a stream of their own; on the CPU they are done when they are asked for."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device, side = torch, device, SIDE[device]
        self._square = torch.randn(side, side, device=device).to(torch.bfloat16)
        self._made = torch.empty_like(self._square)
        self._seconds = 0.0
        if device != "cpu":
            self._stream = torch.cuda.Stream()
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()

    def begin(self, count: int) -> None:
        torch = self._torch
        if self._device == "cpu":
            begun = time.perf_counter()
            for _ in range(count):
                torch.matmul(self._square, self._square, out=self._made)
            self._seconds = time.perf_counter() - begun
            return
        with torch.cuda.stream(self._stream):
            self._begin.record()
            for _ in range(count):
                torch.matmul(self._square, self._square, out=self._made)
            self._end.record()

    def has_ended(self) -> bool:
        return self._device == "cpu" or bool(self._end.query())

    def seconds(self) -> float:
        if self._device == "cpu":
            return self._seconds
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) / 1e3


def products(peer: Peer, comm: Communicator, device: str, size: int, blocks: int, seconds: float) -> Products | None:
    """Member 0 multiplies."""
    import torch

    there, host = torch.ones(size // 4, device=device), torch.ones(size // 4)
    tensors = {BESIDE[0]: there, BESIDE[1]: there if peer.rank == 0 else host}
    times = []
    for tensor in tensors.values():
        for _ in range(3):
            peer.barrier.wait()
            begun = time.perf_counter()
            comm.all_reduce(tensor, op=ReduceOp.AVG)
            took = time.perf_counter() - begun
        times.append(largest(comm, took))
    count = 1
    if peer.rank == 0:
        multiplier = Multiplier(device)
        for _ in range(2):
            multiplier.begin(20)
            one = multiplier.seconds() / 20
        count = max(1, int(PART * min(times) / one))
    found: dict[str, list[float]] = {name: [] for name in ("alone", *BESIDE)}
    outlasted = dict.fromkeys(found, 0)
    for block in range(1 + fitting(blocks, seconds, 3 * max(times))):
        for name in found:
            synchronize(device)
            peer.barrier.wait()
            handle = None if name == "alone" else comm.all_reduce_async(tensors[name], op=ReduceOp.AVG)
            if peer.rank == 0:
                multiplier.begin(count)
            if handle is not None:
                handle.result()
            if peer.rank == 0:
                is_late = handle is not None and not multiplier.has_ended()
                took = multiplier.seconds()
                if block > 0:
                    outlasted[name] += is_late
                    found[name].append(took)
            peer.barrier.wait()
    return Products(count, found, outlasted) if peer.rank == 0 else None


def state(peer: Peer, address: str, device: str, size: int) -> None:
    """A state that is hashed and synchronised at orders, of which 1 % of the leaves differ each time."""
    import torch

    with joined(peer, address) as (placed, comm):
        tensor = torch.empty(size // 4, device=device)
        torch.manual_seed(1)
        tensor.uniform_()
        shared = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, "weights")])
        while (word := harness.order(placed)) != "end":
            synchronize(device)
            if word == "hash":
                harness.tell(placed, hash_seconds(placed, shared))
            elif word == "digest":
                harness.tell(placed, shared.hash())
            else:
                if placed.rank == 1:
                    tensor[:: SPOILT // 4].add_(1)
                    synchronize(device)
                harness.tell(placed, sync(placed, comm, shared))


def hash_seconds(peer: Peer, shared: pccl.SharedState) -> dict[str, float]:
    """Of the hash while the other member waits, and of both at once."""
    found = []
    for turn in (0, 1, None):
        peer.barrier.wait()
        if turn in (None, peer.rank):
            begun = time.perf_counter()
            shared.hash()
            found.append(time.perf_counter() - begun)
    return {"alone": found[0], "at once": found[1]}


def sync(peer: Peer, comm: Communicator, shared: pccl.SharedState) -> dict[str, Any]:
    strategy = SharedStateSyncStrategy.SEND_ONLY if peer.rank == 0 else SharedStateSyncStrategy.RECEIVE_ONLY
    peer.barrier.wait()
    begun = time.perf_counter()
    info = comm.sync_shared_state(shared, strategy)
    seconds = time.perf_counter() - begun
    shared.push_revision()
    return {"seconds": seconds, "rx": info.rx_bytes, "hash": info.hash_seconds, "transfer": info.transfer_seconds}
