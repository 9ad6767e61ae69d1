"""Checkpoints of shared states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pccl


def state_of(seed: int) -> tuple[torch.nn.Module, pccl.SharedState]:
    torch.manual_seed(seed)
    module = torch.nn.Linear(3, 3)
    return module, pccl.SharedState.from_module(module, torch.optim.Adam(module.parameters()), {"step": seed})


def test_a_shared_state_comes_back(tmp_path: Path) -> None:
    module, state = state_of(1)
    state.revision = 7
    state.extra["step"] = 12
    state.save(tmp_path / "point")
    other_module, other = state_of(2)
    other.load(tmp_path / "point")
    assert other.revision == 7
    assert other.extra["step"] == 12
    assert other.hash() == state.hash()
    assert other_module.weight.equal(module.weight)


def test_one_of_another_shape_changes_nothing(tmp_path: Path) -> None:
    for fault, text in (
        (torch.zeros(()), r"a is torch.float32 of shape \(3,\) here, and torch.float32 of shape \(\) there"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64"),
        (None, "tensor 'a' is in this process only"),
    ):
        own = {"b": torch.ones(2), "a": torch.ones(3)}
        state = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, name) for name, tensor in own.items()])
        told = {"b": torch.zeros(2)} | ({} if fault is None else {"a": fault})
        with pytest.raises(ValueError, match=text):
            state.load_state_dict({"revision": 1, "tensors": told})
        assert own["b"].tolist() == [1, 1]
        assert state.revision == 0
