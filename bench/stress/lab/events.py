"""The log of a run: one JSON object per line, `t` in seconds, `event` saying what it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

from pccl._host.files import open_log_file


class EventLog:
    """Written line by line, so that a run that is killed leaves what it had."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_log_file(path, append=False)
        self.epoch = time.monotonic()  # until the run has formed, its beginning

    def write(self, event: str, at: float, **fields: Any) -> None:
        """Adds one line; OSError names the file."""
        line = json.dumps({"t": round(at - self.epoch, 4), "event": event, **fields}, separators=(",", ":"))
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            error.filename = self._path
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
