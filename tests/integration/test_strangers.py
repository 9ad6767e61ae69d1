"""What a master tells somebody who is no member of its run: counts, and no uuid, name or address."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest
from click.testing import CliRunner
from frame_numbers import HEADER, TYPES, VERSION, hello_body, read
from peers import Background, address_of, form

import pccl
from pccl import Communicator, MasterNode
from pccl.cli import main

pytestmark = pytest.mark.plain("its strangers speak the plain protocol, and get past no handshake")

PATIENCE = 60
NAME = "name-of-a-member"
HELLO, WELCOME, DIAGNOSE, MATRIX = (TYPES[name] for name in ("HELLO", "WELCOME", "DIAGNOSE", "MATRIX"))
COUNTS = struct.Struct("<HdBI3Q5I")


def ask(port: int, kind: int, body: bytes) -> tuple[int, bytes, bytes]:
    """Sends one frame to the master; gives the type, the header and the body of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stream:
        stream.sendall(HEADER.pack(len(body), b"PC", kind, 0, 0, 0) + body)
        header = read(stream, HEADER.size)
        length, _, answer, *_ = HEADER.unpack(header)
        return answer, header, read(stream, length)


@pytest.fixture
def run() -> Iterator[tuple[MasterNode, list[Communicator]]]:
    with MasterNode("127.0.0.1:0") as master, ExitStack() as stack:
        comms = [stack.enter_context(Communicator(address_of(master), name=NAME)) for _ in range(2)]
        comms[0].connect(timeout=PATIENCE)
        joining = Background(lambda: comms[1].connect(timeout=PATIENCE))
        form(comms[0], 2)
        joining.result()
        yield master, comms


def check_counts(answer: tuple[int, bytes, bytes], comms: list[Communicator]) -> None:
    kind, header, body = answer
    assert kind == MATRIX
    version, _, counts_only, peers, epoch, *unknown = COUNTS.unpack(body)
    assert version == VERSION
    assert (counts_only, peers, epoch) == (1, 2, 2)
    assert not any(unknown)  # generation of the master, votes, members, edges, numbers of programs, joiners, and departures
    assert HEADER.unpack(header)[3:] == (0, 0, 0)  # no run, which a forged RESUME would need
    for comm in comms:
        assert comm.uuid.bytes not in header + body
    assert NAME.encode() not in body


def register(port: int) -> tuple[socket.socket, UUID, bytes]:
    """A newcomer that has said HELLO, its id, and the secret that it was told."""
    own = UUID(bytes=os.urandom(16))
    body = hello_body(own.bytes)
    stream = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    stream.sendall(HEADER.pack(len(body), b"PC", HELLO, 0, 0, 0) + body)
    length, _, kind, *_ = HEADER.unpack(read(stream, HEADER.size))
    assert kind == WELCOME
    return stream, own, read(stream, length)[8:24]


def test_a_stranger_is_told_counts(run: tuple[MasterNode, list[Communicator]]) -> None:
    master, comms = run
    check_counts(ask(master.port, DIAGNOSE, b""), comms)
    check_counts(ask(master.port, DIAGNOSE, bytes(32)), comms)
    check_counts(ask(master.port, DIAGNOSE, comms[0].uuid.bytes + bytes(16)), comms)  # an id alone proves nothing


def test_a_newcomer_that_is_not_admitted_is_told_counts(run: tuple[MasterNode, list[Communicator]]) -> None:
    master, comms = run
    stream, own, secret = register(master.port)
    with stream:
        check_counts(ask(master.port, DIAGNOSE, own.bytes + secret), comms)
        kind, _, body = ask(master.port, DIAGNOSE, comms[0].uuid.bytes + secret)
        assert kind == MATRIX
        assert comms[1].uuid.bytes in body  # as a member asks


def test_members_and_the_user_of_the_master_are_told_everything(run: tuple[MasterNode, list[Communicator]]) -> None:
    master, comms = run
    for told in (comms[1].diagnose(), pccl._watch.diagnosis.diagnose_run(pccl._core.address.parse_endpoint(address_of(master)))):
        assert [member.uuid for member in told.members] == [comm.uuid for comm in comms]
        assert (told.counts_only, told.peer_count, told.epoch) == (False, 2, 2)


def test_commands_of_a_stranger_say_what_is_missing(run: tuple[MasterNode, list[Communicator]], monkeypatch) -> None:
    """A proxy stands in for another host, from which the local socket of the master cannot be reached."""
    master, comms = run
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def serve() -> None:
            for _ in range(4):  # `info` also asks for the runs
                client, _ = proxy.accept()
                with client, socket.create_connection(("127.0.0.1", master.port)) as upstream:
                    upstream.sendall(read(client, HEADER.size))
                    while chunk := upstream.recv(65536):
                        client.sendall(chunk)

        serving = Background(serve)
        address = f"127.0.0.1:{proxy.getsockname()[1]}"
        texts = [
            CliRunner().invoke(main, [command, "--master", address, *more])
            for command, more in (("top", ["--once"]), ("info", []))
        ]
        printed = CliRunner().invoke(main, ["top", "--master", address, "--once", "--json"])
        serving.result()
    for text in texts:
        assert text.exit_code == 0, text.output
        words = " ".join(text.output.split())
        assert "The run has 2 members, in epoch 2." in words
        assert "run this command as the master's user on the master's host" in words
        assert comms[0].uuid.hex[:8] not in words
    told = json.loads(printed.output)
    assert (told["members"], told["counts_only"], told["peer_count"]) == ([], True, 2)
