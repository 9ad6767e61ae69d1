"""Memory that outlives its process, the bytes of slices in it, and their hashes."""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch

from pccl import _snapshot_kernels
from pccl._host.holder import memory_file
from pccl.state._snapshots.boxes import DTYPES, Box, ShardMap, Slice, image_offsets, split_of

_ffi, _kernels = _snapshot_kernels.ffi, _snapshot_kernels.lib

BLOCK_BYTES = 64 << 10
"""What is compared with the snapshot before, and sent if it has changed."""


class Sum(NamedTuple):
    """A hash that is the sum of the hashes of elements, whatever parts these are in: two numbers below 2^64."""

    low: int
    high: int

    def __add__(self, other: object) -> Sum:
        assert isinstance(other, Sum)
        return Sum((self.low + other.low) % (1 << 64), (self.high + other.high) % (1 << 64))

    @classmethod
    def of_signed(cls, low: int, high: int) -> Self:
        """From numbers as torch's int64 holds them."""
        return cls(low % (1 << 64), high % (1 << 64))

    def signed(self) -> tuple[int, int]:
        """As torch's int64 holds them."""
        low, high = ((one ^ 1 << 63) - (1 << 63) for one in self)
        return low, high


class Memory:
    """A memory file and its bytes. It is given back when nobody refers to `bytes` any more."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Takes the descriptor over."""
        self.fd = fd
        """Stays this object's."""
        self.nbytes = nbytes
        try:
            self._map = mmap.mmap(fd, max(1, nbytes))
        except OSError as error:
            os.close(fd)
            raise MemoryError(f"{nbytes >> 20} MiB of a snapshot cannot be mapped: {error.strerror}") from error
        self._map.madvise(mmap.MADV_DONTFORK)  # a forked child would keep the memory
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    @classmethod
    def new(cls, nbytes: int) -> Self:
        """Zeros. MemoryError: the host has not got as much."""
        return cls(memory_file(max(1, nbytes)), nbytes)

    @classmethod
    def of(cls, content: bytes) -> Self:
        made = cls.new(len(content))
        if content:
            made.bytes.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return made

    def close(self) -> None:
        """Gives the descriptor back. The bytes are there as long as something refers to them."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def slice_of(image: torch.Tensor, offset: int, part: Slice) -> torch.Tensor:
    dtype = DTYPES[part.dtype]
    return image[offset : offset + part.nbytes].view(dtype).view(part.box.shape)


def write_image(tensors: Mapping[str, torch.Tensor], shards: ShardMap, image: torch.Tensor) -> None:
    """Copies the tensors, each of the shape of its slice, into an image."""
    offsets, _ = image_offsets(shards)
    waits = False
    with torch.no_grad():
        for name, part in shards.items():
            if part.nbytes:
                tensor = tensors[name].detach()
                waits |= not tensor.is_cpu
                slice_of(image, offsets[name], part).copy_(tensor.view(part.box.shape), non_blocking=True)
    if waits:
        torch.accelerator.synchronize()


def hash_slice(name: str, part: Slice, content: torch.Tensor) -> Sum:
    """The hash of one slice: `content` has its shape and lies on the CPU.

    Elements are hashed as little-endian numbers of at most 8 bytes; one of 16 counts as two. Rows that lie one behind the other
    in the whole tensor are hashed at once.
    """
    size = min(part.itemsize, 8)
    each = part.itemsize // size
    sums = _ffi.new("uint64_t[2]")
    seed = _seed(name)
    content = content.contiguous()
    run, starts = runs(part.whole, part.box)
    address = content.data_ptr()
    for number, first in enumerate(starts):
        at = _ffi.cast("void *", address + number * run * part.itemsize)
        _kernels.snapshot_hash(at, run * each, size, first * each, seed, sums)
    return Sum(sums[0], sums[1])


def runs(whole: tuple[int, ...], box: Box) -> tuple[int, list[int]]:
    """The elements of a box in the order of its memory, as runs of equal length: the length, and the index in the whole tensor at
    which each begins."""
    if box.numel == 0:
        return 0, []
    split = split_of(whole, box)
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    starts = [sum(at * stride for at, stride in zip(box.offset, strides, strict=True))]
    for dim in range(split):
        starts = [start + step * strides[dim] for start in starts for step in range(box.shape[dim])]
    return math.prod(box.shape[split:]), starts


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def hash_image(shards: ShardMap, image: torch.Tensor, names: list[str]) -> Sum:
    offsets, _ = image_offsets(shards)
    return sum((hash_slice(name, shards[name], slice_of(image, offsets[name], shards[name])) for name in names), Sum(0, 0))


def changed_blocks(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Which blocks of BLOCK_BYTES differ between two uint8 tensors of one size, as a bool tensor."""
    found = torch.zeros(-(-one.numel() // BLOCK_BYTES), dtype=torch.uint8, device="cpu")
    at = [_ffi.cast("void *", tensor.data_ptr()) for tensor in (one, other)]
    _kernels.snapshot_changed(*at, one.numel(), BLOCK_BYTES, _ffi.cast("uint8_t *", found.data_ptr()))
    return found.bool()
