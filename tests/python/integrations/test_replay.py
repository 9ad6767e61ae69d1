"""The bookkeeping of `--adapt` in one process: which loaders are counted."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pccl.integrations import _replay
from pccl.integrations._loaders import Batches


@pytest.fixture
def replay(monkeypatch) -> _replay.Replay:
    """A member with fixed membership, to which nothing of torch reports."""
    run = _replay.Replay()
    monkeypatch.setattr(run, "is_fixed", lambda: True)
    monkeypatch.setattr(run, "replays", lambda: False)
    return run


def test_a_checkpoint_of_a_thread_hides_its_own_loaders_and_not_those_of_other_threads(replay):
    data: list[int] = list(range(4))
    begun, end = threading.Event(), threading.Event()
    made: list[Any] = []

    def iterator(loader: DataLoader[Any]) -> Any:
        return replay.batches(loader, lambda _: iter(()))

    class Checkpoint:
        def save(self) -> None:
            made.append(iterator(DataLoader(data)))
            begun.set()
            end.wait()

    _replay.silence(replay, Checkpoint, "save")
    thread = threading.Thread(target=Checkpoint().save, daemon=True)
    thread.start()
    try:
        begun.wait()
        counted = iterator(DataLoader(data))
    finally:
        end.set()
        thread.join()
    assert isinstance(counted, Batches)
    assert not isinstance(made[0], Batches)
