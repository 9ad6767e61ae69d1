"""The program of the guide to checkpoints, whose processes all die."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from peers import ENVIRONMENT

from pccl.lab.ports import free_ports
from pccl.state import load

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "checkpoints.md"
PROGRAM = ROOT / "examples" / "checkpoints.py"
SECONDS = 120


def start(folder: Path, ports: list[int], rank: int, steps: int) -> subprocess.Popen[str]:
    environment = ENVIRONMENT | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
    }
    command = [sys.executable, str(PROGRAM), str(folder / f"point {rank}"), str(steps)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(400)  # four starts of torch, far longer than they take
def test_the_program_of_the_guide_goes_on_after_all_have_died(tmp_path: Path) -> None:
    [shown] = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    program = PROGRAM.read_text(encoding="utf-8")
    assert all(line in program for line in shown.splitlines() if line.strip() != "...")
    ports = free_ports(1)
    processes = [start(tmp_path, ports, rank, 10**6) for rank in range(2)]
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
        processes = [start(tmp_path, ports, rank, saved + 10) for rank in range(2)]
        ends = [process.communicate(timeout=SECONDS) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], ends
        lines = [out.split("\n") for out, _ in ends]
        assert lines[0] == lines[1]
        assert lines[0][0] == f"step {saved + 10}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
