"""What launchers print, line by line, while it runs."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from peers import ENVIRONMENT
from performers import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


class Launched:
    """A launcher that leads a process group of its own, which is killed at the end, and all that the group prints."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            env={**ENVIRONMENT, "OMP_NUM_THREADS": "1", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        self.lines: list[str] = []
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line)
        self._arrived.put(None)

    def expect(self, pattern: str, count: int = 1, timeout: float = PATIENCE) -> list[re.Match[str]]:
        """The next `count` matches; lines before and between are passed over. Two processes may write into one line."""
        deadline = time.monotonic() + timeout
        found: list[re.Match[str]] = []
        while len(found) < count:
            try:
                line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"{len(found)} of {count} lines with {pattern!r} came:\n{''.join(self.lines)}"
            self.lines.append(line)
            found += re.finditer(pattern, line)
        return found

    def end(self, timeout: float = PATIENCE) -> int:
        """Its exit status, once it and all that hold its output have ended."""
        self._reader.join(timeout)
        ended = not self._reader.is_alive()
        self.lines += [line for _ in range(self._arrived.qsize()) if (line := self._arrived.get()) is not None]
        assert ended, f"still running after {timeout} s:\n{''.join(self.lines)}"
        return self.process.wait(timeout)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def expect_equal_steps(launched: Launched, workers: int) -> None:
    """Waits until `workers` workers have told of the same step, and checks that they hold the same parameters."""
    told: dict[str, list[str]] = {}
    while True:
        for match in launched.expect(rf"step (\d+): {workers} workers, loss \S+, parameters ([0-9a-f]{{8}})"):
            states = told.setdefault(match[1], [])
            states.append(match[2])
            if len(states) == workers:
                assert len(set(states)) == 1, launched.lines
                return
