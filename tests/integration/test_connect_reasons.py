"""Why `connect` cannot reach a master: each error says it, however the wait ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from peers import Background, address_of, form
from test_certificates import Authority

from pccl import Communicator, ConnectError, MasterNode, PCCLTimeoutError, UsageError
from pccl._run import keys as _keys
from pccl.lab.ports import free_ports

pytestmark = pytest.mark.plain("it gives each process keys of its own, or none")

LOCAL = "127.0.0.1:0"
TIMEOUT = 1.5
Place = Iterator[tuple[str, dict[str, Any]]]


def keys(folder: Path, name: str) -> tuple[str, str]:
    master, peer = _keys.write_files(folder / name, _keys.new_keys())
    return str(master), str(peer)


@contextmanager
def wrong_keys(folder: Path) -> Place:
    with MasterNode(LOCAL, keys=keys(folder, "run")[0]) as master:
        yield address_of(master), {"keys": keys(folder, "other")[1]}


@contextmanager
def no_keys(folder: Path) -> Place:
    with MasterNode(LOCAL, keys=keys(folder, "run")[0]) as master:
        yield address_of(master), {}


@contextmanager
def plain_master(folder: Path) -> Place:
    with MasterNode(LOCAL) as master:
        yield address_of(master), {"keys": keys(folder, "run")[1]}


@contextmanager
def other_authority(folder: Path) -> Place:
    stranger = Authority(folder, "other").issue("peer")
    with MasterNode(LOCAL, **Authority(folder).issue("master").arguments) as master:
        yield address_of(master), stranger.arguments


@contextmanager
def wrong_keys_at_all(folder: Path) -> Place:
    with wrong_keys(folder) as (address, arguments), MasterNode(LOCAL, keys=keys(folder, "third")[0]) as second:
        yield f"{address},{address_of(second)}", arguments


@contextmanager
def wrong_keys_at_one(folder: Path) -> Place:
    with wrong_keys(folder) as (address, arguments):
        yield f"{address},127.0.0.1:{free_ports(1)[0]}", arguments


@contextmanager
def no_master(folder: Path) -> Place:
    """Says something, as a server of ssh does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 10)

        serving = Background(serve)
        yield f"127.0.0.1:{server.getsockname()[1]}", {}
        server.shutdown(socket.SHUT_RDWR)
        serving.result()


@contextmanager
def refused(folder: Path) -> Place:
    yield f"127.0.0.1:{free_ports(1)[0]}", {}


@contextmanager
def dropped(folder: Path) -> Place:
    """No answer to a SYN, for the queue of the listener is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}", {}


@contextmanager
def unknown_name(folder: Path) -> Place:
    yield "nowhere.invalid:48148", {"insecure": True}


TABLE: list[tuple[Callable[[Path], Any], str, bool]] = [
    (wrong_keys, "cannot trust the master at .* not of one run", True),
    (no_keys, "it encrypts, and this process has no keys", True),
    (plain_master, "cannot trust the master at .* it does not encrypt", False),
    (other_authority, "none of the authorities that this process trusts", True),
    (wrong_keys_at_all, "cannot trust the master at .*cannot trust the master at", True),
    (wrong_keys_at_one, "cannot trust the master at .* not of one run.*Connection refused", False),
    (no_master, "master at .*(sent invalid bytes|is it the port of a pccl master)", False),
    (refused, r"cannot connect to the master \(is it running\?\) at .*Connection refused|node \(is it running", False),
    (dropped, r"no master has answered yet, at 127\.0\.0\.1:\d+; ", False),
    (unknown_name, "nowhere.invalid (cannot be|was not) resolved", False),
]
"""What is there, the words of the error, and whether keys are the reason."""


@pytest.mark.parametrize(("place", "words", "is_usage"), TABLE, ids=[row[0].__name__ for row in TABLE])
def test_the_reason_is_told(place, words, is_usage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    monkeypatch.setattr("pccl._peer.connection.PAUSE_SECONDS", 0.6)
    with place(tmp_path) as (address, arguments), Communicator(address, **arguments) as comm:
        for call in (comm.connect, comm.reconnect, comm.connect):
            with pytest.raises(UsageError if is_usage else PCCLTimeoutError, match=words) as caught:
                call(timeout=TIMEOUT)
            assert isinstance(caught.value, ConnectError) == is_usage
        monkeypatch.setattr("pccl._peer.connection.PAUSE_SECONDS", 0.01)
        for limit in ({} if place is not dropped else {"wait_for_master": 0.5}, {"wait_for_master": 0.5}):
            began = time.monotonic()
            with pytest.raises(ConnectError, match=words) as caught:
                comm.reconnect(**limit)
            assert isinstance(caught.value, UsageError) == is_usage
            assert time.monotonic() - began < 20  # five attempts that nobody answers would last 30 s


def test_the_environment_limits_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCCL_CONNECT_TIMEOUT_S", "1")
    with dropped(tmp_path) as (address, _), Communicator(address) as comm:
        began = time.monotonic()
        with pytest.raises(ConnectError, match="no master has answered yet"):
            comm.connect()
        assert time.monotonic() - began < 4.5  # less than one attempt lasts


def test_the_limit_is_not_one_of_the_wait_for_admission() -> None:
    with MasterNode(LOCAL) as master, Communicator(address_of(master)) as first, Communicator(address_of(master)) as second:
        first.connect()
        joining = Background(lambda: second.connect(wait_for_master=0.3))
        time.sleep(1)
        form(first, 2)
        joining.result()
        assert second.world_size == 2
