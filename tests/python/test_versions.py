"""A master of another wire version, played here: who asks it, or wants to join, is told both versions at once."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from frame_numbers import HEADER, TYPES, VERSION

import pccl
from pccl.cli import main

OTHER = VERSION + 1


def answer(stream: socket.socket) -> None:
    """Tells a peer why it is refused, as a master does, and everybody else the version."""
    length, _, kind, *_ = HEADER.unpack(stream.recv(HEADER.size, socket.MSG_WAITALL))
    stream.recv(length, socket.MSG_WAITALL)
    why = f"the master speaks version {OTHER} of the protocol, and this peer another version, {VERSION}; install one pccl on both"
    body = struct.pack("<H", len(why)) + why.encode()
    refuses = kind in (TYPES["HELLO"], TYPES["RESUME"])
    if not refuses:
        body = struct.pack("<H", OTHER) + b"what only this version knows"
    stream.sendall(HEADER.pack(len(body), b"PC", TYPES["REFUSED" if refuses else "MATRIX"], 0, 0, 0) + body)


@contextlib.contextmanager
def foreign_master() -> Iterator[tuple[str, list[socket.socket]]]:
    """Its address, and the connections that it has had."""
    seen: list[socket.socket] = []
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    seen.append(stack.enter_context(listener.accept()[0]))
                    answer(seen[-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", seen
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_peer_asks_once_to_join() -> None:
    with foreign_master() as (address, seen), pccl.Communicator(address) as comm:
        with pytest.raises(pccl.UsageError, match=f"speaks version {OTHER} .* {VERSION}; install one pccl on both") as caught:
            comm.connect()
        assert caught.value.result == pccl.Result.INVALID_USAGE
        assert len(seen) == 1


def test_a_peer_tries_the_next_master_of_its_list() -> None:
    with foreign_master() as (address, seen), pccl.MasterNode("127.0.0.1:0") as master:
        with pccl.Communicator(f"{address},127.0.0.1:{master.port}") as comm:
            comm.connect()
            assert comm.world_size == 1
        assert seen


def test_a_member_seeks_on() -> None:
    """Its first master is replaced by one of another version, and the second one takes the run up."""
    with foreign_master() as (foreign, seen), contextlib.ExitStack() as stack:
        first = stack.enter_context(pccl.MasterNode("127.0.0.1:0"))
        second = stack.enter_context(pccl.MasterNode("127.0.0.1:0"))
        comm = stack.enter_context(pccl.Communicator(f"127.0.0.1:{first.port},{foreign},127.0.0.1:{second.port}"))
        comm.connect()
        first.detach()
        while not seen:  # the first master may answer before it ends
            comm.update_topology()
        comm.update_topology()
        assert comm.world_size == 1


@pytest.mark.parametrize("command", ["doctor", "top"])
def test_commands_name_both_versions(command: str) -> None:
    with foreign_master() as (address, _):
        options = ["--json"] if command == "doctor" else ["--once"]
        result = CliRunner().invoke(main, [command, "--master", address, *options])
    assert result.exit_code == 1
    text = result.output
    if command == "doctor":
        (one,) = (one for one in json.loads(text) if one["check"] == "master")
        assert (one["verdict"], one["advice"]) == ("problem", "install one pccl on both")
        text = one["seen"]
    assert (
        f"at {address}: it speaks version {OTHER} of the protocol, and this pccl, {pccl.__version__}, version {VERSION}" in text
    )
