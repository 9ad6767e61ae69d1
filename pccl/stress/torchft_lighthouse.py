"""torchft's lighthouse in a process of its own: what the master is to pccl."""

from __future__ import annotations

import signal
import socket
from typing import Any

from torchft.coordination import LighthouseServer


def run(given: dict[str, Any], end: socket.socket, board: int) -> int:
    """Serves until it is killed."""
    server = LighthouseServer(
        bind=given["listen"],
        min_replicas=1,
        join_timeout_ms=100,
        quorum_tick_ms=20,
        heartbeat_timeout_ms=round(given["beat"] * 1000),
    )
    signal.pause()
    server.shutdown()
    return 0
