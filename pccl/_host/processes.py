"""Starts, watches and ends processes: the one supervisor under `pccl launch`, `pccl stress`, `pccl demo` and `pccl.distributed`.

A `Fleet` watches its processes from one thread. Each process leads a group of its own, and the kernel kills it when this process
ends, whatever ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

READ_BYTES = 1 << 16
PIPE_BYTES = 1 << 20
"""More than a pipe holds, unless root has enlarged it."""

LINE_BYTES = 1 << 20
"""A longer line is split, so that a program which never ends a line does not fill the memory."""

LINE_END = re.compile(rb"\r?\n|(?<=[^\r\n])\r+(?=[^\r\n])")
"""A progress bar ends its lines with a carriage return alone."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PASSED_ON = (*ENDING, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SUPERVISED = frozenset((*PASSED_ON, signal.SIGCHLD, signal.SIGALRM))
"""Signals that a supervisor blocks, because it waits for them."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


def python(code: str, *arguments: str) -> list[str]:
    """Returns a command that runs `code` in this interpreter. It imports what this process does, not what its directory has.

    The standard library comes first: a program may have files of its own beside it, such as queue.py.
    """
    start = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))"
    library = os.path.dirname(os.__file__)
    first = library, os.path.join(library, "lib-dynload")
    path = sorted((place for place in sys.path if isinstance(place, str)), key=lambda place: place not in first)
    return [sys.executable, "-P", "-c", f"{start}; {code}", json.dumps(path), *arguments]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process a signal when the thread that forked it ends, or now if `parent` is not its parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def prepare_child(parent: int) -> None:
    """Runs in a forked child: binds it to `parent`, and unblocks the signals that a supervisor blocks."""
    die_with_parent(parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISED)


def how_ended(status: int) -> str:
    """Describes a status that is not 0; a negative one is the signal that killed the process."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"failed with status {status}"


