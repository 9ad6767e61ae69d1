"""`pccl relay`: peers that nobody can dial meet there, encrypted from end to end, and nobody without the run's keys does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from performers import Performer
from relays import Relay, relay_at

import pccl
from pccl import MasterNode
from pccl._run import keys as _keys
from pccl._run.relay import LINK_DESCRIPTORS, OTHER_DESCRIPTORS, make_room
from pccl.cli import main

WORLD = 2
ELEMENTS = 300_000
HELLO_BYTES = 210
UNKNOWN_MOST = 256


class Hidden:
    """A peer, as its process plays it."""

    IS_NO_MASTER = True

    def __init__(self, pipe, address: str, keys: str) -> None:
        self.log: list[str] = []
        self.comm = pccl.Communicator(address, keys=keys)

    def relays(self, world: int) -> list[str]:
        """Joins, reduces, and says through which addresses links are relayed."""
        self.comm.connect()
        self.comm.wait_for_peers(world)
        return self._relays()

    def follow(self, world: int) -> list[str]:
        """The same after a loss."""
        while True:
            try:
                self.comm.update_topology()
                if self.comm.world_size == world:
                    return self._relays()
            except pccl.PCCLError:
                continue

    def _relays(self) -> list[str]:
        import numpy as np

        tensor = np.ones(ELEMENTS, np.int64)
        self.comm.all_reduce(tensor, retry=True)
        assert int(tensor.min()) == int(tensor.max())
        return sorted({path[1] for link in self.comm.links() if link.relayed for path in link.paths})

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


def reduce_through(undo: contextlib.ExitStack, master: MasterNode, keys: list[Path], run: str = "", **environment: str) -> None:
    """A peer for each file; those that cannot be dialled reduce with the others. `run` stands behind the address."""
    peers = []
    for number, path in enumerate(keys):
        peer = Performer(Hidden, number, (f"127.0.0.1:{master.port}{run}", str(path)), environment | {"PCCL_ADDRESS": "none"})
        undo.callback(peer.kill)
        peers.append(peer)
        peer.tell("reduce", number + 1)
    assert [peer.answer() for peer in peers] == [[3, 3, 3]] * WORLD


@pytest.mark.plain("it makes keys of its own")
def test_two_meet_at_a_host_by_name(keys):
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=keys[0]))
        relay = undo.enter_context(relay_at("127.0.0.1:0", keys[1]))
        reduce_through(undo, master, [keys[1]] * WORLD, PCCL_RELAY=f"localhost:{relay.port}")
        assert relay.links >= 1
        assert relay.bytes > ELEMENTS * 8


@pytest.mark.plain("it makes keys of its own")
@pytest.mark.parametrize("relay_has", ["older", "newer", "both"])
def test_secrets_are_replaced_in_any_order(keys, tmp_path, relay_has):
    """A relay that has not been restarted, or was restarted first, joins peers that have either or both."""
    files = {"both": tmp_path / "run.peer", "older": tmp_path / "older", "newer": tmp_path / "newer"}
    shutil.copy(keys[1], files["older"])
    _keys.add_secret(tmp_path / "run")
    shutil.copytree(tmp_path, tmp_path / "copy")
    _keys.drop_secret(tmp_path / "copy" / "run")
    shutil.copy(tmp_path / "copy" / "run.peer", files["newer"])
    peers = ["both", "newer" if relay_has == "both" else relay_has]
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=keys[0]))
        relay = undo.enter_context(relay_at("127.0.0.1:0", files[relay_has]))
        reduce_through(undo, master, [files[name] for name in peers], PCCL_RELAY=f"127.0.0.1:{relay.port}")


@pytest.mark.plain("it makes keys of its own")
@pytest.mark.parametrize("relay_has", ["run.peer", "run-alpha.peer"])
def test_members_of_one_run_meet(keys, tmp_path, relay_has):
    alpha, _ = _keys.write_run_file(tmp_path / "run", "alpha")
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=keys[0]))
        relay = undo.enter_context(relay_at("127.0.0.1:0", tmp_path / relay_has))
        reduce_through(undo, master, [alpha, keys[1]], "/alpha", PCCL_RELAY=f"127.0.0.1:{relay.port}")
        assert relay.links >= 1


@pytest.mark.plain("it makes keys of its own")
def test_runs_do_not_meet(keys, tmp_path):
    """The ids of another run's members are no secret, so its members cannot be met, or their places be taken, with them."""
    paths = {run: _keys.write_run_file(tmp_path / "run", run)[0] for run in ("alpha", "beta")}
    alpha, beta = key_of(paths["alpha"]), key_of(paths["beta"])
    with relay_at("127.0.0.1:0", keys[1]) as relay:
        one = dial(relay, 1, 2, beta, "beta")
        assert ended(dial(relay, 2, 1, alpha, "beta"))
        assert ended(dial(relay, 2, 1, alpha))
        assert ended(dial(relay, 2, 1, key_of(keys[1]), "beta"))
        for name in ("a/b", "n" * 65, "\0"):
            assert ended(dial(relay, 2, 1, alpha, name))
        strangers = [dial(relay, *ids, alpha, "alpha") for ids in ((1, 2), (2, 1))]  # they meet each other
        assert [stranger.recv(1) for stranger in strangers] == [b"+", b"+"]
        unnamed = dial(relay, 2, 1, key_of(keys[1]))
        two = dial(relay, 2, 1, beta, "beta")
        assert one.recv(1) == two.recv(1) == b"+"
        unnamed.close()
    with relay_at("127.0.0.1:0", paths["beta"]) as relay:
        assert ended(dial(relay, 1, 2, alpha, "alpha"))
        assert ended(dial(relay, 1, 2, key_of(keys[1])))
        waits = dial(relay, 1, 2, beta, "beta")
        assert dial(relay, 2, 1, beta, "beta").recv(1) == waits.recv(1) == b"+"


