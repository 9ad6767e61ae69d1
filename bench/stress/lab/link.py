"""A process's end of its socket to the orchestrator: reports go out, orders come in on a thread of their own."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from stress.lab.reports import Report

Order = dict[str, Any]


class Link:
    """Tells reports; `apply` is called with each order, on another thread. Without the orchestrator the process ends."""

    def __init__(self, end: socket.socket, apply: Callable[[Order], None]) -> None:
        self._end = end
        self._apply = apply
        self._lock = threading.Lock()  # keeps lines whole: two threads may report
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def tell(self, report: Report) -> None:
        """Sends a report; returns when the kernel has it."""
        try:
            with self._lock:
                self._end.sendall(report.to_line())
        except OSError:
            os._exit(1)

    def _listen(self) -> None:
        with self._end.makefile("rb") as lines:
            for line in lines:
                self._apply(json.loads(line))
        os._exit(1)  # the orchestrator is gone
