"""examples/ray with the real Ray: a killed actor is replaced, and joins."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from launched import Launched, expect_equal_steps

pytest.importorskip("torch")
pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

DRIVER = Path(__file__).with_name("ray_driver.py")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # or it writes a token into the home folder
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
START = 150
"""Seconds for Ray to start itself and its actors."""


def steps_in(folder: Path, members: int) -> dict[int, list[str]]:
    """The parameters that workers have written in each step. Ray may print nothing more once an actor of its was killed."""
    found: dict[int, list[str]] = {}
    line = re.compile(rf"step (\d+): {members} workers, loss \S+, parameters ([0-9a-f]{{8}})\n")
    for log in folder.glob("session_2*/logs/worker-*.out"):
        for step, parameters in line.findall(log.read_text()):
            found.setdefault(int(step), []).append(parameters)
    return found


def wait_for_equal_steps(folder: Path, members: int) -> None:
    """Until all of so many workers have written a step that nobody had made, with the same parameters."""
    made = max(steps_in(folder, members))
    end = time.monotonic() + START
    while not (new := {step: by for step, by in steps_in(folder, members).items() if step > made + 100 and len(by) == members}):
        assert time.monotonic() < end, f"no step after {made}"
        time.sleep(0.1)
    assert all(len(set(parameters)) == 1 for parameters in new.values())


@pytest.mark.timeout(600)
def test_killed_actors_are_replaced():
    # Ray makes sockets in the folder, whose names must be short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        with Launched([sys.executable, str(DRIVER), folder], ENVIRONMENT) as driver:
            [ended] = driver.expect(r"finished: ([0-9a-f]{8}) ([0-9a-f]{8})", timeout=START)
            assert ended[1] == ended[2]
            # Ray prints lines of different processes in any order, and late.
            seen = driver.expect(
                r"Master pid=(\d+).* \(relink\): 3 peers|Worker pid=(\d+).* step 100: 3 workers", 4, timeout=START
            )
            [master] = [int(match[1]) for match in seen if match[1]]
            workers = [int(match[2]) for match in seen if match[2]]
            expect_equal_steps(driver, 3)
            os.kill(workers[1], signal.SIGKILL)
            [joined] = driver.expect(r"joined at step [1-9]\d*: process (\d+), 3 workers", timeout=START)
            assert int(joined[1]) not in workers
            expect_equal_steps(driver, 3)
            os.kill(master, signal.SIGKILL)
            driver.expect("master: takes the run up")
            wait_for_equal_steps(Path(folder), 3)
            driver.process.send_signal(signal.SIGINT)
            driver.expect("shut down", timeout=START)
            assert driver.end() == 0
