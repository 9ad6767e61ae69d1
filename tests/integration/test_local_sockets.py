"""Names of local sockets, which `ss` and readers of /proc/net/unix print, and what a master answers on its own."""

import re
import socket
from pathlib import Path
from uuid import UUID

import pytest
from frame_numbers import HEADER, TYPES, hello_body
from peers import PATIENCE

import pccl
from pccl._core.address import parse_endpoint
from pccl._run import keys
from pccl._watch.diagnosis import diagnose_run

HELLO = hello_body(bytes(range(16)), 40000)


def test_names_of_local_sockets_are_printable():
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        sockets = Path("/proc/net/unix").read_bytes()
    assert re.search(rb"@pccl-[0-9a-f]{32}$", sockets, re.MULTILINE)


def frame(kind: str, body: bytes = b"") -> bytes:
    return HEADER.pack(len(body), b"PC", TYPES[kind], 5, 1, 1) + body


def said_locally(port: int, said: bytes) -> bytes:
    """Returns what the master's local socket answers before the connection ends."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(PATIENCE)
        stream.connect(f"\0pccl-master-127.0.0.1:{port}")
        stream.sendall(said)
        heard = b""
        try:
            while more := stream.recv(4096):
                heard += more
        except ConnectionResetError:
            pass
        return heard


@pytest.mark.plain("the keys are the test's own")
@pytest.mark.parametrize("with_keys", [False, True])
def test_the_masters_local_socket_carries_questions_alone(tmp_path, with_keys):
    """Its address has no family: a member that joined there would make CANDIDATE malformed for all."""
    masters, peers = keys.write_files(tmp_path / "run", keys.new_keys()) if with_keys else (None, None)
    with pccl.MasterNode("127.0.0.1:0", keys=masters) as master:
        for said in (frame("HELLO", HELLO), frame("RESUME", HELLO + bytes(401))):
            assert said_locally(master.port, said) == b""
            with socket.create_connection(("127.0.0.1", master.port), timeout=PATIENCE) as stream:
                stream.sendall(said)
                assert stream.recv(1)  # TCP carries it, but gets an alert of TLS in a run with keys
        assert HEADER.unpack_from(said_locally(master.port, frame("STATUS")))[2] == TYPES["STATUS_IS"]
        with pccl.Communicator(f"127.0.0.1:{master.port}", keys=peers) as comm:
            comm.connect(timeout=PATIENCE)
            assert comm.world_size == 1


def members_at(host: str, port: int) -> list[UUID]:
    return [member.uuid for member in diagnose_run(parse_endpoint(f"{host}:{port}")).members]


def test_the_same_port_of_another_address_is_another_master():
    with pccl.MasterNode("127.0.0.1:0") as one, pccl.MasterNode(f"127.0.0.2:{one.port}"):
        with pccl.Communicator(f"127.0.0.2:{one.port}") as comm:
            comm.connect(timeout=PATIENCE)
            assert members_at("127.0.0.2", one.port) == [comm.uuid]
            assert members_at("127.0.0.1", one.port) == []


@pytest.mark.parametrize("asked", ["127.0.0.1", "127.0.0.3", "0.0.0.0"])
def test_a_master_at_a_wildcard_knows_its_user(asked):
    with pccl.MasterNode("0.0.0.0:0", insecure=True) as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect(timeout=PATIENCE)
        assert members_at(asked, master.port) == [comm.uuid]
