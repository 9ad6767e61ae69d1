"""A peer of the demo, with a communicator that loses peers on command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


from pccl import Attribute, CallAgainError, PCCLError, Result, SharedState, TensorInfo  # noqa: E402  # after the skips
from pccl.demo.worker import average, sync  # noqa: E402

torch.set_num_threads(1)  # these tensors are too small for more


class ScriptedComm:
    """Doubles each buffer it reduces; ``failures`` lists, per round, the tags that end with a loss."""

    def __init__(self, world: int, failures: list[set[int]], status: Result = Result.RANK_CONNECTION_LOST) -> None:
        self.world, self.failures, self.status = world, failures, status
        self.launched: list[list[int]] = []
        self.waited: set[int] = set()

    def get_attribute(self, attribute: Attribute) -> int:
        return self.world

    def all_reduce_async(self, send: Any, recv: Any, *, op: Any, tag: int) -> Any:
        if self.world < 2:
            raise PCCLError(Result.TOO_FEW_PEERS, "pcclAllReduceAsync")
        assert send is recv
        if not self.launched or self.waited == set(self.launched[-1]):
            self.launched.append([])
            self.waited = set()
        self.launched[-1].append(tag)
        return SimpleNamespace(wait=lambda: self._wait(recv, tag))

    def _wait(self, buffer: Any, tag: int) -> Any:
        self.waited.add(tag)
        number = len(self.launched) - 1
        if number < len(self.failures) and tag in self.failures[number]:
            self.world -= tag == min(self.failures[number])
            return False, self.status.value, SimpleNamespace(tx_bytes=0, rx_bytes=0)
        buffer *= 2
        return True, 0, SimpleNamespace(tx_bytes=3, rx_bytes=4)


@pytest.mark.parametrize(
    ("world", "failures", "launched", "left", "reduced"),
    [
        (3, [], [[0, 1, 2, 3]], 3, [0, 1, 2, 3]),
        (3, [{1, 3}], [[0, 1, 2, 3], [1, 3]], 2, [0, 1, 2, 3]),
        (4, [{0, 1, 2, 3}, {2}], [[0, 1, 2, 3], [0, 1, 2, 3], [2]], 2, [0, 1, 2, 3]),
        (2, [{2, 3}], [[0, 1, 2, 3]], 1, [0, 1]),
        (1, [], [], 1, []),
    ],
)
def test_average_repeats_exactly_what_failed(
    world: int, failures: list[set[int]], launched: list[list[int]], left: int, reduced: list[int]
) -> None:
    comm: Any = ScriptedComm(world, failures)
    buckets = [torch.ones(5) for _ in range(4)]
    result = average(comm, buckets)
    assert comm.launched == launched
    assert [int(bucket[0]) for bucket in buckets] == [2 if tag in reduced else 1 for tag in range(4)]
    assert (result.world, result.failed) == (left, sum(len(tags) for tags in failures))
    assert (result.tx_bytes, result.rx_bytes) == (3 * len(reduced), 4 * len(reduced))


def test_average_raises_other_failures_after_waiting() -> None:
    comm: Any = ScriptedComm(3, [{0}], Result.INVALID_ARGUMENT)
    with pytest.raises(PCCLError, match="INVALID_ARGUMENT"):
        average(comm, [torch.ones(5)])


class NothingToShare:
    """A group in which nobody has all of the state, until the world has one more peer, if it ever does."""

    def __init__(self, worlds: list[int]) -> None:
        self.worlds = worlds

    def sync_shared_state(self, shared: SharedState) -> str:
        if len(self.worlds) > 1:
            raise CallAgainError(Result.NO_SHARED_STATE_AVAILABLE, "pcclSynchronizeSharedState")
        return "synced"

    def update_topology(self) -> None:
        self.worlds.pop(0)

    def get_attribute(self, attribute: Attribute) -> int:
        return self.worlds[0]


def test_a_sync_without_a_holder_is_repeated_but_not_by_a_newcomer_alone() -> None:
    shared = SharedState([TensorInfo.from_torch(torch.zeros(1), "w")])
    comm: Any = NothingToShare([3, 2, 3])
    assert sync(comm, shared) == "synced"
    alone: Any = NothingToShare([2, 1, 1])
    with pytest.raises(CallAgainError):
        sync(alone, shared)
