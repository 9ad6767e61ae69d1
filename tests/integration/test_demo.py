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
    code = "import sys; from pccl.demo import run_demo; sys.exit(run_demo(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pids_of(line: str) -> list[int]:
    return [int(pid) for pid in line.split("processes")[1].split(";")[0].split(",")]


def summary_of(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("peers", "victim", "news"),
    [(3, 2, "repeated with world size 2"), (3, 0, "repeated with world size 2"), (2, 1, "it is alone")],
    ids=["last", "first", "left-alone"],
)
def test_training_survives_the_kill_and_a_new_peer_joins(tmp_path: Path, peers: int, victim: int, news: str) -> None:
    arguments = ["--peers", str(peers), "--steps", "24", "--kill-step", "8", "--kill-peer", str(victim), "--join-step", "12"]
    with start(tmp_path, *arguments) as demo:
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 0, output
    assert f"peer {victim} killed with SIGKILL in step 8, 2 of its 4 reduces launched" in output
    assert output.count(news) == peers - 1
    assert output.rstrip().endswith("PASSED")
    assert f"peer {peers} joined for step" in output
    assert "was held up for" in output
    assert f"{peers} peers with hash" in output
    summary = summary_of(tmp_path)
    assert summary["passed"]
    assert len(summary["losses"]) == 24
    assert len(summary["recovered_ms"]) == peers - 1
    join = summary["join"]
    assert 11 <= join["step"] < 20
    assert join["donors"] == peers - 1
    assert join["rx_bytes"] > 4_000_000
    assert len(join["held_up_ms"]) == peers - 1
    living = {digest for index, digest in summary["digests"].items() if index != str(victim)}
    assert len(living) == 1
    assert f"peer {peers} joined in step {join['step'] + 1}".encode() in (tmp_path / "loss.png").read_bytes()
    assert all(gone(pid) for pid in pids_of(output.splitlines()[0]))


@pytest.mark.timeout(600)
def test_a_newcomer_killed_while_it_gets_the_state_leaves_no_trace(tmp_path: Path) -> None:
    # Two peers, whose sums do not depend on who joined first: until the newcomer comes, nothing has touched the second run.
    arguments = ["--steps", "24", "--peers", "2", "--no-kill", "--kill-at-join", "newcomer"]
    digests = []
    for step in ("6", "18"):
        with start(tmp_path / step, *arguments, "--join-step", step) as demo:
            output = demo.communicate(timeout=280)[0]
        assert demo.returncode == 0, output
        assert "peer 2 killed with SIGKILL let in, after the others have waited" in output
        assert "ok     the new peer died while it joined" in output
        assert b"peer 2 killed while it joined" in (tmp_path / step / "loss.png").read_bytes()
        digests.append(summary_of(tmp_path / step)["digests"]["0"])
    assert digests[0] == digests[1]


@pytest.mark.timeout(300)
def test_a_survivor_killed_while_a_newcomer_gets_the_state(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "24", "--kill-step", "6", "--kill-at-join", "survivor") as demo:
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 0, output
    assert "peer 0 killed with SIGKILL in step" in output
    assert "peer 0 was killed meanwhile; peer 3 joined for step" in output
    assert "2 peers with hash" in output
    assert summary_of(tmp_path)["join"]["donors"] == 1


@pytest.mark.timeout(300)
def test_a_newcomer_killed_while_it_connects_fails_only_its_own_checks(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "40", "--no-kill", "--join-step", "10") as demo:
        assert demo.stdout is not None
        pids = pids_of(demo.stdout.readline())
        for printed in demo.stdout:
            if "peer 3 connects" in printed:
                os.kill(pids[3], signal.SIGKILL)
                break
        output = demo.communicate(timeout=280)[0]
    assert demo.returncode == 1, output
    assert "peer 3 ended with status -9" in output
    assert "ok     all peers hold" not in output  # peer 3 is missing
    assert "3 of 4 at step 40" in output
    digests = summary_of(tmp_path)["digests"]
    assert len({digests[str(index)] for index in range(3)}) == 1


@pytest.mark.timeout(200)
def test_without_a_kill_and_a_join(tmp_path: Path) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "20", "--no-kill", "--no-join") as demo:
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 0, output
    assert "killed" not in output
    assert "joined" not in output


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGTERM, "the peers are processes"),
        (signal.SIGINT, "peer 2 connects"),
    ],
)
def test_signals_end_everything(tmp_path: Path, number: signal.Signals, line: str) -> None:
    with start(tmp_path, "--peers", "2", "--steps", "10000", "--no-kill", "--join-step", "4") as demo:
        assert demo.stdout is not None
        pids: list[int] = []
        for printed in demo.stdout:
            pids = pids or pids_of(printed)
            if line in printed:
                break
        demo.send_signal(number)
        output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 128 + number
    assert f"ended by {number.name}" in output
    assert all(gone(pid) for pid in pids)


@pytest.mark.timeout(200)
def test_a_peer_that_fails_fails_the_run(tmp_path: Path) -> None:
    with start(tmp_path, "--steps", "30", "--no-kill", "--no-join") as demo:
        assert demo.stdout is not None
        pids = pids_of(demo.stdout.readline())
        for printed in demo.stdout:
            if "peers are connected" in printed:
                break
        os.kill(pids[1], signal.SIGKILL)
        output = demo.communicate(timeout=180)[0]
    assert demo.returncode == 1, output
    assert "peer 1 ended with status -9" in output
    assert "FAILED every peer that lives made all its steps" in output
