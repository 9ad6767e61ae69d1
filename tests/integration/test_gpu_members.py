"""Tensors at a GPU, of the fake driver, between processes: the results of tensors on the CPU, in the order of streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_members import ROOT, Member, build_driver, driver_environment
from performers import PATIENCE, MasterProcess, Performer

KIB = 1024
HEARTBEAT_LIMIT = 2.0  # seconds


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@contextlib.contextmanager
def pair(
    driver: Path, at_gpu: tuple[bool, bool], heartbeat_limit: float = HEARTBEAT_LIMIT, **options: Any
) -> Iterator[list[Performer]]:
    """Two members by rank, with their tensors at a GPU or not."""
    master = MasterProcess(heartbeat_limit=heartbeat_limit)
    environment = driver_environment(driver, **options)
    members = [Performer(Member, at, (master.address, str(driver), on), environment) for at, on in enumerate(at_gpu)]
    try:
        for member in members:
            member.tell("join")
        ranks = [member.answer() for member in members]
        yield [member for _, member in sorted(zip(ranks, members, strict=True), key=lambda one: one[0])]
    finally:
        for member in members:
            member.kill()
        master.kill()


@pytest.fixture(scope="module", params=[(True, True), (True, False)], ids=["GPUs", "GPU and CPU"])
def members(driver: Path, request: pytest.FixtureRequest) -> Iterator[list[Performer]]:
    with pair(driver, request.param) as made:
        yield made


def on_both(members: list[Performer], method: str, *arguments: object) -> list[object]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


WAYS = [
    ("float32", False, None, False),
    ("float32", True, None, False),
    ("float16", True, None, False),
    ("int64", False, None, False),
    ("float32", True, "MIN_MAX", False),
    ("float32", False, "BLOCK_INT4", False),
    ("float16", True, "BLOCK_INT8", False),
    ("float32", True, "BLOCK_E3M0", False),
    ("float64", True, None, True),
]


@pytest.mark.parametrize("count", [0, 100, 300_001])
@pytest.mark.parametrize(("dtype", "in_place", "algorithm", "retry"), WAYS)
def test_reduce(members, count, dtype, in_place, algorithm, retry):
    if count == 300_001 and retry:
        count = 5_000_000  # of several segments
    first, second = on_both(members, "reduce", count, dtype, in_place, algorithm, retry)
    assert first == second
    if algorithm is None:
        np = pytest.importorskip("numpy")
        content = np.arange(count) % 251
        assert first == (content.astype(dtype) + (content * 2).astype(dtype)).tobytes()


@pytest.mark.parametrize("count", [1, 5_000, 400_000])
def test_collectives(members, count):
    first, second = on_both(members, "reduce_many", count)
    assert first == second


@pytest.mark.parametrize("count", [100, 600_000])
def test_sync(members, count):
    first, second = on_both(members, "sync", count)
    assert first == second


def test_without_the_library(driver):
    """A tensor on a GPU is refused, with the reason and what to do; the same members go on with tensors on the CPU."""
    with pair(driver, (True, True), library="/nowhere/libpccl_cuda.so") as members:
        for refusal in on_both(members, "refusals_without_the_library"):
            assert "the tensor is on a GPU, and libpccl_cuda.so cannot be loaded: /nowhere/libpccl_cuda.so" in refusal
            assert "install pccl again together with its CUDA library, or pass a tensor on the CPU" in refusal


def test_streams(driver):
    with pair(driver, (True, True)) as members:
        for count in (100, 600_000):
            assert on_both(members, "reduce_in_order", count) == [[3.0, 3.0]] * 2
        assert "residual is on CPU and the tensors on CUDA" in members[0].ask("feed_back", 64)


def test_streams_that_wait(driver):
    with pair(driver, (True, True)) as members:
        for gpu in (0, 1):  # with memory pools, and without
            sums, risks = zip(*on_both(members, "reduce_while_a_stream_waits", gpu, 200_000, 10_000_000), strict=True)
            assert sums == ([2.0] * 6,) * 2
            assert risks == ((0, 0),) * 2


def test_waits_of_the_host_and_of_streams_at_once(driver):
    with pair(driver, (True, True)) as members:
        assert on_both(members, "wait_in_two_threads", 10_000, 30) == [(0, 0)] * 2


def test_refused_streams(driver):
    with pair(driver, (True, True)) as members:
        for refusals in on_both(members, "reduce_when_refused", 100_000):
            assert len(refusals) == 5
            assert all("it is capturing a CUDA graph" in text for text in (*refusals[:2], refusals[4]))
            assert all("cuStreamIsCapturing: error 400" in text for text in refusals[2:4])
            assert refusals[4].startswith("the stream cannot wait for the operation")


def test_input_is_put_back_without_its_stream(driver):
    with pair(driver, (True, True)) as members:
        first, second = members
        first.tell("reduce_with_bad_stream", 1_000_000)
        for _ in range(2):
            second.tell("reduce_when_it_fails", 1_000_000, False)
        assert second.answer()[0] == "SUCCESS"
        text, is_put_back = first.answer()
        assert "CUDA: cuMemcpyAsync: CUDA_ERROR_OUT_OF_MEMORY" in text
        assert is_put_back
        assert second.answer()[0] == "RANK_CONNECTION_LOST"


def test_failure(driver):
    with pair(driver, (True, False)) as members:
        at_gpu = next(member for member in members if member.number == 0)
        [other] = [member for member in members if member is not at_gpu]
        at_gpu.tell("reduce_when_it_fails", 20_000_000, True)
        other.tell("reduce_when_it_fails", 20_000_000, False)
        result, text = at_gpu.answer()
        assert result == "INTERNAL_ERROR"
        assert "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered" in text
        assert other.answer()[0] == "RANK_CONNECTION_LOST"


@pytest.mark.parametrize("algorithm", [None, "MIN_MAX", "BLOCK_INT8"])
def test_gpu_that_pauses(driver, algorithm):
    """For longer than the heartbeat limit: nobody is lost."""
    with pair(driver, (True, False)) as members:
        first, second = on_both(members, "reduce_while_the_gpu_pauses", 1_000_000, algorithm, 2 * HEARTBEAT_LIMIT)
        assert first[0] == second[0] == "SUCCESS"
        assert first == second


def test_sync_without_heartbeats(driver):
    """The GPU alone wakes the donor, which waits for the leaves' bytes."""
    with pair(driver, (True, True), heartbeat_limit=10 * PATIENCE) as members:
        first, second = on_both(members, "sync", 600_000)
        assert first == second


