"""The process that keeps memory of others."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from pccl._host.holder import Holder, HolderError, Kept, memory_file, socket_name


@pytest.fixture
def name() -> str:
    """Of a holder that no other test has, nor one before it that is on its way out."""
    return f"test-{uuid4().hex}"


@contextlib.contextmanager
def holder(name: str, **options: float) -> Iterator[Holder]:
    """A holder that nobody else has, and that is killed at the end."""
    made = Holder(name, **options)
    try:
        yield made
    finally:
        os.kill(pid_of(made), signal.SIGKILL)
        made.close()


def pid_of(client: Holder) -> int:
    return struct.unpack("3i", client._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def put(client: Holder, key: str, content: bytes, **info: int) -> None:
    fd = memory_file(len(content))
    with mmap.mmap(fd, max(1, len(content))) as memory:
        memory[: len(content)] = content
    client.put(key, fd, info)
    os.close(fd)


def read(client: Holder, key: str) -> bytes:
    with os.fdopen(client.get(key), "rb") as file:
        return os.pread(file.fileno(), 1 << 20, 0)


def test_what_was_put_can_be_had_until_it_is_dropped(name):
    with holder(name) as client:
        put(client, "a", b"one", step=1)
        put(client, "b", b"two" * 1000)
        assert client.kept() == [Kept("a", 3, {"step": 1}), Kept("b", 3000, {})]
        put(client, "a", b"other", step=2)
        assert read(client, "a") == b"other"
        client.drop(["a", "unknown"])
        assert [one.key for one in client.kept()] == ["b"]
        with pytest.raises(KeyError, match="a"):
            client.get("a")


def test_memory_outlives_the_process_that_put_it(name):
    code = f"""
import os, signal, mmap
from pccl._host.holder import Holder, memory_file
fd = memory_file(8)
mmap.mmap(fd, 8)[:] = b"survives"
Holder({name!r}).put("piece", fd, {{}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == -signal.SIGKILL
    client = Holder(name, start=False)
    assert read(client, "piece") == b"survives"
    os.kill(pid_of(client), signal.SIGKILL)
    with pytest.raises(HolderError, match="has ended"):
        client.kept()
    client.close()


def test_several_start_one(name):
    code = f"from pccl._host.holder import Holder; h = Holder({name!r}); print(flush=True); input()"
    pipe = subprocess.PIPE
    starters = [subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) for _ in range(4)]
    try:
        for one in starters:
            assert one.stdout is not None
            one.stdout.readline()
        with contextlib.closing(Holder(name, start=False)) as client:
            put(client, "x", b"1")
            assert [one.key for one in client.kept()] == ["x"]
            os.kill(pid_of(client), signal.SIGKILL)
    finally:
        for one in starters:
            one.kill()
            one.communicate()


def test_a_thread_that_starts_one_waits_for_no_child_of_another(name, monkeypatch):
    """A child that another thread forks in the middle would keep the pipe open for which subprocess waits after its own fork."""
    monkeypatch.setattr(subprocess, "_fork_exec", None)
    with holder(name) as client:
        pid = pid_of(client)
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError("the holder does not end")


def test_it_ends_when_nobody_is_there_and_nothing_is_kept(name):
    client = Holder(name, linger=1000)
    put(client, "a", b"1")
    client.drop(["a"])
    pid = pid_of(client)
    client.close()
    wait_for_end(pid)


def test_it_keeps_for_as_long_as_it_was_told(name):
    client = Holder(name, linger=3.0)
    put(client, "a", b"1")
    client.close()
    with contextlib.closing(Holder(name, start=False)) as again:
        assert read(again, "a") == b"1"
        pid = pid_of(again)
    wait_for_end(pid)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff" * 100, b'{"do": "nothing"}', b'{"do": "put", "key": "x"}'])
def test_a_request_that_is_none_harms_nobody(name, content):
    with holder(name) as client:
        put(client, "a", b"1")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(socket_name(name))
            stranger.send(content)
        assert read(client, "a") == b"1"
        with pytest.raises(HolderError, match="'nothing' is no request"):
            client._ask({"do": "nothing"})


def test_another_users_holder_is_not_asked(name, monkeypatch):
    with holder(name):
        monkeypatch.setattr("pccl._host.holder._user_at", lambda end: os.getuid() + 1)
        with pytest.raises(HolderError, match="taken by a process of another user"):
            Holder(name, start=False)


def test_memory_that_is_not_there_is_an_error():
    with pytest.raises(MemoryError, match="MiB for a snapshot"):
        memory_file(1 << 60)


def test_it_keeps_more_pieces_than_files_may_be_open_by_default(name):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, before[1]))  # it inherits that
    try:
        client = Holder(name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    try:
        for key in range(100):
            put(client, str(key), b"1")
        assert len(client.kept()) == 100
    finally:
        os.kill(pid_of(client), signal.SIGKILL)
        client.close()