def signal_name(number: int) -> str:
    """Returns the name of a signal, or "signal 40" for one that has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Output:
    """An output stream of a process, read line by line."""

    def __init__(self, source: IO[bytes], take: Callable[[list[bytes]], None]) -> None:
        self.source = source
        self._take = take
        self._rest = b""
        os.set_blocking(source.fileno(), False)

    def forward(self) -> int | None:
        """Passes on the lines that one read completes: a process that never stops printing must not keep its reader here.

        Returns how many bytes were read; 0: the stream has ended; None: there is nothing to read now.
        """
        try:
            chunk = os.read(self.source.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        text = self._rest + chunk
        if b"\r" in text:
            *lines, self._rest = (line.lstrip(b"\r") for line in LINE_END.split(text))
        else:
            *lines, self._rest = text.split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._take(lines)
        return len(chunk)

    def close(self) -> None:
        """Passes on what its process has left. One that outlives its parent may hold the other end, and go on printing."""
        left = PIPE_BYTES
        while left > 0 and (count := self.forward()):
            left -= count
        if self._rest:
            self._take([self._rest])
        self.source.close()


class Process:
    """A process that leads a group of its own. `take_stdout` and `take_stderr` get its lines; without the latter both are one.

    `told` is a pipe that it writes to as well, at the descriptor `tells`, which is closed here. OSError: it cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        take_stdout: Callable[[list[bytes]], None],
        take_stderr: Callable[[list[bytes]], None] | None = None,
        *,
        told: Output | None = None,
        tells: int = -1,
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            pass_fds=() if told is None else (tells,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if take_stderr is not None else subprocess.STDOUT,
            env=environment,
            process_group=0,  # the terminal's Ctrl-C reaches this process alone, which passes it on once
            preexec_fn=functools.partial(prepare_child, os.getpid()),
        )
        self.pid = self._popen.pid
        self.ended = os.pidfd_open(self.pid)
        """Readable once the process has ended."""
        pairs = ((self._popen.stdout, take_stdout), (self._popen.stderr, take_stderr))
        self.outputs = [Output(source, take) for source, take in pairs if source is not None and take is not None]
        if told is not None:
            os.close(tells)
            self.outputs.append(told)

    def signal(self, number: int) -> None:
        """Signals the process. Does nothing once it has been reaped."""
        self._popen.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signals the process and the children in its group. Does nothing once it has been reaped."""
        if self._popen.returncode is None:  # until then no other group can have its number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def reap(self) -> int:
        """Waits for its end, passes on the rest of its output, and returns its status."""
        status = self._popen.wait()
        os.close(self.ended)
        for output in self.outputs:
            output.close()
        return status


class Fleet:
    """Processes that one thread watches, the main one. `with` blocks end with no process of the fleet left.

    `on_end` gets each process that has ended and its status, once all its output has been passed on. `on_signal` gets the signals
    that ask this process to end. With `whole_groups` the children of a process end with it.
    """

    def __init__(
        self,
        on_end: Callable[[Process, int], None],
        on_signal: Callable[[signal.Signals], None],
        *,
        whole_groups: bool = False,
    ) -> None:
        self._on_end, self._on_signal, self._whole_groups = on_end, on_signal, whole_groups
        self.processes: list[Process] = []
        self._selector = selectors.DefaultSelector()
        self._before: dict[signal.Signals, Any] = {}
        """The handlers of the program."""
        self._woken = -1
        """The wakeup descriptor of the program."""

    def __enter__(self) -> Self:
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            # The descriptor comes first: a signal whose handler does nothing yet must not be lost.
            self._woken = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
            for number in ENDING:
                # Signals that the parent ignores (nohup, a job in the background) stay ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handle(number, lambda *_: None)
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # with which the kernel forgets how a child has ended
                self._handle(signal.SIGCHLD, signal.SIG_DFL)
        except BaseException:  # of a signal whose handler was still the program's
            self._give_back()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in self.processes:
            process.reap()
        self._give_back()

    def _handle(self, number: signal.Signals, handler: Any) -> None:
        self._before[number] = signal.getsignal(number)
        signal.signal(number, handler)

    def _give_back(self) -> None:
        """Restores the handlers of the program and closes what the fleet has opened, also if a handler raises."""
        try:
            for number, handler in reversed(self._before.items()):  # that of SIGINT last, since it raises
                signal.signal(number, handler)
        finally:
            signal.set_wakeup_fd(self._woken)
            self._selector.close()
            self._wake.close()
            self._waker.close()

    def watch(self, process: Process) -> Process:
        """Watches a process that has just been started, and returns it."""
        self.processes.append(process)
        self._selector.register(process.ended, selectors.EVENT_READ, process)
        for output in process.outputs:
            self._selector.register(output.source, selectors.EVENT_READ, output)
        return process

    def turn(self, seconds: float | None = None) -> bool:
        """Waits for events, at most `seconds`, and handles them. Returns False if there was none."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fileobj is self._wake:
                for number in self._wake.recv(READ_BYTES):
                    if number in ENDING:
                        self._on_signal(signal.Signals(number))
            elif isinstance(key.data, Process):
                self._end(key.data)
            elif not key.data.source.closed and key.data.forward() == 0:
                self._selector.unregister(key.fileobj)
        return bool(ready)

    def kill(self) -> None:
        for process in self.processes:
            (process.signal_group if self._whole_groups else process.signal)(signal.SIGKILL)

    def _end(self, process: Process) -> None:
        if self._whole_groups:
            process.signal_group(signal.SIGKILL)
        self.processes.remove(process)
        self._selector.unregister(process.ended)
        for output in process.outputs:
            with contextlib.suppress(KeyError):  # it has ended before
                self._selector.unregister(output.source)
        self._on_end(process, process.reap())


def adopt_orphans() -> None:
    """Makes this process the parent of each descendant whose own parent ends, so that `end_children` finds it."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(besides: Iterable[int]) -> None:
    """Kills and reaps the children of this process, and those that it adopts meanwhile, except for the ids `besides`."""
    kept = set(besides)
    while left := children() - kept:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found
