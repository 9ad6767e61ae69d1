"""examples/ray with the real Ray: a killed actor is replaced, and joins."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from launched import Launched

pytest.importorskip("torch")
pytest.importorskip("ray", reason="Ray is not installed: pip install ray")

DRIVER = Path(__file__).with_name("ray_driver.py")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # or it writes a token into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the default of 15 gives its workers a thirtieth of the CPU time of a test beside it
}
START = 300
"""Seconds for Ray to start itself and its actors."""

T = TypeVar("T")


class Logs:
    """What the actors print, from the files that Ray keeps of each: what its driver repeats comes late, or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, pattern: str) -> list[tuple[int, re.Match[str]]]:
        """What matches, each with the process that printed it."""
        files = sorted(self.folder.glob("session_2*/logs/worker-*-*.*"))
        return [
            (int(file.stem.rpartition("-")[2]), match)
            for file in files
            for match in re.finditer(pattern, file.read_text(errors="replace"))
        ]

    def until(self, what: str, ask: Callable[[], T]) -> T:
        """The first answer that is not empty."""
        end = time.monotonic() + START
        while not (answer := ask()):
            assert time.monotonic() < end, f"no {what}:\n{self.printed()}"
            time.sleep(0.5)
        return answer

    def printed(self) -> str:
        return "".join(f"{process}: {match[0]}\n" for process, match in self.find(".+"))

    def steps(self, members: int) -> dict[int, list[str]]:
        """The parameters that workers have told after each step, in a run of so many."""
        found: dict[int, list[str]] = {}
        for _, match in self.find(rf"step (\d+): {members} workers, loss \S+, parameters ([0-9a-f]{{8}})\n"):
            found.setdefault(int(match[1]), []).append(match[2])
        return found

    def expect_equal_steps(self, members: int) -> None:
        """Waits until all of so many workers have told of a step that nobody had made, with the same parameters."""
        made = max(self.steps(members), default=0)
        new = self.until(
            f"step after {made} of {members} workers",
            lambda: {step: by for step, by in self.steps(members).items() if step > made + 100 and len(by) == members},
        )
        assert all(len(set(parameters)) == 1 for parameters in new.values())


@pytest.mark.timeout(900)
def test_killed_actors_are_replaced():
    # Ray makes sockets in the folder, whose names must be short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        with Launched([sys.executable, str(DRIVER), folder], ENVIRONMENT) as driver:
            [ended] = driver.expect(r"finished: ([0-9a-f]{8}) ([0-9a-f]{8})", timeout=START)
            assert ended[1] == ended[2]
            logs = Logs(Path(folder))
            [(master, _)] = logs.until("master of three peers", lambda: logs.find(r"master: epoch \d+ \(relink\): 3 peers"))
            logs.expect_equal_steps(3)
            workers = [process for process, _ in logs.find(r"step 100: 3 workers")]
            assert len(workers) == 3
            os.kill(workers[1], signal.SIGKILL)
            joined = r"joined at step [1-9]\d*: process \d+, 3 workers"
            [(newcomer, _)] = logs.until("new worker", lambda: logs.find(joined))
            assert newcomer not in workers
            logs.expect_equal_steps(3)
            os.kill(master, signal.SIGKILL)
            logs.until("takeover", lambda: logs.find("master: takes over the run"))
            logs.expect_equal_steps(3)
            driver.process.send_signal(signal.SIGINT)
            driver.expect("shut down", timeout=START)
            assert driver.end() == 0
