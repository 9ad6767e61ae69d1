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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pccl.stress.judge import Usage
from pccl.stress.progress import Board

READ_BYTES = 1 << 16
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class NurseryError(Exception):
    """The process that starts all others has ended."""


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
    """Starts processes by forking them from one that has imported `modules`. All of them end with the block."""

    def __init__(self, modules: list[str], folder: Path) -> None:
        self._modules = modules
        self._folder = folder
        self._children: dict[int, Child] = {}
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._early: dict[int, int] = {}  # status of children that ended before they were known here
        self._lock = asyncio.Lock()  # one fork at a time: answers come in order

    async def __aenter__(self) -> Self:
        """Starts the process that starts the others."""
        board = Board.make()
        self.board = Board(board)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers, answers_in = os.pipe()
        command = [sys.executable, "-P", "-m", "pccl.stress.nursery"]
        arguments = [str(theirs.fileno()), str(answers_in), str(board), ",".join(self._modules)]
        with (self._folder / "nursery.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno(), answers_in, board],
                start_new_session=True,  # Ctrl-C is for the orchestrator alone
            )
        theirs.close()
        os.close(answers_in)
        os.close(board)
        reader = asyncio.StreamReader()
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", 0)
        )
        self._listener = asyncio.create_task(self._listen(reader))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends it, and with it all children."""
        self._orders.close()
        self._process.kill()  # its children die with it
        self._process.wait()
        self._listener.cancel()
        self._pipe.close()
        for child in self._children.values():
            child.close()

    async def start(self, module: str, task: dict[str, Any], log: Path, environment: dict[str, str]) -> Child:
        """A new process that runs `module.run(task, socket, board)`."""
        ours, theirs = socket.socketpair()
        with log.open("ab") as file, theirs:
            order = {"module": module, "task": task, "environment": environment}
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
