"""The master of a stress run, in a process of its own."""

from __future__ import annotations

import socket
from typing import Any

from pccl.master import serve


def run(given: dict[str, Any], end: socket.socket, board: int) -> int:
    """Serves until it is killed."""
    return serve(given["listen"], given["beat"], given["masters"])
