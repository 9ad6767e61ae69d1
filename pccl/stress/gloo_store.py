"""The TCPStore through which gloo's groups meet, in a process of its own: what the master is to pccl."""

from __future__ import annotations

import signal
import socket
from typing import Any

import torch.distributed as dist


def run(given: dict[str, Any], end: socket.socket, board: int) -> int:
    """Serves until it is killed."""
    host, _, port = given["listen"].rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)
    signal.pause()
    del store
    return 0