@pytest.mark.plain("it makes keys of its own")
def test_a_member_relays(keys):
    """Of two members that can be dialled one must not relay. The other one does, without being asked."""
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=keys[0]))
        roles = [
            {"PCCL_ADDRESS": "none"},
            {"PCCL_ADDRESS": "127.0.0.2"},
            {"PCCL_ADDRESS": "127.0.0.3", "PCCL_RELAY_FOR_OTHERS": "0"},
            {"PCCL_ADDRESS": "none"},
        ]
        peers = []
        for number, environment in enumerate(roles):
            peers.append(Performer(Hidden, number, (f"127.0.0.1:{master.port}", str(keys[1])), environment))
            undo.callback(peers[-1].kill)
            peers[-1].tell("relays", len(roles))
        assert [peer.answer() for peer in peers] == [["127.0.0.2"], [], [], ["127.0.0.2"]]


@pytest.mark.plain("it makes keys of its own")
def test_links_move_when_the_relaying_member_dies(keys):
    with contextlib.ExitStack() as undo:
        master = undo.enter_context(MasterNode("127.0.0.1:0", keys=keys[0]))
        peers = []
        for number, address in enumerate(["none", "127.0.0.2", "127.0.0.3", "none"]):
            arguments = f"127.0.0.1:{master.port}", str(keys[1])
            peers.append(Performer(Hidden, number, arguments, {"PCCL_ADDRESS": address}))
            undo.callback(peers[-1].kill)
            peers[-1].tell("relays", 4)
        used, *_ = [peer.answer() for peer in peers]
        for peer in peers:
            peer.tell("follow", 3)
        dies = 1 if "127.0.0.2" in used else 2
        peers[dies].kill()
        left = [peer for number, peer in enumerate(peers) if number != dies]
        other = "127.0.0.3" if dies == 1 else "127.0.0.2"
        assert [peer.answer() for peer in left] == [[other], [], [other]]


def key_of(path: Path) -> bytes:
    (secret,) = _keys.read_file(path)[1].secrets
    return hashlib.sha256(b"pccl relay key" + secret).digest()


def hello(nonce: bytes, itself: int, other: int, key: bytes | None, run: str = "") -> bytes:
    words = b"%032x %032x %08x" % (itself, other, 0)
    proof = b"0" * 64 if key is None else hashlib.sha256(nonce + b" " + words + b" " + key).hexdigest().encode()
    return b"%b %b %064d %04x\n" % (words, proof, 0, len(run)) + run.encode()


def dial(relay: Relay, itself: int, other: int, key: bytes | None, run: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", relay.port), timeout=20)
    greeting = read(connection, 46)
    assert greeting.startswith(b"pccl relay 2 ")
    message = hello(greeting[13:45], itself, other, key, run)
    assert len(message) == HELLO_BYTES + len(run)
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


@pytest.mark.plain("it makes keys of its own")
def test_who_is_let_in(keys):
    key, wrong = key_of(keys[1]), hashlib.sha256(b"").digest()
    with relay_at("127.0.0.1:0", keys[1]) as relay:
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


def test_a_crowd_shuts_nobody_out():
    with relay_at("127.0.0.1:0", None) as relay, contextlib.ExitStack() as undo:
        peer = undo.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20, ("127.0.0.2", 0)))
        greeting = read(peer, 46)
        for _ in range(UNKNOWN_MOST + 20):
            stranger = undo.enter_context(socket.create_connection(("127.0.0.1", relay.port), 20))
            assert len(read(stranger, 46)) == 46
        peer.sendall(hello(greeting[13:45], 1, 2, None))
        other = undo.enter_context(dial(relay, 2, 1, None))
        assert peer.recv(1) == other.recv(1) == b"+"


class Limited:
    """A process of its own, with limits of its own."""

    IS_NO_MASTER = True

    def __init__(self, pipe, soft: int, hard: int) -> None:
        self.log: list[str] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def make_room(self, links: int) -> tuple[int, int]:
        return make_room(links), resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def run_out(self) -> int:
        """The bytes that a client gets that dials while there are no descriptors, once there are some."""
        with relay_at("127.0.0.1:0", None, links=1) as relay, contextlib.ExitStack() as undo:
            client = undo.enter_context(socket.socket())
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            client.connect(("127.0.0.1", relay.port))
            client.settimeout(1)
            with contextlib.suppress(TimeoutError):
                return len(client.recv(46))
            for descriptor in taken:
                os.close(descriptor)
            client.settimeout(20)
            return len(client.recv(46))


def test_the_limit_of_open_files():
    needs = 100 * LINK_DESCRIPTORS + OTHER_DESCRIPTORS
    with contextlib.ExitStack() as undo:
        one = Performer(Limited, 0, (500, needs))
        undo.callback(one.kill)
        assert one.ask("make_room", 100) == (100, needs)
        assert one.ask("make_room", 101) == (100, needs)
        assert one.ask("run_out") == 46


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "has no port"),
        (["127.0.0.1:0"], "give --keys"),
        (["127.0.0.1:0", "--keys", "/nowhere"], "No such file or directory; make them with `pccl keys /nowhere`"),
        (["192.0.2.1:0", "--insecure"], "cannot listen at 192.0.2.1:0: this machine does not have the address"),
        (["127.0.0.1:0", "--cert", "/nowhere"], "key and ca are missing; give all three"),
    ],
)
def test_wrong_options(arguments, says, monkeypatch):
    monkeypatch.delenv("PCCL_KEYS", raising=False)
    result = CliRunner().invoke(main, ["relay", *arguments])
    assert result.exit_code != 0
    assert says in result.output
