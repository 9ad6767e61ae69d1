"""Checkpoints of shared states, and the program of the guide, whose processes all die."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peers import ENVIRONMENT

import pccl
from pccl.lab.ports import free_ports
from pccl.state import load

GUIDE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
SECONDS = 120


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


def start(script: Path, folder: Path, ports: list[int], rank: int, steps: int) -> subprocess.Popen[str]:
    environment = ENVIRONMENT | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
    }
    command = [sys.executable, str(script), str(folder / f"point {rank}"), str(steps)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_program_of_the_guide_goes_on_after_all_have_died(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text(program)
    ports = free_ports(1)
    processes = [start(script, tmp_path, ports, rank, 10**6) for rank in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "step 10\n"
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait(SECONDS)
        # One machine has lost its disk; the other one's checkpoint is from step 10 or later.
        saved = load(tmp_path / "point 1")["step"]
        assert saved >= 10
        shutil.rmtree(tmp_path / "point 0")
        ports = free_ports(1)
        processes = [start(script, tmp_path, ports, rank, saved + 10) for rank in range(2)]
        ends = [process.communicate(timeout=SECONDS) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], ends
        lines = [out.split("\n") for out, _ in ends]
        assert lines[0] == lines[1]
        assert lines[0][0] == f"step {saved + 10}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
