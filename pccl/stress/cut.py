"""A process breaks its own connections: what its library sees is what a broken network would do. Needs no rights."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)


def cut(how: str, keep_ports: set[int], rng: random.Random) -> int:
    """Breaks one of the connections to other processes, or all; gives how many. Those to `keep_ports` stay."""
    share, way = how.split()
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(one) for one in _sockets()]
        kept = keep_ports | {one.getsockname()[1] for one in ours}  # by port: one end may call the address ::ffff:127.0.0.1
        found = [one for one in ours if _peer_port(one) not in kept]
        chosen = found if share == "all" else rng.sample(found, min(1, len(found)))
        for one in chosen:
            with contextlib.suppress(OSError):  # it has just ended by itself
                _break(one, way)
        return len(chosen)


def _sockets() -> Iterator[socket.socket]:
    """Copies of this process's, as the library may close its own at any moment."""
    seen = set()  # the copies made here are descriptors too
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if not target.startswith("socket:") or target in seen:
                continue
            seen.add(target)
            one = socket.socket(fileno=os.dup(int(name)))
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield one
            else:
                one.close()


def _peer_port(one: socket.socket) -> int:
    """Where it is connected to; its own for one that listens, or is not connected yet."""
    try:
        return int(one.getpeername()[1])
    except OSError:
        return int(one.getsockname()[1])


def _break(one: socket.socket, way: str) -> None:
    if way == "reset":
        unspecified = (ctypes.c_ubyte * 16)()  # AF_UNSPEC: the kernel drops the connection and sends an RST
        _libc.connect(one.fileno(), unspecified, 16)
    else:
        one.shutdown(socket.SHUT_WR if way == "half" else socket.SHUT_RDWR)
