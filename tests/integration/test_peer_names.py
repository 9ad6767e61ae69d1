"""Peers have names: in logs, errors, tables and what programs read."""

from __future__ import annotations

import functools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from click.testing import CliRunner
from peers import ENVIRONMENT, Background, address_of, admit

import pccl
from pccl import Communicator, MasterNode
from pccl.cli import main

PATIENCE = 60


@pytest.fixture
def master() -> Iterator[MasterNode]:
    with MasterNode("127.0.0.1:0") as node:
        yield node


def team(stack: ExitStack, master: MasterNode, *names: str | None) -> list[Communicator]:
    """Members of a run with these names, by rank."""
    comms: list[Communicator] = []
    for name in names:
        comm = stack.enter_context(Communicator(address_of(master), name=name))
        admit(comms, comm)
        comms.append(comm)
    return comms


def test_members_know_each_other_by_name(master: MasterNode) -> None:
    with ExitStack() as stack:
        comms = team(stack, master, "red", "grün 2")
        expected = {comms[0].uuid: "red", comms[1].uuid: "grün 2"}
        assert [comm.peer_names for comm in comms] == [expected] * 2
        assert [comm.name for comm in comms] == ["red", "grün 2"]
        assert [link.name for comm in comms for link in comm.links()] == ["grün 2", "red"]
        assert f"rank 1 (grün 2, {comms[1].uuid.hex[:8]})" in str(comms[0].links()[0])
        assert [member.name for member in comms[0].diagnose().members] == ["red", "grün 2"]


def test_a_peer_has_the_name_of_its_host_unless_it_is_told_another(master: MasterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    with Communicator(address_of(master)) as comm:
        comm.connect(timeout=PATIENCE)
        assert comm.name == socket.gethostname()[:63]
        assert list(comm.peer_names.values()) == [comm.name]
    monkeypatch.setenv("PCCL_PEER_NAME", "from the environment")
    with Communicator(address_of(master)) as comm:
        comm.connect(timeout=PATIENCE)
        assert comm.name == "from the environment"
        comm.reconnect(timeout=PATIENCE)
        assert comm.name == "from the environment"
    with Communicator(address_of(master), name="from the program") as comm:
        comm.connect(timeout=PATIENCE)
        assert comm.name == "from the program"
        comm.reconnect(timeout=PATIENCE)
        assert list(comm.peer_names.values()) == ["from the program"]


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a\nb", "\x1b[31m", "a\0b", "x" * 64, "é" * 32, "\u202eabc", "\ud800", "a\x9bb"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 63 bytes of printable UTF-8"):
        Communicator("127.0.0.1:1", name=name)


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="name must be a string"):
        Communicator("127.0.0.1:1", name=7)


def test_a_bad_name_of_the_environment_is_made_printable(master: MasterNode) -> None:
    code = "import sys, pccl\ncomm = pccl.Communicator(sys.argv[1])\ncomm.connect()\nprint(ascii(comm.name))"
    command = [sys.executable, "-c", code, address_of(master)]
    environment = {**ENVIRONMENT, "PCCL_PEER_NAME": "\x1b[2Jevil\n"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout.strip() == "'?[2Jevil?'"
    assert "\x1b" not in ended.stderr
    assert "PCCL_PEER_NAME" in ended.stderr


def test_a_loss_is_told_by_name(master: MasterNode) -> None:
    with ExitStack() as stack:
        comms = team(stack, master, "red", "green", "blue")
        short, label = comms[2].uuid.hex[:8], f"blue ({comms[2].uuid.hex[:8]})"
        everybody = [comm.group(comm.members) for comm in comms[:2]]
        comms[2].close()
        waits = [Background(comm.all_reduce, np.ones(1000, np.float32)) for comm in comms[:2]]
        errors = [wait.error() for wait in waits]
        for error in errors:
            assert isinstance(error, pccl.PeerLostError)
            assert f"peer {label}" in str(error)
        waits = [
            Background(functools.partial(one.barrier, group=group, survivors=False))
            for one, group in zip(comms[:2], everybody, strict=True)
        ]
        for error in [wait.error() for wait in waits]:
            assert isinstance(error, pccl.PeerLostError)
            assert error.names == ("blue",)
            assert f"rank 2 (blue, {short})" in str(error)


def test_the_log_of_the_master_and_of_the_survivors() -> None:
    code = """
import sys, threading
from pccl import Communicator, MasterNode
with MasterNode("127.0.0.1:0") as master:
    address = f"127.0.0.1:{master.port}"
    with Communicator(address, name="red") as first, Communicator(address, name="green") as second:
        first.connect()
        joining = threading.Thread(target=second.connect)
        joining.start()
        first.wait_for_peers(2)
        joining.join()
        second.close()
        first.update_topology()
"""
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True).stderr
    for name, join in (("red", 1), ("green", 2)):
        assert re.search(rf"master: admitted peer {name} \(\w{{8}}, join {join}\) at 127\.0\.0\.1:\d+", said), said
    assert re.search(r"master: left peer green \(\w{8}, rank 1, join 2\) at 127\.0\.0\.1:\d+", said), said
    assert re.search(r"peer: peer green \(\w{8}, rank 1\) at 127\.0\.0\.1:\d+ left \(ended: ", said), said


def test_tables_show_names(master: MasterNode) -> None:
    with ExitStack() as stack:
        comms = team(stack, master, "red", "green")
        address = address_of(master)
        for columns in ("80", "200"):
            table = CliRunner().invoke(main, ["top", "--master", address, "--once"], env={"COLUMNS": columns})
            assert table.exit_code == 0, table.output
            assert "red" in table.output
            assert "green" in table.output
        told = json.loads(CliRunner().invoke(main, ["top", "--master", address, "--once", "--json"]).output)
        assert {member["uuid"]: member["name"] for member in told["members"]} == {
            str(comms[0].uuid): "red",
            str(comms[1].uuid): "green",
        }
