"""`pccl relay`: peers that nobody can dial meet there, encrypted from end to end, and nobody without the run's keys does."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from performers import Performer
from relays import carried

import pccl
from pccl import MasterNode, _keys, _relay
from pccl._relay import HELLO_BYTES, LINK_DESCRIPTORS, OTHER_DESCRIPTORS, Relay, key_of, make_room, network_of
from pccl.cli import main

WORLD = 2
ELEMENTS = 300_000


def relay_with(keys: list[bytes] | None) -> contextlib.AbstractContextManager[Relay]:
    return carried(Relay("127.0.0.1", 0, keys, links=64))


class Hidden:
    """A peer, as its process plays it."""

    IS_NO_MASTER = True

    def __init__(self, pipe, address: str, keys: str) -> None:
        self.log: list[str] = []
        self.comm = pccl.Communicator(address, keys=keys)

    def reduce(self, value: int) -> list[int]:
        import numpy as np

        self.comm.connect()
        self.comm.wait_for_peers(WORLD)
        tensor = np.full(ELEMENTS, value, np.int64)
        self.comm.all_reduce(tensor)
        small = np.full(3, value, np.int64)
        self.comm.all_reduce(small)
        (link,) = self.comm.links()
        assert link.relayed
        ((_, relay, connections),) = link.paths
        assert relay == "127.0.0.1"
        assert connections == link.lanes + 1
        return [int(tensor.min()), int(tensor.max()), int(small[0])]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return _keys.write_files(tmp_path / "run", _keys.new_keys())


@pytest.mark.plain("it makes keys of its own")
def test_two_meet(keys):
    master_keys, peer_keys = keys
    secrets = [key_of(secret) for secret in _keys.read_file(peer_keys)[1].secrets]
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=master_keys))
        relay = undo.enter_context(relay_with(secrets))
        environment = {"PCCL_ADDRESS": "none", "PCCL_RELAY": f"127.0.0.1:{relay.port}"}
        peers = []
        for number in range(WORLD):
            peer = Performer(Hidden, number, (f"127.0.0.1:{master.port}", str(peer_keys)), environment)
            undo.callback(peer.kill)
            peers.append(peer)
            peer.tell("reduce", number + 1)
        assert [peer.answer() for peer in peers] == [[3, 3, 3]] * WORLD
        assert relay.links >= 1
        assert relay.bytes > ELEMENTS * 8


def hello(nonce: bytes, itself: int, other: int, key: bytes | None) -> bytes:
    import hashlib

    words = b"%032x %032x %08x" % (itself, other, 0)
    proof = b"0" * 64 if key is None else hashlib.sha256(nonce + b" " + words + b" " + key).hexdigest().encode()
    return words + b" " + proof + b"\n"


def dial(relay: Relay, itself: int, other: int, key: bytes | None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", relay.port), timeout=20)
    greeting = read(connection, 46)
    assert greeting.startswith(b"pccl relay 1 ")
    message = hello(greeting[13:45], itself, other, key)
    assert len(message) == HELLO_BYTES
    connection.sendall(message)
    return connection


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (got := connection.recv(count - len(data))):
        data += got
    return data


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_is_let_in():
    key, wrong = key_of(b"k" * 32), key_of(b"w" * 32)
    with relay_with([key]) as relay:
        assert ended(dial(relay, 1, 2, wrong))
        assert ended(dial(relay, 1, 2, None))
        assert ended(dial(relay, 1, 1, key))
        with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as stranger:
            stranger.sendall(b"x" * HELLO_BYTES)
            read(stranger, 46)
            assert ended(stranger)
        stale = dial(relay, 1, 2, key)
        one = dial(relay, 1, 2, key)
        assert ended(stale)  # the newer one of the same peer counts
        two = dial(relay, 2, 1, key)
        assert one.recv(1) == two.recv(1) == b"+"
        data = bytes(range(256)) * 8192
        sender = threading.Thread(target=one.sendall, args=(data,))
        sender.start()
        assert read(two, len(data)) == data
        sender.join()
        two.sendall(b"back")
        assert read(one, 4) == b"back"
        one.shutdown(socket.SHUT_WR)
        assert two.recv(1) == b""
        two.sendall(b"still")
        two.close()
        assert read(one, 5) == b"still"
        assert ended(one)


def test_a_crowd_shuts_nobody_out(monkeypatch):
    monkeypatch.setattr(_relay, "UNKNOWN_MOST", 8)
    with relay_with(None) as relay, contextlib.ExitStack() as undo:
        peer = undo.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20, ("127.0.0.2", 0)))
        greeting = read(peer, 46)
        for _ in range(20):
            stranger = undo.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20))
            assert len(read(stranger, 46)) == 46
        peer.sendall(hello(greeting[13:45], 1, 2, None))
        other = undo.enter_context(dial(relay, 2, 1, None))
        assert peer.recv(1) == other.recv(1) == b"+"


def test_networks():
    assert network_of("127.0.0.1") == network_of("::ffff:127.0.0.1") == bytes([127, 0, 0, 1])
    assert network_of("2001:db8::1") == network_of("2001:db8::2:0:0:1%eth0") != network_of("2001:db8:0:1::1")


class Limited:
    """A process of its own, with limits of its own."""

    IS_NO_MASTER = True

    def __init__(self, pipe, soft: int, hard: int) -> None:
        self.log: list[str] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def make_room(self, links: int) -> tuple[int, int]:
        return make_room(links), resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def run_out(self) -> tuple[int, int]:
        """Turns in a second without descriptors, and the bytes that a client gets once there are some."""
        with contextlib.ExitStack() as undo:
            relay = Relay("127.0.0.1", 0, None, links=1)
            undo.callback(relay.close)
            client = undo.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20))
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            turns, end = 0, time.monotonic() + 1
            while time.monotonic() < end:
                relay.turn(0.2)
                turns += 1
            for descriptor in taken:
                os.close(descriptor)
            client.setblocking(False)
            while True:
                relay.turn(0.2)
                with contextlib.suppress(BlockingIOError):
                    return turns, len(client.recv(46))


def test_the_limit_of_open_files():
    needs = 100 * LINK_DESCRIPTORS + OTHER_DESCRIPTORS
    with contextlib.ExitStack() as undo:
        one = Performer(Limited, 0, (500, needs))
        undo.callback(one.kill)
        assert one.ask("make_room", 100) == (100, needs)
        assert one.ask("make_room", 101) == (100, needs)
        turns, greeted = one.ask("run_out")
        assert greeted == 46
        assert turns < 20


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "is not HOST:PORT"),
        (["127.0.0.1:0"], "give --keys"),
        (["127.0.0.1:0", "--keys", "/nowhere"], "No such file"),
        (["192.0.2.1:0", "--insecure"], "cannot listen at 192.0.2.1:0"),
    ],
)
def test_wrong_options(arguments, says, monkeypatch):
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    result = CliRunner().invoke(main, ["relay", *arguments])
    assert result.exit_code != 0
    assert says in result.output
