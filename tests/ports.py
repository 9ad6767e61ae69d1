"""Ports for what has to be told its port, and may leave it and come back."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LEAST, MOST = 10_000, 32_000


def _candidates() -> Iterator[int]:
    """Of this process alone, as far as chance can see to it, and none that the kernel gives to anybody."""
    first, last = map(int, RANGE.read_text().split()) if RANGE.exists() else (32_768, 60_999)
    mine = [port for port in range(LEAST, MOST) if not first <= port <= last] or [0]
    random.Random(os.urandom(8)).shuffle(mine)
    return itertools.cycle(mine)


_next = _candidates()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, and that nobody is given while they are not in use."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", next(_next)))
            except OSError:
                continue
            found.append(int(probe.getsockname()[1]))
    return found
