"""Floods from one run, or from strangers, disturb no other run of the master. No time is asserted but the heartbeat limit."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from frame_numbers import HEADER, TYPES, hello_body, read
from peers import Background, address_of

from pccl import Communicator, MasterNode

pytestmark = [pytest.mark.timeout(120), pytest.mark.plain("its floods speak the plain protocol, and get past no handshake")]

PATIENCE = 60
FLOOD = 1 << 20


def frame(kind: str, body: bytes = b"", names: tuple[int, int, int] = (0, 0, 0)) -> bytes:
    return HEADER.pack(len(body), b"PC", TYPES[kind], *names) + body


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def frames_of_a_member(kind: str, body: bytes) -> Callable[[int], None]:
    def flood(port: int) -> None:
        with dial(port) as stream:
            stream.sendall(frame("RUN", b"\x05flood") + frame("HELLO", hello_body(b"f" * 16)))
            found, names = 0, [0, 0, 0]
            while found != TYPES["EPOCH"]:
                length, _, found, *names = HEADER.unpack(read(stream, HEADER.size))
                read(stream, length)
            one = frame(kind, body, (names[0], names[1], names[2]))
            stream.sendall(one * (FLOOD // len(one)))

    return flood


def questions(port: int) -> None:
    streams = [dial(port) for _ in range(300)]
    for stream in streams:
        stream.sendall(frame("DIAGNOSE"))
    for stream in streams:
        assert HEADER.unpack(read(stream, HEADER.size))[2] == TYPES["MATRIX"]
        stream.close()


def silence(port: int) -> None:
    """Strangers that say a byte, and nothing more."""
    streams = [dial(port) for _ in range(300)]
    for stream in streams:
        stream.sendall(b"\x10")
    for stream in streams:
        stream.close()


@pytest.fixture
def run() -> Iterator[tuple[int, Communicator]]:
    with MasterNode("127.0.0.1:0", heartbeat_limit=1.0) as master, Communicator(f"{address_of(master)}/quiet") as comm:
        comm.connect(timeout=PATIENCE)
        yield master.port, comm


@pytest.mark.parametrize(
    "flood",
    [frames_of_a_member("HEARTBEAT", b""), frames_of_a_member("VOTE", b"\x02"), questions, silence],
    ids=["heartbeats", "votes", "questions", "silence"],
)
def test_another_run_goes_on(run: tuple[int, Communicator], flood: Callable[[int], None]) -> None:
    port, comm = run
    flooding = Background(lambda: flood(port))
    answered = 0
    while flooding.running() or answered < 10:
        assert comm.are_peers_pending() is False
        answered += 1
    flooding.result()
    assert comm.world_size == 1
