"""The demo as a whole, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pccl", "demo", "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def after(demo: subprocess.Popen[str], words: str) -> list[int]:
    """Reads up to a line with these words. Returns the processes of the peers."""
    pids: list[int] = []
    assert demo.stdout is not None
    for line in demo.stdout:
        if "the peers are processes" in line:
            pids = pids_of(line)
        if words in line:
            return pids
    raise AssertionError(f"no line has {words!r}")


def pids_of(line: str) -> list[int]:
    return [int(pid) for pid in line.split("processes")[1].split(",")]


def summary_of(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(400)
def test_training_survives_the_kill_and_a_new_peer_joins(tmp_path: Path) -> None:
    """With two; `make demo` has three."""
    peers = 2
    with start(tmp_path, "--peers", str(peers), "--steps", "30", "--kill-step", "8", "--join-step", "15") as demo:
        output = demo.communicate(timeout=380)[0]
    assert demo.returncode == 0, output
    assert f"peer {peers - 1} killed with SIGKILL in step 8" in output
    assert f"peer {peers} joined for step" in output
    assert output.count("held up for") >= peers - 1
    assert output.rstrip().endswith("PASSED")
    summary = summary_of(tmp_path)
    assert summary["passed"]
    assert len(summary["losses"]) == 30
    assert len(summary["recovered_ms"]) >= peers - 1
    assert 14 <= summary["join"]["joined"] < 30
    assert summary["join"]["donors"] == peers - 1
    assert summary["join"]["received"] > 4_000_000
    digests = summary["digests"]
    assert digests.pop(str(peers - 1)) != digests["0"]
    assert set(digests.values()) == {digests["0"]}
    assert b"peer %d joined in step" % peers in (tmp_path / "loss.png").read_bytes()
    assert all(gone(pid) for pid in pids_of(next(line for line in output.splitlines() if "processes" in line)))


@pytest.mark.timeout(300)
def test_a_peer_that_dies_by_itself_fails_the_run(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "30", "--no-kill", "--no-join") as demo:
        os.kill(after(demo, "peers are connected")[1], signal.SIGKILL)
        assert demo.stdout is not None
        output = demo.stdout.read()
    assert demo.returncode == 1, output
    assert "peer 1 was killed by SIGKILL" in output
    assert "FAILED every living peer made all steps: 0 of 3" in output
    assert "joined" not in output


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "words"), [(signal.SIGTERM, "the peers are processes"), (signal.SIGINT, "are connected")])
def test_signals_end_everything(tmp_path: Path, number: signal.Signals, words: str) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "10000") as demo:
        pids = after(demo, words)
        demo.send_signal(number)
        output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "1"], "range"),
        (["--kill-step", "500", "--steps", "100"], "must follow each other"),
        (["--join-step", "99", "--steps", "100"], "must follow each other"),
        (["--no-kill", "--kill-step", "5"], "excludes"),
        (["--peers", "1"], "range"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], words: str) -> None:
    with start(tmp_path, *arguments) as demo:
        output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 2
    assert words in output


def test_the_demo_runs_to_the_same_losses_again() -> None:
    from pccl.demo.train import Text, Transformer

    text, losses = Text(), []
    for _ in range(2):
        torch.manual_seed(1)
        model = Transformer(len(text.vocabulary))
        model.loss(text.training[:65][None]).backward()
        losses.append((model.held_out_loss(text), model.positions.weight.grad.sum().item()))
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(4.6, abs=0.2)  # ln of the number of characters, about 97
