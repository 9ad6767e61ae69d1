"""examples/ray with the real Ray: a killed actor is replaced, and joins."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
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
            expect_equal_steps(driver, 3)
            driver.process.send_signal(signal.SIGINT)
            driver.expect("shut down", timeout=START)
            assert driver.end() == 0
