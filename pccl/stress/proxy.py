"""A TCP proxy on loopback before a master and its peers, which resets, stalls or drops the connections of one copy.

A peer tells the master the port at which others reach it, in the HELLO that opens its connection. The proxy puts a port of its
own there, so that connections between peers go through it as well. It finds out from /proc which copy a connection belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

CHUNK_BYTES = 1 << 18
HOST = "127.0.0.1"

HEADER = struct.Struct("<IHH24x")
"""Of a frame: bytes behind the header, wire version, kind (docs/protocol.md)."""
HELLO = 1
HELLO_PORT = HEADER.size + 26
HELLO_SECONDS = 60.0
"""For a HELLO to arrive: a copy may be stopped meanwhile."""
HELLO_MOST = 1 << 16
"""More bytes than a HELLO has."""

_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with an RST."""


class Connection:
    """A connection through the proxy, as its two halves. `owners` are the copies at its ends; `task` serves it."""

    def __init__(self, near: socket.socket, owners: set[int], *, control: bool) -> None:
        self.ends = (near, socket.socket())
        self.owners, self.control = owners, control
        self.task = asyncio.current_task()
        self.flows = asyncio.Event()
        """Cleared while bytes are held back."""
        self.flows.set()
        self.dropped = False
        """Whether bytes are thrown away."""
        self.resets = False
        """Whether it ends with an RST."""

    def reset(self) -> None:
        """Makes `task` end both halves with an RST."""
        self.resets = True
        if self.task is not None:
            self.task.cancel()

    def close(self) -> None:
        """Ends both halves."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                if self.resets:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                else:
                    end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Serves on a thread of its own while its `with` block lasts. `groups` gives the process group of each copy, by its place."""

    def __init__(self, master_port: int, groups: Callable[[], dict[int, int]]) -> None:
        self._master_port, self._groups = master_port, groups
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._held: dict[int, bool] = {}  # places whose bytes are held back, or (True) thrown away
        self._thread = threading.Thread(target=self._loop.run_forever, name="pccl:proxy", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._call(self._listen(self._serve))
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self, place: int) -> int:
        """Resets the connections of a copy to other copies, and returns how many there were."""

        async def work() -> int:
            found = [one for one in self._connections if place in one.owners and not one.control]
            for one in found:
                one.reset()
            return len(found)

        return self._call(work())

    def hold(self, place: int, *, drop: bool) -> None:
        """Holds back all bytes from and to a copy until `release`; with `drop` throws them away."""

        async def work() -> None:
            self._held[place] = drop
            for one in self._connections:
                if place in one.owners:
                    one.dropped = one.dropped or drop
                    if not drop:
                        one.flows.clear()

        self._call(work())

    def release(self, place: int) -> None:
        """Ends `hold`. Connections whose bytes were thrown away are reset, because the rest of their streams is useless."""

        async def work() -> None:
            self._held.pop(place, None)
            for one in list(self._connections):
                if one.owners & self._held.keys():
                    continue
                one.flows.set()
                if one.dropped:
                    one.reset()

        self._call(work())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> int:
        listener = socket.create_server((HOST, 0), backlog=128)
        listener.setblocking(False)

        async def accept() -> None:
            with listener:
                while True:
                    near, _ = await self._loop.sock_accept(listener)
                    self._do(serve(near))

        self._do(accept())
        return int(listener.getsockname()[1])

    async def _serve(self, near: socket.socket, port: int | None = None, listens: int | None = None) -> None:
        """Serves a connection to the master, or to `port`, which belongs to the copy `listens`."""
        dialer = await self._loop.run_in_executor(None, owner_of, near.getpeername()[1], self._groups())
        known = {owner for owner in (dialer, listens) if owner is not None}
        connection = Connection(near, known, control=port is None)
        self._connections.add(connection)
        try:
            for end in connection.ends:
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if held := [self._held[place] for place in known if place in self._held]:
                connection.dropped = any(held)
                connection.flows.clear()
                await connection.flows.wait()
            await self._loop.sock_connect(connection.ends[1], (HOST, port or self._master_port))
            if port is None:
                async with asyncio.timeout(HELLO_SECONDS):
                    await self._forward_hello(connection, dialer)
            async with asyncio.TaskGroup() as group:
                for source, target in (connection.ends, connection.ends[::-1]):
                    group.create_task(self._pump(connection, source, target))
        except* OSError:
            pass
        finally:
            connection.close()
            self._connections.discard(connection)

    async def _forward_hello(self, connection: Connection, dialer: int | None) -> None:
        """Passes on the first frame to the master, with a port of the proxy if it is a HELLO."""
        near, far = connection.ends
        frame = bytearray()
        while len(frame) < HEADER.size or len(frame) < HEADER.size + HEADER.unpack_from(frame)[0]:
            chunk = await self._loop.sock_recv(near, CHUNK_BYTES)
            frame += chunk
            if not chunk or (len(frame) >= HEADER.size and HEADER.unpack_from(frame)[0] > HELLO_MOST):
                break
        if len(frame) > HELLO_PORT + 2 and HEADER.unpack_from(frame)[2] == HELLO:
            behind = struct.unpack_from("<H", frame, HELLO_PORT)[0]
            port = await self._listen(lambda end: self._serve(end, behind, dialer))
            struct.pack_into("<H", frame, HELLO_PORT, port)
        await self._loop.sock_sendall(far, frame)

    async def _pump(self, connection: Connection, source: socket.socket, target: socket.socket) -> None:
        while chunk := await self._loop.sock_recv(source, CHUNK_BYTES):
            await connection.flows.wait()
            if not connection.dropped:
                await self._loop.sock_sendall(target, chunk)
        await connection.flows.wait()
        if not connection.dropped:
            target.shutdown(socket.SHUT_WR)


def owner_of(port: int, groups: dict[int, int]) -> int | None:
    """Returns the place of the copy that has a socket with this local port; None: no copy has one."""
    inodes = {
        fields[9]
        for table in ("tcp", "tcp6")
        if (path := Path(f"/proc/net/{table}")).exists()
        for line in path.read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(f":{port:04X}") and fields[9] != "0"
    }
    names = {f"socket:[{inode}]" for inode in inodes}
    return next((place for place, pid in groups.items() if names and _has_socket(pid, names)), None)


def _has_socket(pid: int, names: set[str]) -> bool:
    """Whether a process or a descendant has one of these sockets."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{name}") in names:
                    return True
        for task in os.listdir(f"/proc/{pid}/task"):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            if any(_has_socket(int(child), names) for child in children):
                return True
    return False
