"""The parity hash against the reference implementation of XXH3, and what a sync moves against what differs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pccl import Communicator, MasterNode, SharedState, TensorInfo

LEAF = 256 << 10
DTYPES = ["u1", "i1", "i2", "u2", "u4", "i4", "u8", "i8", "f2", ml_dtypes.bfloat16, "f4", "f8"]


def reference(arrays: list[np.ndarray]) -> str:
    """As docs/protocol.md says."""
    entries = b""
    for array in arrays:
        content = array.tobytes()
        leaves = [xxhash.xxh3_64_intdigest(content[at : at + LEAF]) for at in range(0, len(content), LEAF)]
        entry = xxhash.xxh3_128_intdigest(b"".join(leaf.to_bytes(8, "little") for leaf in leaves))
        entries += entry.to_bytes(16, "little")
    return f"{xxhash.xxh3_128_intdigest(entries):032x}"


def state_of(arrays: list[np.ndarray]) -> SharedState:
    return SharedState([TensorInfo.from_numpy(array, str(at)) for at, array in enumerate(arrays)])


def aligned(size: int, shift: int, seed: int) -> np.ndarray:
    """Random bytes, `shift` bytes off."""
    raw = np.empty(size + 64 + shift, np.uint8)
    array = raw[shift : shift + size]
    array[:] = np.resize(np.random.default_rng(seed).integers(0, 256, 5003, np.uint8), size)
    return array


sizes = st.one_of(
    st.integers(0, 600),
    st.sampled_from([LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 3 * LEAF + 7]),
    st.integers(0, 5 * LEAF),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(sizes, st.integers(0, 63), st.integers(0, 1 << 30)), min_size=1, max_size=6))
def test_hash_is_that_of_the_reference(shapes: list[tuple[int, int, int]]) -> None:
    arrays = [aligned(*shape) for shape in shapes]
    assert state_of(arrays).hash() == reference(arrays)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hash_of_each_dtype(dtype: object) -> None:
    arrays = [(np.arange(100_003) % 100).astype(dtype), np.zeros(0, dtype), np.array(3).astype(dtype)]
    assert state_of(arrays).hash() == reference(arrays)


def test_hash_of_20000_entries_and_entries_that_may_differ() -> None:
    arrays = [np.full(at % 5, at, np.int64) for at in range(20_000)]
    infos = [TensorInfo.from_numpy(array, str(at), allow_content_inequality=at % 3 == 0) for at, array in enumerate(arrays)]
    assert SharedState(infos).hash() == reference([array for at, array in enumerate(arrays) if at % 3])


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Communicator]]:
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterNode("127.0.0.1:0"))
        comms = [stack.enter_context(Communicator(f"127.0.0.1:{master.port}")) for _ in range(2)]
        comms[0].connect(1)
        joining = threading.Thread(target=comms[1].connect, args=(1,))
        joining.start()
        comms[0].wait_for_peers(2, timeout=30)
        joining.join()
        yield comms


revision = 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(st.tuples(sizes, st.integers(0, 15), st.integers(0, 99)), min_size=1, max_size=8),
    st.sets(st.integers(0, 1 << 40), max_size=12),
)
def test_only_leaves_that_differ_travel(pair: list[Communicator], shapes: list[tuple[int, int, int]], places: set[int]) -> None:
    """Some bytes differ: their leaves come, and no others, whatever the entries are like."""
    global revision
    revision += 1
    held = [[aligned(*shape) for shape in shapes] for _ in pair]
    wanted = [array.copy() for array in held[0]]
    differing = set()
    total = sum(len(array) for array in wanted)
    for place in {place % total for place in places} if total else ():
        entry, at = 0, place
        while at >= len(wanted[entry]):
            at -= len(wanted[entry])
            entry += 1
        held[1][entry][at] ^= 1 + place % 255
        differing.add((entry, at // LEAF))
    states = [state_of(arrays) for arrays in held]
    infos: list[Any] = [None, None]

    def sync(rank: int) -> None:
        states[rank].revision = revision
        infos[rank] = pair[rank].sync_shared_state(states[rank], timeout=30)

    threads = [threading.Thread(target=sync, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    moved = sum(min(LEAF, len(wanted[entry]) - leaf * LEAF) for entry, leaf in differing)
    assert [(info.tx_bytes, info.rx_bytes) for info in infos] == [(moved, 0), (0, moved)]
    assert infos[1].leaves == len(differing)
    assert all(np.array_equal(array, right) for arrays in held for array, right in zip(arrays, wanted, strict=True))
    assert states[0].hash() == states[1].hash() == reference(wanted)
