"""A process breaks its own connections."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")

CHECKOUT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "bench")}


@pytest.mark.parametrize(("how", "broken_count"), [("one reset", 1), ("all reset", 3), ("all shutdown", 3), ("one half", 1)])
def test_a_process_cuts_its_connections_to_others(how, broken_count):
    code = """
import random, socket, sys
from stress.actor import cut
how, port, kept_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = [socket.create_connection(("127.0.0.1", one)) for one in [port] * 3 + [kept_port]]
own = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
own_end = socket.create_connection(("127.0.0.1", own.getsockname()[1]))
own_other = own.accept()[0]
print(cut(how, {kept_port}, random.Random(1)), flush=True)
sys.stdin.readline()
for one in (ends[3], own_end):
    one.sendall(b"x")
print(own_other.recv(1) == b"x")
"""
    with contextlib.ExitStack() as stack:
        listener, kept = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        listener.settimeout(20)
        ports = [str(one.getsockname()[1]) for one in (listener, kept)]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", code, how, *ports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CHECKOUT
            )
        )
        others = [stack.enter_context(one.accept()[0]) for one in [listener] * 3 + [kept]]
        assert process.stdout.readline() == f"{broken_count}\n"
        ended = 0
        for other in others[:3]:
            other.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                try:
                    ended += other.recv(1) == b""
                except ConnectionResetError:
                    ended += 1
        assert ended == broken_count
        assert process.communicate("\n", timeout=20)[0] == "True\n"
        assert others[3].recv(1) == b"x"
