"""The floor that bench/allreduce.py measures beside pccl sums right."""

import ctypes
import mmap
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2] / "bench" / "floor.c"
CHUNK = 65536  # elements
DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def floor(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("floor") / "libfloor.so"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run([compiler, *options, "-o", library, SOURCE], check=True, timeout=DEADLINE_SECONDS)
    loaded = ctypes.CDLL(str(library))
    loaded.floor_slots_bytes.restype = ctypes.c_size_t
    return loaded


def of_all(world, reduce, count):
    """Calls `reduce` twice in a thread for each peer, and checks the sums."""
    inputs = [np.arange(count, dtype=np.float32) % 251 + 1000 * rank for rank in range(world)]
    expected = sum(inputs)

    def peer(rank):
        for _ in range(2):
            output = np.full(count, np.nan, np.float32)
            arrays = (ctypes.c_void_p(array.ctypes.data) for array in (inputs[rank], output))
            reduce(rank, *map(ctypes.c_size_t, (rank, world)), *arrays, ctypes.c_size_t(count))
            np.testing.assert_array_equal(output, expected)

    with ThreadPoolExecutor(world) as threads:
        for done in [threads.submit(peer, rank) for rank in range(world)]:
            done.result(DEADLINE_SECONDS)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 4, 1001, 12 * CHUNK, 25 * CHUNK + 7])
def test_slots(floor, world, count):
    memory = mmap.mmap(-1, floor.floor_slots_bytes(ctypes.c_size_t(world)))
    start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    of_all(world, lambda _, *arguments: floor.floor_slots(start, *arguments), count)


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 4, 1001, 12 * CHUNK, 25 * CHUNK + 7])
def test_tcp(floor, world, count):
    pairs = [socket.socketpair() for _ in range(world)]  # from each peer to the next

    def reduce(rank, *arguments):
        assert floor.floor_tcp(pairs[rank - 1][1].fileno(), pairs[rank][0].fileno(), *arguments) == 0

    of_all(world, reduce, count)
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_lost_connection_is_an_error(floor):
    from_predecessor, predecessor = socket.socketpair()
    to_successor, _ = socket.socketpair()
    predecessor.close()
    array = np.zeros(8, np.float32)
    pointer, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t
    assert floor.floor_tcp(from_predecessor.fileno(), to_successor.fileno(), size(0), size(2), pointer, pointer, size(8)) == -1
