"""A process that keeps memory of others: what they have put there outlives them. One for each user and name on a host.

It keeps descriptors of memory files (memfd), under keys, and gives them to any process of the same user that asks. It never reads
what they hold. It ends when it has had no client for a while, or when the last one leaves and nothing is kept.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import resource
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pccl._host.bounded import read_json
from pccl._host.processes import python

REQUEST_BYTES = 1 << 16
"""The largest request or answer; the list of all that is kept comes in a memory file."""

START_SECONDS = 20.0
"""For a holder to begin."""

ANSWER_SECONDS = 10.0
"""For a holder to answer; one that takes longer is taken for dead."""

_CREDENTIALS = struct.Struct("3i")


class HolderError(OSError):
    """The holder of this host cannot be reached or has refused a request."""


class TakenError(HolderError):
    """The address of the holder is taken, so no holder can begin."""


class Kept(NamedTuple):
    """What a holder has under one key."""

    key: str
    nbytes: int
    info: dict[str, Any]


def socket_name(name: str) -> str:
    """The abstract address of the holder of this user for a name."""
    digest = hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
    return f"\0pccl-holder-{os.getuid()}-{digest}"


def available_bytes() -> int:
    """What this process may still take: of the host, and of the control group that it is in, if that has a limit."""
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = dict(line.split(":") for line in file)
    found = int(sizes["MemAvailable"].split()[0]) << 10
    for folder in _groups():
        with contextlib.suppress(OSError, ValueError, KeyError):
            limit = int((folder / "memory.max").read_text(encoding="ascii"))
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            sizes = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            found = min(found, limit - used + int(sizes["inactive_file"]))  # which the kernel gives up
    return found


def _groups() -> list[Path]:
    """The control groups (version 2) that this process is in, each inside the next."""
    top = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        inside = next(line for line in lines if line.startswith("0::"))[3:].lstrip("/")
        own = top / inside
        return [own, *(one for one in own.parents if one.is_relative_to(top))]
    return [top]


def memory_file(nbytes: int, name: str = "pccl") -> int:
    """A descriptor of new memory of this size. MemoryError: the host has not got as much."""
    if nbytes > available_bytes():  # asked for all the same, the kernel would end a process to find it
        raise MemoryError(f"{nbytes >> 20} MiB for a snapshot: {available_bytes() >> 20} MiB are left on this host")
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise MemoryError(f"{nbytes >> 20} MiB for a snapshot: {error.strerror}") from error
    return fd


def _user_at(end: socket.socket) -> int:
    return int(_CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


def _send(end: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    end.sendmsg([json.dumps(message).encode()], rights)


def _receive(end: socket.socket) -> tuple[dict[str, Any], int | None]:
    """A message and the descriptor that came with it. HolderError: the other side has closed, or sent no message."""
    content, fds, flags, _ = socket.recv_fds(end, REQUEST_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    try:
        if not content:
            raise HolderError("the connection was closed")
        message = None if flags & socket.MSG_TRUNC else read_json(content, REQUEST_BYTES)
        if not isinstance(message, dict):
            raise HolderError("not a message of a holder")
    except (ValueError, HolderError) as error:
        for fd in fds:
            os.close(fd)
        raise error if isinstance(error, HolderError) else HolderError("not a message of a holder") from None
    for fd in fds[1:]:
        os.close(fd)
    return message, fds[0] if fds else None


# ---- the client ----


class Holder:
    """A connection to the holder of a name, which is started where there is none. One thread at a time."""

    def __init__(self, name: str, *, start: bool = True, linger: float = 900.0) -> None:
        """`linger`: how many seconds a holder that this starts stays without any client. HolderError: it cannot be reached."""
        self._name = name
        self._linger = linger
        self._end = self._connect(start=start)

    def put(self, key: str, fd: int, info: dict[str, Any]) -> None:
        """Keeps a memory file, whose descriptor the caller may close. What was kept under the key is dropped."""
        self._ask({"do": "put", "key": key, "info": info}, fd)

    def drop(self, keys: Iterable[str]) -> None:
        """Keeps these no longer; keys that are not kept do no harm."""
        for key in keys:
            self._ask({"do": "drop", "key": key})

    def kept(self) -> list[Kept]:
        fd = self._ask({"do": "list"})
        assert fd is not None
        with os.fdopen(fd, "rb") as file:
            found = json.loads(file.read())
        return [Kept(*one) for one in found]

    def get(self, key: str) -> int:
        """A descriptor of what is kept, for the caller to close. KeyError: nothing is."""
        fd = self._ask({"do": "get", "key": key})
        if fd is None:
            raise KeyError(key)
        return fd

    def close(self) -> None:
        self._end.close()

    def _ask(self, request: dict[str, Any], fd: int | None = None) -> int | None:
        """The descriptor that came with the answer."""
        try:
            _send(self._end, request, fd)
            answer, found = _receive(self._end)
        except TimeoutError:
            raise HolderError(f"the holder of {self._name} has not answered for {ANSWER_SECONDS:g} s") from None
        except HolderError:
            raise
        except OSError as error:
            raise HolderError(f"the holder of {self._name} has ended ({error.strerror})") from error
        if "error" in answer:
            raise HolderError(f"the holder of {self._name} refused a request: {answer['error']}")
        return found

    def _connect(self, *, start: bool) -> socket.socket:
        deadline = time.monotonic() + START_SECONDS
        started: subprocess.Popen[bytes] | None = None
        while True:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                end.connect(socket_name(self._name))
                if _user_at(end) != os.getuid():
                    raise TakenError(
                        f"the address of the holder of {self._name} is taken by a process of another user; give another name"
                    )
                end.settimeout(ANSWER_SECONDS)
                return end
            except (ConnectionRefusedError, FileNotFoundError):
                end.close()
            except BaseException:
                end.close()
                raise
            if not start:
                raise HolderError(f"no holder of {self._name} is on this host")
            if started is not None and started.poll():
                raise HolderError(f"the holder of {self._name} ended with status {started.returncode} as it began")
            if started is None or started.poll() is not None:  # one that lost the address to another has ended
                started = _start(self._name, self._linger)
            if time.monotonic() > deadline:
                raise HolderError(f"the holder of {self._name} has not begun within {START_SECONDS:g} s")
            time.sleep(0.005)


def _start(name: str, linger: float) -> subprocess.Popen[bytes]:
    """In a session of its own, so that no signal for the group of its starter, or for its terminal, reaches it.

    Called in a thread, while another one may fork, as a DataLoader does. Without `close_fds` and the other arguments that need a
    fork, subprocess calls posix_spawn, and so has no pipe that such a child would keep open, for which it would wait.
    """
    own = "import os; os.setsid(); os.chdir('/'); os.closerange(3, 1 << 16)"
    command = python(f"{own}; from pccl._host.holder import main; main()", name, repr(linger))
    devnull = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=devnull, stdout=devnull, stderr=devnull, close_fds=False)


# ---- the process ----


class _Server:
    def __init__(self, listener: socket.socket, linger: float) -> None:
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}
        self._clients: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._linger = linger
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Returns when it is needed no longer."""
        alone_since = time.monotonic()
        had_client = False
        while True:
            for key, _ in self._selector.select(timeout=0.5):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
            if self._clients:
                alone_since, had_client = time.monotonic(), True
                continue
            patience = self._linger if self._kept or not had_client else 0.0
            if time.monotonic() - alone_since > patience:
                return

    def _accept(self) -> None:
        try:
            end, _ = self._listener.accept()
        except OSError:  # it has gone, or there are too many
            time.sleep(0.01)
            return
        if _user_at(end) != os.getuid():
            end.close()
            return
        end.setblocking(False)  # a client that does not read its answers is closed, and keeps no other one waiting
        self._clients.add(end)
        self._selector.register(end, selectors.EVENT_READ)

    def _hear(self, end: socket.socket) -> None:
        try:
            request, fd = _receive(end)
            self._answer(end, request, fd)
        except Exception:  # it has gone, does not read, or sends what is no request: what others keep here stays
            self._selector.unregister(end)
            self._clients.discard(end)
            end.close()

    def _answer(self, end: socket.socket, request: dict[str, Any], fd: int | None) -> None:
        do, key, info = request.get("do"), str(request.get("key")), request.get("info") or {}
        if do == "put" and fd is None:
            _send(end, {"error": "no descriptor came with it; a process may have no more of them"})
        elif do == "put" and fd is not None and isinstance(info, dict):
            self._drop(key)
            self._kept[key] = fd, info
            _send(end, {})
        elif fd is not None:
            os.close(fd)
            _send(end, {"error": f"{do!r} takes no descriptor, or `info` is no dict"})
        elif do == "drop":
            self._drop(key)
            _send(end, {})
        elif do == "get":
            _send(end, {}, self._kept[key][0] if key in self._kept else None)
        elif do == "list":
            found = [(key, os.fstat(fd).st_size, info) for key, (fd, info) in self._kept.items()]
            file = os.memfd_create("list", os.MFD_CLOEXEC)
            try:
                with os.fdopen(os.dup(file), "wb") as stream:
                    stream.write(json.dumps(found).encode())
                os.lseek(file, 0, os.SEEK_SET)
                _send(end, {}, file)
            finally:
                os.close(file)
        else:
            _send(end, {"error": f"{do!r} is no request"})

    def _drop(self, key: str) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            os.close(found[0])


def main() -> None:
    """The process: `name` and `linger` are its arguments."""
    name, linger = sys.argv[1], float(sys.argv[2])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each piece is an open file
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):  # another one has the address, and serves
        listener.bind(socket_name(name))
        listener.listen(64)
        _Server(listener, linger).serve()
