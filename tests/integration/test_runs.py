"""One master, or a master and its standby, serves several runs, and what happens in one does not touch another."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from frame_numbers import TYPES
from performers import PATIENCE, MasterProcess, Performer, keys_of_peers
from run_peers import RunPeer

import pccl
from pccl import _native
from pccl._core.address import fill_socket_address, parse_endpoint
from pccl._run.master import RunState, run_state
from pccl._watch.diagnosis import runs_at
from pccl.lab.ports import free_ports

pytestmark = pytest.mark.timeout(120)

QUIET = {"PCCL_LOG_LEVEL": "ERR"}
MOST_RUNS = 64


class Runs:
    """Peers by run."""

    def __init__(self) -> None:
        self._all: list[Performer] = []

    def start(self, address: str, count: int, recovery: float = PATIENCE) -> list[Performer]:
        made = [Performer(RunPeer, len(self._all) + at, (address, recovery), QUIET) for at in range(count)]
        self._all += made
        ask(made, "join", count)
        return made

    def kill(self) -> None:
        for one in self._all:
            one.kill()


def ask(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


@pytest.fixture
def runs() -> Iterator[Runs]:
    made = Runs()
    try:
        yield made
    finally:
        made.kill()


def members_of(address: str) -> int:
    """Of the run, as `pccl top` shows it."""
    return len(json.loads(command("top", address, "--once", "--json"))["members"])


def command(name: str, address: str, *options: str) -> str:
    words = [sys.executable, "-m", "pccl", name, "--master", address, *options]
    told = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **keys_of_peers()}, timeout=PATIENCE)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_runs_know_nothing_of_each_other(runs):
    with MasterProcess() as master:
        plain = runs.start(master.address, 2)
        alpha = runs.start(f"{master.address}/alpha", 3)
        beta = runs.start(f"{master.address}/beta-2.x", 2)
        assert [ask(one, "reduce") for one in (plain, alpha, beta)] == [[2.0] * 2, [3.0] * 3, [2.0] * 2]
        for member in (*plain, *beta):
            member.tell("reduce", 300)
        alpha[0].kill()
        assert ask(alpha[1:], "reduce") == [2.0] * 2
        assert [member.answer() for member in (*plain, *beta)] == [2.0] * 4
        assert [one.ask("members") for one in (plain[0], alpha[1], beta[0])] == [2, 2, 2]
        told = command("info", master.address)
        assert "runs of these masters: one without a name (peers: 2), /alpha (peers: 2), /beta-2.x (peers: 2)" in told
        assert "/alpha (peers: 2)" in command("top", f"{master.address}/none", "--once")
        ask(alpha[1:], "leave")
        assert (members_of(f"{master.address}/alpha"), members_of(f"{master.address}/beta-2.x")) == (0, 2)
        assert ask(runs.start(f"{master.address}/alpha", 1), "vote") == ["SUCCESS"]  # another run of this name
        assert ask(beta, "vote") == ["SUCCESS"] * 2


@pytest.mark.plain("speaks as a stranger to a run without keys")
def test_nonsense_under_a_name_closes_its_own_connection(runs):
    with MasterProcess() as master:
        alpha = runs.start(f"{master.address}/alpha", 2)
        host, port = master.address.split(":")
        names = b"alpha", b"", b"*", b"a/b", b"n" * 65
        for name in names:
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as stranger:
                body = bytes([len(name)]) + name
                header = struct.pack("<I2sHQQQ", len(body), b"PC", TYPES["RUN"], 0, 0, 0)
                with contextlib.suppress(ConnectionError):  # the master may be faster
                    stranger.sendall(header + body + b"nonsense" * 8)
                    assert stranger.recv(1) == b""
        assert ask(alpha, "vote") == ["SUCCESS"] * 2


def test_a_standby_takes_each_run_over_by_its_own_quorum(runs):
    ports = free_ports(2)
    masters = ",".join(f"127.0.0.1:{port}" for port in ports)
    first, standby = (MasterProcess(address, masters=masters) for address in masters.split(","))
    with first, standby:
        alpha = runs.start(f"{masters}/alpha", 3)
        beta = runs.start(f"{masters}/beta", 2, recovery=2.0)
        first.signal(signal.SIGSTOP)
        beta[0].kill()  # together with the master, so the other one is no majority
        first.kill()
        assert ask(alpha, "vote") == ["SUCCESS"] * 3
        assert ask(alpha, "reduce") == [3.0] * 3
        assert ask(beta[1:], "vote") == ["MASTER_CONNECTION_FAILED"]
        assert alpha[0].ask("members") == 3
        first.start()  # begins new runs, and not the one that the standby serves
        gamma = runs.start(f"{masters}/gamma", 2)
        assert ask(gamma, "reduce") == [2.0] * 2
        late = Performer(RunPeer, 9, (f"{masters}/alpha", PATIENCE), QUIET)
        try:
            late.tell("join", 4)
            assert ask(alpha, "join_more", 4) == [4] * 3
            late.answer()
            ask([*alpha, late], "leave")
        finally:
            late.kill()
        assert run_state(f"{masters}/alpha") is RunState.COMPLETED  # so the standby says
        for one in runs.start(f"{masters}/alpha", 2):  # at the first master
            one.kill()
        while (state := run_state(f"{masters}/alpha")) is RunState.SERVED:
            time.sleep(0.01)
        assert state is RunState.NONE


def test_places_of_runs_that_have_ended_are_used_again():
    with MasterProcess() as master:
        connect: Callable[[int], pccl.Communicator] = lambda number: join(f"{master.address}/{number}")  # noqa: E731
        made = [connect(number) for number in range(MOST_RUNS)]
        try:
            with pytest.raises(pccl.ConnectionFailedError, match="64 runs with names, its maximum"):
                connect(MOST_RUNS)
            made.append(join(master.address))  # the run without a name has a place of its own
            made.pop(7).close()
            made.append(connect(MOST_RUNS))
        finally:
            for one in made:
                one.close()


def test_programs_in_c_take_the_name_from_the_environment(monkeypatch):
    ffi, library = _native.ffi, _native.lib
    with pccl.MasterNode("127.0.0.1:0") as master:
        monkeypatch.setenv("PCCL_RUN", "of-c")
        params, out = ffi.new("pcclCommCreateParams_t *"), ffi.new("pcclComm_t **")
        fill_socket_address(params.master_address, ipaddress.ip_address("127.0.0.1"), master.port)
        assert library.pcclCreateCommunicator(params, out) == library.pcclSuccess
        try:
            assert library.pcclConnect(out[0]) == library.pcclSuccess
            with join(f"127.0.0.1:{master.port}"):  # that of Python is in its address
                assert runs_at(parse_endpoint(f"127.0.0.1:{master.port}")) == {"": 1, "of-c": 1}
        finally:
            library.pcclDestroyCommunicator(out[0])
        monkeypatch.setenv("PCCL_RUN", "of c")
        with pytest.raises(pccl.PCCLError, match="PCCL_RUN=of c: the name of a run has 1 to 64 letters"):
            pccl.Communicator("127.0.0.1:1")


def join(address: str) -> pccl.Communicator:
    comm = pccl.Communicator(address)
    try:
        comm.connect(1, timeout=PATIENCE)
    except BaseException:
        comm.close()
        raise
    return comm
