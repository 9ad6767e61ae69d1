"""torch.distributed with memory of a GPU, of the fake driver. This torch has no CUDA: its tensors take it for the CPU's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import ranks
import torch
import torch.distributed as dist
from gpu_members import Array, Driver, build_driver

from pccl.distributed import _launch, _p2p

COUNT = 400_000


def tensor_of(array: Array) -> torch.Tensor:
    """Whoever touches its elements ends with SIGSEGV."""
    content = array.elements
    return torch.frombuffer((ctypes.c_float * len(content)).from_address(array._address), dtype=torch.float32)


def calls_in_order(library: str) -> list[bool]:
    """Calls on memory that a slow kernel of the stream writes, right after its launch."""
    driver = Driver(library)
    stream, rank = driver.stream(), dist.get_rank()
    _launch.stream_of = _p2p.stream_of = lambda _: stream  # type: ignore[assignment]
    arrays = [Array(driver, np.zeros(count, np.float32)) for count in (COUNT, COUNT, 2 * COUNT, COUNT)]
    own, summed, both, received = arrays
    tensors = [tensor_of(array) for array in arrays]

    def write() -> None:
        own.elements[:] = rank + 1
        summed.elements[:] = rank + 1
        received.elements[:] = 7

    driver.launch(stream, 30_000, write)
    works = [
        dist.all_reduce(tensors[1], async_op=True),
        dist.all_gather_into_tensor(tensors[2], tensors[0], async_op=True),
        dist.isend(tensors[0], 1) if rank == 0 else dist.irecv(tensors[3], 0),
    ]
    for work in works:
        assert work is not None
        work.wait()
    futures = dist.all_reduce(tensors[1], async_op=True).get_future().wait()
    assert futures[0].data_ptr() == tensors[1].data_ptr()
    halves = both.elements[:COUNT], both.elements[COUNT:]
    found = [(summed.elements == 6).all(), (halves[0] == 1).all(), (halves[1] == 2).all(), (own.elements == rank + 1).all()]
    found.append((received.elements == (7 if rank == 0 else 1)).all())
    return [bool(good) for good in found]


def test_calls_come_after_the_stream_and_touch_no_tensor(tmp_path: Path) -> None:
    library = str(build_driver(tmp_path))
    found = ranks.run(calls_in_order, 2, library, environment={"PCCL_CUDA_DRIVER": library})
    assert found == [[True] * 5] * 2
