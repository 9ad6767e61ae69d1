"""`pccl top` in a process: a master that has answered once, and then does not, is asked again until Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from peers import MasterProcess


def heed_hangups() -> None:
    """These tests may run under nohup, and what it sets is inherited."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def top(
    address: str, *arguments: str, terminal: int | None = None, ended_by: signal.Signals = signal.SIGINT
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pccl", "top", "--master", address, "--interval", "0.2", *arguments]
    out = subprocess.PIPE if terminal is None else terminal
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=environment, preexec_fn=heed_hangups
    )
    try:
        yield process
        process.send_signal(ended_by)
        assert process.wait(60) == 128 + ended_by
        assert process.stderr is not None
        assert process.stderr.read().endswith(b"interrupted\n" if ended_by == signal.SIGINT else b"")
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_programs_are_told_on_standard_error():
    with MasterProcess() as master, top(master.address, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["members"] == []
        master.kill()
        for _ in range(2):
            assert f"no master answers at {master.address}" in process.stderr.readline().decode()
        os.set_blocking(process.stdout.fileno(), False)
        process.stdout.read()  # what came before the master was killed
        os.set_blocking(process.stdout.fileno(), True)
        master.start()
        assert json.loads(process.stdout.readline())["members"] == []


def test_a_terminal_shows_that_nobody_answers():
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    shown = b""

    def wait_for(words: bytes) -> None:
        nonlocal shown
        while words not in b" ".join(shown.split()):
            shown += os.read(leader, 4096)
        shown = b""

    try:
        with MasterProcess() as master, top(master.address, terminal=follower):
            wait_for(b"serves no run")
            master.kill()
            wait_for(b"asking again")
            wait_for(b"asking again")
            master.start()
            wait_for(b"serves no run")
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_left_as_it_was(number: signal.Signals):
    leader, follower = pty.openpty()
    shown = b""
    try:
        with MasterProcess() as master, top(master.address, terminal=follower, ended_by=number):
            while b"serves" not in shown:
                shown += os.read(leader, 4096)
            assert b"\x1b[?1049h" in shown  # the other screen
        os.set_blocking(leader, False)
        shown += os.read(leader, 65536)
    finally:
        os.close(leader)
        os.close(follower)
    assert b"\x1b[?25h" in shown.rpartition(b"\x1b[?25l")[2]  # the cursor
    assert b"\x1b[?1049l" in shown.rpartition(b"\x1b[?1049h")[2]
