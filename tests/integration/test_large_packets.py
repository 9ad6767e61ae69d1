"""A path that loses large packets: a newcomer behind it is refused, and no member is lost for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from frame_numbers import HEADER, TYPES
from peers import Background, address_of, form

from pccl import Communicator, ConnectError, MasterNode

pytestmark = pytest.mark.plain("its proxy reads and changes frames")

PATIENCE = 60
HELLO, LINK_HELLO = TYPES["HELLO"], TYPES["LINK_HELLO"]
PORT = HEADER.size + 2 + 16 + 4 + 4  # of HELLO, where the peer says where it listens
MTU = 1400


def read(stream: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = stream.recv(size - len(content))
        if not more:
            raise ConnectionError
        content += more
    return content


class Relay:
    """Stands between a peer and all others: its master, and those who dial it.

    `passes(inward, size)` says whether a frame gets through. One that does not is lost, and all that follows it with it, as TCP
    waits for what is missing.
    """

    def __init__(self, master: MasterNode, passes: Callable[[bool, int], bool]) -> None:
        self._master, self._passes = master, passes
        self._sockets: list[socket.socket] = []
        self._behind = 0
        self._links = self._listen(lambda near: self._join(near, self._behind, self._link))
        self.address = f"127.0.0.1:{self._listen(lambda near: self._join(near, master.port, self._control))}"

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self, serve: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    def _join(self, near: socket.socket, port: int, look: Callable[[bool, int, bytearray], bool]) -> None:
        far = socket.create_connection(("127.0.0.1", port))
        self._sockets += [near, far]
        for inward, source, target in ((True, near, far), (False, far, near)):
            threading.Thread(target=self._forward, args=(inward, source, target, look), daemon=True).start()

    def _forward(
        self, inward: bool, source: socket.socket, target: socket.socket, look: Callable[[bool, int, bytearray], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            passes = True
            while True:
                header = read(source, HEADER.size)
                length, _, kind, *_ = HEADER.unpack(header)
                frame = bytearray(header + read(source, length))
                passes = passes and look(inward, kind, frame)
                if passes:
                    target.sendall(frame)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _control(self, inward: bool, kind: int, frame: bytearray) -> bool:
        if inward and kind == HELLO:
            self._behind = struct.unpack_from("<H", frame, PORT)[0]
            struct.pack_into("<H", frame, PORT, self._links)
        return True

    def _link(self, inward: bool, kind: int, frame: bytearray) -> bool:
        return self._passes(inward, len(frame))


@pytest.fixture
def master() -> Iterator[MasterNode]:
    with MasterNode("127.0.0.1:0", heartbeat_limit=2.0) as node:
        yield node


def both(inward: bool, size: int) -> bool:
    return size <= MTU


def inward_only(inward: bool, size: int) -> bool:
    return not inward or size <= MTU


def outward_only(inward: bool, size: int) -> bool:
    return inward or size <= MTU


@pytest.mark.parametrize("passes", [both, inward_only, outward_only])
def test_a_newcomer_behind_a_path_that_loses_large_packets_is_refused(
    master: MasterNode, passes: Callable[[bool, int], bool]
) -> None:
    # The later joined of a pair dials, so the member behind the path is the first one, and the newcomer has to be refused.
    relay = Relay(master, passes)
    with contextlib.closing(relay), Communicator(relay.address) as member, Communicator(address_of(master)) as newcomer:
        member.connect(timeout=PATIENCE)
        joining = Background(newcomer.connect, 1)
        while joining.running():
            member.update_topology(timeout=PATIENCE)
        error = joining.error()
        assert isinstance(error, ConnectError)
        assert "small packets pass, but large ones are lost" in str(error)
        assert "MTU" in str(error)
        assert member.world_size == 1


def test_a_path_that_passes_large_packets_is_used(master: MasterNode) -> None:
    relay = Relay(master, lambda inward, size: True)
    with contextlib.closing(relay), Communicator(relay.address) as member, Communicator(address_of(master)) as newcomer:
        member.connect(timeout=PATIENCE)
        joining = Background(newcomer.connect, 1)
        form(member, 2)
        joining.result()


def test_a_member_that_says_nothing_is_not_taken_for_a_narrow_path(master: MasterNode) -> None:
    relay = Relay(master, lambda inward, size: False)  # not even the hello gets through
    with contextlib.closing(relay), Communicator(relay.address) as member, Communicator(address_of(master)) as newcomer:
        member.connect(timeout=PATIENCE)
        joining = Background(newcomer.connect, 1)
        while joining.running():
            member.update_topology(timeout=PATIENCE)
        error = joining.error()
        assert "no data connection" in str(error)
        assert "MTU" not in str(error)
