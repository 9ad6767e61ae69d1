"""The processes of a run, as the orchestrator holds them: started through the nursery, signalled, heard, never left behind."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pccl._host.files import open_log_file

READ_BYTES = 1 << 16
FOLDER = Path(__file__).resolve().parents[2]
"""Of the package `stress`."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NurseryError(Exception):
    """The process that starts all others has ended."""


@dataclass(frozen=True)
class Usage:
    """What a process uses at one time."""

    at: float
    bytes: int  # resident
    descriptors: int  # open ones; where a peer of a stress run is judged, those beyond what it may need for itself and its links


class Child:
    """One process."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._fd = os.pidfd_open(pid)  # so that no signal ever meets another process
        self._end = end
        self._lines: collections.deque[bytes] = collections.deque()
        self._rest = b""

    def signal(self, number: signal.Signals) -> None:
        """Harmless when it has ended."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def order(self, order: dict[str, Any]) -> None:
        """Tells it something; harmless when it has ended."""
        with contextlib.suppress(OSError):
            self._end.send(json.dumps(order).encode() + b"\n")

    async def line(self) -> bytes:
        """The next line it sends; empty when it has ended.

        A process that ends with orders unread resets the connection: what it said before that counts, so no StreamReader,
        which would drop it.
        """
        while not self._lines:
            try:
                chunk = await asyncio.get_running_loop().sock_recv(self._end, READ_BYTES)
            except ConnectionError:
                chunk = b""
            if not chunk:
                return b""
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()

    def usage(self, now: float) -> Usage | None:
        """What it uses; None when it has ended."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return Usage(now, pages * PAGE_BYTES, len(os.listdir(f"/proc/{self.pid}/fd")))
        except (OSError, IndexError):
            return None

    def close(self) -> None:
        """After its end."""
        self._end.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Nursery:
    """Starts processes by forking them from one that has imported what `lives` (module:function) need.

    The processes inherit the descriptors `inherited`, and end with the block.
    """

    def __init__(self, lives: Iterable[str], folder: Path, inherited: Sequence[int] = ()) -> None:
        self._modules = sorted({life.partition(":")[0] for life in lives})
        self._folder = folder
        self._inherited = inherited
        self._children: dict[int, Child] = {}
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._early: dict[int, int] = {}  # status of children that ended before they were known here
        self._lock = asyncio.Lock()  # one fork at a time: answers come in order

    async def __aenter__(self) -> Self:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, answers_in = os.pipe()
        command = [sys.executable, "-P", "-m", "stress.lab.nursery"]
        arguments = [str(theirs.fileno()), str(answers_in), ",".join(self._modules)]
        paths = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open_log_file(self._folder / "nursery.log", append=False) as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), answers_in, *self._inherited],
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,  # Ctrl-C is for the orchestrator alone
            )
        theirs.close()
        os.close(answers_in)
        reader = asyncio.StreamReader()
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", 0)
        )
        self._listener = asyncio.create_task(self._listen(reader))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kills all children, waits until they are gone, and ends the process that they came from."""
        living = list(self._children.values())
        for child in living:
            child.signal(signal.SIGKILL)
        await asyncio.gather(*(child.status for child in living), return_exceptions=True)
        self._orders.close()
        self._process.kill()  # a child that was not known yet dies with it
        self._process.wait()
        self._listener.cancel()
        self._pipe.close()
        for child in living:
            child.close()

    async def start(self, life: str, task: dict[str, Any], log: Path, environment: Mapping[str, str] | None = None) -> Child:
        """A new process that runs `life`, which is `module:function`, as `function(task, socket)`."""
        ours, theirs = socket.socketpair()
        with open_log_file(log) as file, theirs:
            order = {"life": life, "task": task, "environment": dict(environment or {})}
            async with self._lock:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [theirs.fileno(), file.fileno()])
                pid = await self._forked.get()
        if pid < 0:
            ours.close()
            raise NurseryError(f"the process that starts the others has ended; see {self._folder / 'nursery.log'}")
        ours.setblocking(False)
        child = Child(pid, ours)
        self._children[pid] = child
        if pid in self._early:
            child.status.set_result(self._early.pop(pid))
        return child

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            answer = json.loads(line)
            if "pid" in answer:
                self._forked.put_nowait(answer["pid"])
                continue
            child = self._children.pop(answer["ended"], None)
            if child is None:
                self._early[answer["ended"]] = answer["status"]
            elif not child.status.done():
                child.status.set_result(answer["status"])
        self._forked.put_nowait(-1)
        for child in self._children.values():  # they died with it
            if not child.status.done():
                child.status.set_result(-signal.SIGKILL)
