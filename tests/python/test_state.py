"""What makes a shared state, and the mistakes that are told before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pccl import Communicator, SharedState, TensorInfo, UsageError

COMM = Communicator("127.0.0.1:1")  # never connects


def info(name: Any = "a") -> TensorInfo:
    return TensorInfo.from_numpy(np.zeros(3), name)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: SharedState([]), AssertionError, "at least one tensor"),
        (lambda: SharedState([np.zeros(3)]), TypeError, "entry 0 is a ndarray, not a TensorInfo"),
        (lambda: SharedState({"a": np.zeros(3)}), TypeError, "made of a list of TensorInfo, not of dict"),
        (lambda: SharedState(["a"]), TypeError, "entry 0 is a str, not a TensorInfo"),
        (lambda: info(3), TypeError, "the name of a tensor must be a str, not int"),
        (lambda: info("a\0b"), ValueError, "must not contain a zero character"),
        (lambda: TensorInfo.from_numpy([1.0], "w"), TypeError, r"tensor 'w' must be a numpy\.ndarray, not list"),
        (lambda: TensorInfo.from_torch(np.zeros(3), "w"), TypeError, r"tensor 'w' must be a torch\.Tensor, not ndarray"),
        (lambda: TensorInfo.from_numpy(np.zeros((3, 4)).T, "w"), AssertionError, "tensor 'w' must be contiguous"),
        (lambda: TensorInfo.from_numpy(np.zeros(3, np.complex64), "w"), AssertionError, "tensor 'w': .*complex64"),
        (lambda: setattr(SharedState([info()]), "revision", -1), ValueError, "revision must be from 0 to"),
        (lambda: setattr(SharedState([info()]), "revision", "1"), TypeError, "revision must be a whole number"),
        (lambda: COMM.sync_shared_state([np.zeros(3)]), TypeError, "shared_state must be a SharedState, not list"),
        (lambda: COMM.sync_shared_state(SharedState([info()]), "popular"), TypeError, "strategy must be a SharedStateSync"),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_repr_tells_entries_apart() -> None:
    assert repr(SharedState([info()])) == "SharedState(revision=0, 1 tensors: 'a': 3 x DOUBLE)"
    assert repr(SharedState([info(str(at)) for at in range(103)])).endswith("and 3 more)")


def test_doubled_names_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        SharedState([info(), info()])  # at once, not by the first sync
    assert caught.value.detail == 'two entries have the name "a"; names must differ'