def test_gpu_of_a_donor_that_pauses(driver):
    """Between its hash and the leaves that the other member lacks, for longer than the heartbeat limit."""
    with pair(driver, (True, False)) as members:
        first, second = on_both(members, "sync_while_the_gpu_pauses", 600_000, 2 * HEARTBEAT_LIMIT)
        assert first == second


@pytest.mark.parametrize(
    ("algorithm", "reduce", "launches"),
    [
        ("BLOCK_INT8", "gpu", 9),
        ("BLOCK_INT8", "", 9),
        ("BLOCK_INT8", "host", 0),
        (None, "gpu", 1),
        (None, "", 0),
        ("MIN_MAX", "gpu", 0),
    ],
)
def test_work_of_the_gpu(driver, algorithm, reduce, launches):
    """Beside a member whose tensors are on the CPU."""
    with pair(driver, (True, False), reduce=reduce) as members:
        first, second = on_both(members, "reduce", 300_001, "float32", True, algorithm, False)
        assert first == second
        [at_gpu] = [member for member in members if member.number == 0]
        done = at_gpu.ask("launches")
        # of three pieces of each shard: one input is encoded, one sum, and one result stored
        assert done >= launches if launches == 1 else done == launches
        first, second = on_both(members, "sync", 600_000)  # 19 leaves, of which four differ
        assert first == second
        assert at_gpu.ask("launches") > done


def test_kernels_that_the_gpu_does_not_take(driver):
    with pair(driver, (True, False), kernels=ROOT / "README.md") as members:
        first, second = on_both(members, "sync", 600_000)
        assert first == second
        first, second = on_both(members, "reduce", 300_001, "float32", True, None, False)
        assert first == second
        assert [member.ask("launches") for member in members if member.number == 0] == [0]
