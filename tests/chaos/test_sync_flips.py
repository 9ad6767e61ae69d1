"""Bits that the network flips while a state is transferred.

The donor that joins first is reached through a relay, which knows frames and changes what it is told to. A flip is one that TCP's
checksum has missed, so the connection itself is fine.

CHAOS_SEED=17 plays one of the random flips alone (`pytest -k sync_flips`).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from actors import PATIENCE
from frame_numbers import TYPES
from state_actors import LEAF, Content

from pccl import Communicator, MasterNode, PCCLError, ReduceOp, SharedState, TensorInfo
from pccl.cli.info import lz4_missing

pytestmark = pytest.mark.plain("its proxy reads and changes frames, and flips bits that TLS would find")

HEADER = 32
HEAD = HEADER + 64
LEAD, PADDING = HEADER, HEADER + 1
"""Where the head of a data frame tells of zero bytes before its payload, and behind it."""
PORT = HEADER + 26
"""Where a HELLO names the port."""
TAKES, CODING = HEADER + 26, HEADER + 22
"""Where an ASK says which codings the asker takes, and a LEAF which one it has."""
LZ4 = 1
HELLO, LINK_HELLO, LINK_ACK = TYPES["HELLO"], TYPES["LINK_HELLO"], TYPES["LINK_ACK"]
HASHES, ASK, LEAVES = TYPES["SYNC_HASHES"], TYPES["SYNC_ASK"], TYPES["SYNC_LEAF"]
LINK_TESTS = TYPES["LINK_HEARD"], TYPES["LINK_PADDING"]
SIZES = [3 << 20, 5, 0, 400_000, 1 << 20]

LIMIT = 4.0
"""Heartbeat limit where a flip may cost a connection. The relay is threads of this process: if it then stands still for half the
limit, the donor has failed twice before its links are made again, and is rightly expelled."""

ONE = os.environ.get("CHAOS_SEED")
SEEDS = [int(ONE)] if ONE else range(60)

Tamper = Callable[[bool, int, bytearray], None]
"""Is told whether the donor sends it, its type, and the frame, which it may change."""

Position = Callable[[bytearray], int]
"""The place in a frame that is flipped."""


def payload(frame: bytearray) -> range:
    """The places of its bytes."""
    return range(HEAD + frame[LEAD], len(frame) - frame[PADDING])


class Relay:
    """Stands before the master, and before the port of whoever joins through it."""

    def __init__(self, master_port: int) -> None:
        self.tamper: Tamper = lambda outward, kind, frame: None
        self.connections = 0
        self._master_port = master_port
        self._sockets: list[socket.socket] = []
        self._port_behind = 0
        self.port = self._listen(self._control)
        self._links = self._listen(self._link)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def await_connections(self, more_than: int) -> None:
        """A lane is made again by and by: the others carry on without it."""
        deadline = time.monotonic() + PATIENCE
        while self.connections <= more_than:
            assert time.monotonic() < deadline, "nobody has come back for the connection that broke"
            time.sleep(0.001)

    def _listen(self, serve: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = listener.accept()[0]
                    try:
                        serve(near)
                    except OSError:  # one side has gone already: others may come
                        near.close()

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    def _control(self, near: socket.socket) -> None:
        def hello(_: bool, kind: int, frame: bytearray) -> None:
            if kind == HELLO:
                self._port_behind = struct.unpack_from("<H", frame, PORT)[0]
                struct.pack_into("<H", frame, PORT, self._links)

        self._join(near, self._master_port, hello)

    def _link(self, near: socket.socket) -> None:
        self.connections += 1
        self._join(near, self._port_behind, lambda *about: self.tamper(*about))

    def _join(self, near: socket.socket, port: int, tamper: Tamper) -> None:
        far = socket.create_connection(("127.0.0.1", port))
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(one)
        for source, target, outward in ((near, far, False), (far, near, True)):
            threading.Thread(target=_pump, args=(source, target, outward, tamper), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, outward: bool, tamper: Tamper) -> None:
    stream = source.makefile("rb")
    with contextlib.suppress(OSError):
        while len(frame := bytearray(stream.read(HEADER))) == HEADER:
            length, _, kind = struct.unpack_from("<IHH", frame)
            frame += stream.read(length)
            tamper(outward, kind, frame)
            target.sendall(frame)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def flip_once(wanted: int, skip: int, position: Position, bit: int = 3, most: int = 1) -> tuple[Tamper, list[int]]:
    """Flips a bit in a frame of this type that the donor sends; and a list that tells of each."""
    done: list[int] = []
    lock = threading.Lock()
    seen = 0

    def tamper(outward: bool, kind: int, frame: bytearray) -> None:
        nonlocal seen
        with lock:
            if not outward or kind != wanted or len(done) == most:
                return
            seen += 1
            if seen > skip:
                frame[position(frame)] ^= 1 << bit
                done.append(len(frame))

    return tamper, done


class Holding:
    """A member and what it holds."""

    def __init__(self, port: int, content: Content, lanes: int, revision: int = 0) -> None:
        self.comm = Communicator(f"127.0.0.1:{port}", 0, lanes)
        self.arrays = [content.entry(at, size).copy() for at, size in enumerate(SIZES)]
        infos = [TensorInfo.from_numpy(array, str(at)) for at, array in enumerate(self.arrays)]
        self.state = SharedState(infos)
        self.state.revision = revision

    def sync(self) -> Any:
        """The bytes that came, or the error."""
        try:
            return self.comm.sync_shared_state(self.state, timeout=PATIENCE).rx_bytes
        except PCCLError as error:
            return error.result.name

    def sum(self) -> int:
        """Over all links: a sum that is large enough."""
        array = np.ones(300_000, np.int64)
        self.comm.all_reduce(array, array, op=ReduceOp.SUM, timeout=PATIENCE)
        assert (array == array[0]).all()
        return int(array[0])

    def holds(self, content: Content) -> bool:
        return all(np.array_equal(array, content.entry(at, array.size)) for at, array in enumerate(self.arrays))


@contextlib.contextmanager
def group(
    monkeypatch: pytest.MonkeyPatch, contents: list[Content], *, lanes: int = 2, limit: float = 20.0
) -> Iterator[tuple[Relay, list[Holding]]]:
    """Members with these contents; the first is behind the relay, and all that others say to it or hear from it goes over TCP."""
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", "0")
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterNode("127.0.0.1:0", heartbeat_limit=limit))
        relay = Relay(master.port)
        stack.callback(relay.close)
        members = [Holding(master.port if at else relay.port, content, lanes) for at, content in enumerate(contents)]
        for at, member in enumerate(members):
            stack.enter_context(member.comm)
            on_all(members[: at + 1], lambda one, world=at + 1, fresh=member: meet(one, world, one is fresh))
        yield relay, members


def meet(member: Holding, world: int, fresh: bool) -> None:
    if fresh:
        member.comm.connect(1, timeout=PATIENCE)
        return
    member.comm.wait_for_peers(world, timeout=PATIENCE)


def on_all(members: list[Holding], call: Callable[[Holding], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(call, members))


TOTAL = sum(SIZES)
A, B = Content(1), Content(2)


def check_repaired(members: list[Holding], answers: list[Any], received: list[int]) -> None:
    """All hold what the first one does, what was kept is what was missing, and everything goes on."""
    assert answers == received
    assert all(member.holds(A) for member in members)
    for member in members:
        member.state.push_revision()
    assert on_all(members, Holding.sum) == [len(members)] * len(members)
    assert on_all(members, Holding.sync) == [0] * len(members)


@pytest.mark.parametrize("donors", [1, 2])
@pytest.mark.parametrize(("skip", "place"), [(0, 0), (5, -1), (0, 100)])
def test_a_flipped_leaf_is_fetched_again(monkeypatch, donors, skip, place):
    contents = [A] * donors + [B]
    with group(monkeypatch, contents) as (relay, members):
        relay.tamper, done = flip_once(LEAVES, skip if donors == 1 else 0, lambda frame: payload(frame)[place])
        links = relay.connections
        answers = on_all(members, Holding.sync)
        assert len(done) == 1
        assert relay.connections == links  # nothing is wrong with the connection
        check_repaired(members, answers, [0] * donors + [TOTAL])


def test_two_receivers_and_flips_for_both(monkeypatch):
    with group(monkeypatch, [A, A, B, B]) as (relay, members):
        for member in members[:2]:
            member.state.revision = 4
        relay.tamper, done = flip_once(LEAVES, 0, lambda frame: len(frame) // 2, most=2)
        check_repaired(members, on_all(members, Holding.sync), [0, 0, TOTAL, TOTAL])
        assert len(done) >= 1


@pytest.mark.parametrize("donors", [1, 2])
def test_a_flipped_hash_list(monkeypatch, donors):
    contents = [A] * donors + [B, B]
    with group(monkeypatch, contents) as (relay, members):
        for member in members[:donors]:
            member.state.revision = 4
        relay.tamper, done = flip_once(HASHES, 0, lambda frame: payload(frame)[-3])
        check_repaired(members, on_all(members, Holding.sync), [0] * donors + [TOTAL] * 2)
        assert len(done) == 1


# length, magic, type (to one that is none, and to another one), run, epoch
FIELDS = [(0, 0), (2, 7), (3, 7), (4, 0), (5, 6), (7, 7), (6, 4), (8, 0), (15, 7), (24, 0), (31, 7)]


@pytest.mark.parametrize("wanted", [HASHES, LEAVES])
@pytest.mark.parametrize(("place", "bit"), FIELDS)
def test_a_flipped_header_costs_a_connection_at_most(monkeypatch, wanted, place, bit):
    """Or a frame, which is missed when nothing comes for the limit."""
    with group(monkeypatch, [A, A, B], limit=LIMIT) as (relay, members):
        # the list comes from the first donor or from the other one
        relay.tamper, done = flip_once(wanted, 0, lambda _: place, bit)
        check_repaired(members, on_all(members, Holding.sync), [0, 0, TOTAL])
        assert done or wanted == HASHES


@pytest.mark.parametrize("place", [2, 31])
def test_a_flipped_header_of_the_only_donor(monkeypatch, place):
    with group(monkeypatch, [A, B], lanes=1) as (relay, members):
        relay.tamper, done = flip_once(LEAVES, 2, lambda _: place, 7)
        links = relay.connections
        check_repaired(members, on_all(members, Holding.sync), [0, TOTAL])
        assert done
        relay.await_connections(more_than=links)


def test_flips_without_end(monkeypatch):
    """The only donor cannot get a single leaf through: both are told so, and the next sync finds a good network again."""
    with group(monkeypatch, [A, B]) as (relay, members):
        relay.tamper, done = flip_once(LEAVES, 0, lambda frame: payload(frame)[-1], most=1 << 30)
        assert on_all(members, Holding.sync) == ["NO_SHARED_STATE_AVAILABLE"] * 2
        assert len(done) >= 2
        assert members[0].holds(A)
        relay.tamper = lambda outward, kind, frame: None
        answers = on_all(members, Holding.sync)
        assert answers[1] > 0
        check_repaired(members, answers, [0, answers[1]])


def test_a_bad_network_to_one_of_two_donors(monkeypatch):
    """It is given up, and the rest comes from the other one."""
    with group(monkeypatch, [A, A, B]) as (relay, members):
        relay.tamper, done = flip_once(LEAVES, 0, lambda frame: payload(frame)[0], most=1 << 30)
        check_repaired(members, on_all(members, Holding.sync), [0, 0, TOTAL])
        # what was on its way when the second one was found, and no more
        assert 2 <= len(done) <= 2 + (8 << 20) // LEAF


# ---- a donor that packs as it likes ----


def lz4_block(length: int) -> bytes:
    """Decodes to this many bytes: one, repeated, and five more."""
    more = length - 1 - 4 - 15 - 5
    return b"\x1fa\x01\x00" + b"\xff" * (more // 255) + bytes([more % 255]) + b"\x50bcdef"


needs_lz4 = pytest.mark.skipif(bool(lz4_missing()), reason="nothing is packed without LZ4")

PACKED: dict[str, Callable[[int], bytes]] = {
    "no block at all": lambda length: b"\xff" * 1000,
    "cut in the middle": lambda length: lz4_block(length)[:-3],
    "too short": lambda length: lz4_block(length - 1),
    "too long": lambda length: lz4_block(length + 1),
    "something else": lz4_block,
    "reaching before its beginning": lambda length: b"\x1fa\xff\xff" + lz4_block(length)[4:],
}


def repacked(packed: Callable[[int], bytes], most: int = 1 << 30) -> tuple[Tamper, list[int]]:
    """Puts this in the place of large leaves that the donor sends to somebody who takes packed ones."""
    done: list[int] = []
    takes = False

    def tamper(outward: bool, kind: int, frame: bytearray) -> None:
        nonlocal takes
        takes |= kind == ASK and bool(frame[TAKES] & 1 << LZ4)
        if takes and outward and kind == LEAVES and len(frame) > HEAD + 10_000 and len(done) < most:
            frame[CODING] = LZ4
            frame[HEAD:] = packed(len(payload(frame)))
            frame[LEAD] = frame[PADDING] = 0
            struct.pack_into("<I", frame, 0, len(frame) - HEADER)
            done.append(len(frame))

    return tamper, done


@needs_lz4
@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_a_donor_that_packs_wrong_is_given_up(monkeypatch, packed):
    with group(monkeypatch, [A, A, B]) as (relay, members):
        relay.tamper, done = repacked(packed)
        answers = on_all(members, Holding.sync)
        assert done, "nothing was packed"
        check_repaired(members, answers, [0, 0, TOTAL])
        assert 2 <= len(done) <= 2 + (8 << 20) // LEAF


@needs_lz4
@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED)
def test_the_only_donor_packs_wrong(monkeypatch, packed):
    """No state is available, and all are told so."""
    with group(monkeypatch, [A, B]) as (relay, members):
        relay.tamper, done = repacked(packed)
        answers = on_all(members, Holding.sync)
        assert done, "nothing was packed"
        assert answers == ["NO_SHARED_STATE_AVAILABLE"] * 2
        assert members[0].holds(A)
        relay.tamper = lambda outward, kind, frame: None
        answers = on_all(members, Holding.sync)
        check_repaired(members, answers, [0, answers[1]])


@needs_lz4
@pytest.mark.parametrize("length", [lambda leaf: 0, lambda leaf: leaf], ids=["empty", "not shorter"])
def test_a_packed_leaf_of_no_length_that_it_can_have(monkeypatch, length):
    """That is no frame: it costs the connection."""
    with group(monkeypatch, [A, A, B]) as (relay, members):
        relay.tamper, done = repacked(lambda leaf: bytes(length(leaf)), most=1)
        links = relay.connections
        answers = on_all(members, Holding.sync)
        assert done, "nothing was packed"
        check_repaired(members, answers, [0, 0, TOTAL])
        relay.await_connections(more_than=links)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_flip(monkeypatch, seed):
    """One bit anywhere in what goes to or from the donor: the end is right, and soon, and the next sync finds nothing to do."""
    rng = random.Random(seed)
    at, bit, outward_only = int(rng.random() ** 3 * (TOTAL // 4)), rng.randrange(8), rng.random() < 0.7
    inside = rng.random() < 0.6
    donors = rng.choice([1, 2])
    done: list[str] = []
    passed = 0
    lock = threading.Lock()

    def tamper(outward: bool, kind: int, frame: bytearray) -> None:
        nonlocal passed
        with lock:
            if outward < outward_only or kind in (LINK_HELLO, LINK_ACK, *LINK_TESTS) or done:
                return
            passed += len(frame)
            if passed > at:
                place = rng.randrange(HEAD if inside else len(frame))
                done.append(f"{kind} at {place}")
                frame[place] ^= 1 << bit

    with group(monkeypatch, [A] * donors + [B, B], limit=LIMIT, lanes=rng.choice([1, 2])) as (relay, members):
        for member in members[:donors]:
            member.state.revision = 4
        relay.tamper = tamper
        begin = time.monotonic()
        answers = on_all(members, Holding.sync)
        print(f"flipped {done} after {at} bytes, bit {bit}, {donors} donors: {answers} in {time.monotonic() - begin:.2f} s")
        relay.tamper = lambda outward, kind, frame: None
        if answers == ["NO_SHARED_STATE_AVAILABLE"] * len(members):
            assert members[0].holds(A)
            answers = on_all(members, Holding.sync)
        assert answers[:donors] == [0] * donors
        assert all(isinstance(answer, int) and answer <= TOTAL for answer in answers)
        check_repaired(members, answers, answers)
        assert time.monotonic() - begin < PATIENCE
