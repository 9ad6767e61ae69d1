"""What TCP itself reaches: the bytes of a ring all-reduce sent round, and nothing done with them."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence

TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)
PIECE = 1 << 18
SCRATCH = 1 << 20
"""What was received stays in the cache."""

CONNECT_SECONDS = 60.0


def congestion_of(connection: socket.socket) -> str:
    """The name of a connection's congestion control."""
    return connection.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).split(b"\0", 1)[0].decode()


def congestion_here(without: Sequence[str] = ()) -> list[str]:
    """The congestion control of all TCP connections of this process, each name once; without those of the descriptors named."""
    names = set()
    for name in set(os.listdir("/proc/self/fd")) - set(without):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    one.getpeername()
                    names.add(congestion_of(one))
        except OSError:  # no socket, not connected, or closed meanwhile
            continue
    return sorted(names)


class BareTcp:
    """One of a ring of processes on this host, each of which sends to the next as many bytes as a ring all-reduce would.

    All make it at about the same time, with the same ports: one for each. `congestion` "" leaves the choice to the system.
    """

    def __init__(self, rank: int, ports: Sequence[int], congestion: str = "", host: str = "127.0.0.1") -> None:
        world = len(ports)
        self._part = 2 * (world - 1) / world
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _choose(listener, congestion)  # what it accepts begins with the same
            listener.bind((host, ports[rank]))
            listener.listen()
            self._out = _dial((host, ports[(rank + 1) % world]), congestion)
            self._in, _ = listener.accept()
        for one in (self._out, self._in):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        self.congestion = congestion_of(self._out)
        self.descriptors = self._in.fileno(), self._out.fileno()
        self._scratch = memoryview(bytearray(SCRATCH))

    def exchange(self, data: memoryview) -> None:
        """Sends so much of `data`, over and over if need be, and receives as much."""
        total = int(len(data) * self._part)
        sent = received = 0
        while sent < total or received < total:
            moved = 0
            if sent < total:
                at = sent % len(data)
                moved = _send(self._out, data[at : min(at + PIECE, at + total - sent)])
                sent += moved
            if received < total:
                at = received % SCRATCH
                got = _receive(self._in, self._scratch[at : min(at + PIECE, at + total - received)])
                received += got
                moved += got
            if moved == 0:
                select.select([self._in] if received < total else [], [self._out] if sent < total else [], [])

    def close(self) -> None:
        """Closes both connections."""
        self._out.close()
        self._in.close()


def _choose(one: socket.socket, congestion: str) -> None:
    if congestion:
        one.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())


def _dial(address: tuple[str, int], congestion: str) -> socket.socket:
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        made = socket.socket()
        _choose(made, congestion)
        try:
            made.connect(address)
            return made
        except ConnectionRefusedError:
            made.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _send(one: socket.socket, piece: memoryview) -> int:
    try:
        return one.send(piece)
    except BlockingIOError:
        return 0


def _receive(one: socket.socket, piece: memoryview) -> int:
    try:
        return one.recv_into(piece)
    except BlockingIOError:
        return 0
