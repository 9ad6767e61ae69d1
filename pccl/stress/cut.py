"""A process breaks its own connections: what its library sees is what a broken network would do. Needs no rights."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def cut(how: str, keep_ports: set[int], rng: random.Random) -> int:
    """Breaks one of the connections to other processes, or all; gives how many. Those to `keep_ports` stay."""
    share, way = how.split()
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(one) for one in _sockets()]
        own = {one.getsockname() for one in ours}
        found = [one for one in ours if (peer := _peer(one)) and peer not in own and peer[1] not in keep_ports]
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


def _peer(one: socket.socket) -> tuple[Any, ...]:
    """Where it is connected to; nothing for one that listens, or is not connected yet."""
    try:
        return tuple(one.getpeername())
    except OSError:
        return ()


def _break(one: socket.socket, way: str) -> None:
    if way == "reset":
        unspecified = (ctypes.c_ubyte * 16)()  # AF_UNSPEC: the kernel drops the connection and sends an RST
        _libc.connect(one.fileno(), unspecified, 16)
    else:
        one.shutdown(socket.SHUT_WR if way == "half" else socket.SHUT_RDWR)
