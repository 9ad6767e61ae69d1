"""Ports for what has to be told its port, and may leave it and come back: a master that is killed and started again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LEAST, MOST = 10_000, 32_000


class NoPortError(Exception):
    """None is free."""


@functools.cache
def _candidates() -> Iterator[int]:
    """In an order of this process's own: others look elsewhere. None that the kernel gives to anybody, if it leaves any."""
    first, last = map(int, RANGE.read_text().split()) if RANGE.exists() else (32_768, 60_999)
    every = range(LEAST, MOST)
    ports = [port for port in every if not first <= port <= last] or list(every)
    random.Random().shuffle(ports)
    return itertools.cycle(ports)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on, and that nobody is given while they are not in use. Each time others.

    NoPortError: there are not so many.
    """
    found: list[int] = []
    for port in itertools.islice(_candidates(), MOST - LEAST):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise NoPortError(f"no port of 127.0.0.1 from {LEAST} to {MOST - 1} is free for a master")
