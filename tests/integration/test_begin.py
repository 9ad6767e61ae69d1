"""Peers that may only join a run, that wait for a master, and what peers say of runs, waits and losses."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from peers import ENVIRONMENT, Background, address_of, form

from pccl import Communicator, ConnectError, MasterNode, PCCLTimeoutError
from pccl._host import waits
from pccl.lab.ports import free_ports

PATIENCE = 60


@pytest.fixture
def master() -> Iterator[MasterNode]:
    with MasterNode("127.0.0.1:0") as node:
        yield node


def join_only(comm: Communicator) -> None:
    comm.connect(1, begin=False, timeout=PATIENCE)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_peer_that_may_only_join_begins_no_run(master: MasterNode, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "environment":
        monkeypatch.setenv("PCCL_JOIN", "1")
    begin = False if how == "argument" else None
    with Communicator(address_of(master)) as first, Communicator(address_of(master)) as late:
        with pytest.raises(ConnectError, match="no run is under way"):
            late.connect(1, begin=begin)
        first.connect(1, begin=True)
        joining = Background(lambda: late.connect(1, begin=begin, timeout=PATIENCE))
        form(first, 2)
        joining.result()
        assert late.world_size == first.world_size == 2
        first.close()
        late.update_topology(timeout=PATIENCE)
        assert late.world_size == 1
        late.close()
    with Communicator(address_of(master)) as later, pytest.raises(ConnectError, match="no run is under way"):
        later.connect(1, begin=begin)


def test_a_run_that_ends_while_a_peer_waits_to_join_it_is_not_begun_again(master: MasterNode) -> None:
    with Communicator(address_of(master)) as member, Communicator(address_of(master)) as late:
        member.connect()
        joining = Background(join_only, late)
        while not member.are_peers_pending(timeout=PATIENCE):
            pass
        member.close()
        assert "no run is under way" in str(joining.error())


def test_reconnect_may_only_join(master: MasterNode) -> None:
    with Communicator(address_of(master)) as comm:
        comm.connect()
        with pytest.raises(ConnectError, match="no run is under way"):
            comm.reconnect(1, begin=False)
        comm.connect(begin=True)
        assert comm.world_size == 1


def test_a_list_of_masters_is_searched_for_a_run_to_join() -> None:
    ports = free_ports(2)
    listed = ",".join(f"127.0.0.1:{port}" for port in ports)
    with (
        MasterNode(f"127.0.0.1:{ports[0]}", masters=listed) as first,
        MasterNode(f"127.0.0.1:{ports[1]}", masters=listed),
        Communicator(listed) as member,
        Communicator(listed) as late,
    ):
        with pytest.raises(ConnectError):
            late.connect(1, begin=False)
        member.connect()
        first.detach()
        first.wait(timeout=PATIENCE)
        member.update_topology(timeout=PATIENCE)  # at the standby
        joining = Background(join_only, late)
        form(member, 2)
        joining.result()


def test_each_master_of_a_list_is_named_with_its_answer() -> None:
    dead, standby = (f"127.0.0.1:{port}" for port in free_ports(2))
    with MasterNode(standby, masters=f"{dead},{standby}"), Communicator(f"nobody.invalid:1,{dead},{standby}/bert") as comm:
        with pytest.raises(ConnectError) as caught:
            comm.connect(1)
    unknown, refused, idle = caught.value.detail.split("; ", 2)
    assert "the name nobody.invalid cannot be resolved" in unknown
    assert f"at {dead}/bert: Connection refused" in refused
    assert f"at {standby}/bert, the master refused this peer: no run is under way" in idle


def said(code: str, address: str, **environment: str) -> str:
    """What a process of its own logs; pytest configures `logging`, which takes the core's lines from standard error."""
    code = f"import sys, threading\nfrom pccl import Communicator, MasterNode\naddress = sys.argv[1]\n{code}"
    command = [sys.executable, "-c", code, address]
    ended = subprocess.run(command, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


TWO_PEERS = """
with Communicator(address) as first, Communicator(address) as second:
    first.connect()
    joining = threading.Thread(target=second.connect)
    joining.start()
    first.wait_for_peers(2)
    joining.join()
    print(f"name {second.name} ({str(second.uuid)[:8]})", file=sys.stderr, flush=True)
    second.close()
    first.update_topology()
"""


def test_peers_say_who_begins_a_run_and_whom_they_lost(master: MasterNode) -> None:
    text = said(TWO_PEERS, f"{address_of(master)}/bert")
    before, _, after = text.partition("name ")
    assert before.count("is among the first of a run") == text.count("is among the first of a run") == 1
    assert f"none was under way at the master {address_of(master)}/bert" in before
    label = after.splitlines()[0].replace(")", ", rank 1)")
    assert f"peer {label} at 127.0.0.1:" in after
    assert len(re.findall(r"left \(ended: .*\); members left in the group: 1", after)) == 1


LATE_MASTER = """
from pccl._peer import connection as _connection
_connection.PAUSE_SECONDS = 0.01
tried, attempts, attempt = threading.Event(), [], Communicator._attempt

def counted(*arguments):
    attempts.append(0)
    if len(attempts) == 20:
        tried.set()
    attempt(*arguments)

Communicator._attempt = counted
with Communicator(address) as comm:
    connecting = threading.Thread(target=lambda: comm.connect(1, wait_for_master=PATIENCE))
    connecting.start()
    assert tried.wait(30)
    with MasterNode(address):
        connecting.join()
        assert comm.alive
        comm.close()
"""


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_peer_waits_for_a_master_that_starts_later(how: str) -> None:
    """And logs once why it cannot connect."""
    environment = {"PCCL_CONNECT_TIMEOUT_S": str(PATIENCE)} if how == "environment" else {}
    code = LATE_MASTER.replace("PATIENCE", "None" if environment else str(PATIENCE))
    text = said(code, f"127.0.0.1:{free_ports(1)[0]}", **environment)
    assert text.count("connect failed: cannot connect to the master") == 1
    assert "pccl ERR" not in text


def test_the_wait_for_a_master_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pccl._peer.connection.PAUSE_SECONDS", 0.01)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Communicator(address) as comm:
        with pytest.raises(ConnectError, match="is it running"):
            comm.connect(1, wait_for_master=0.1)
        with pytest.raises(PCCLTimeoutError):
            comm.connect(1, wait_for_master=PATIENCE, timeout=0.1)
        for wrong in (-1, float("nan"), "long"):
            with pytest.raises(ValueError, match="wait_for_master"):
                comm.connect(1, wait_for_master=wrong)
        monkeypatch.setenv("PCCL_CONNECT_TIMEOUT_S", "soon")
        with pytest.raises(ValueError, match="PCCL_CONNECT_TIMEOUT_S"):
            comm.connect(1)


def test_wait_for_peers_says_how_many_are_there(
    master: MasterNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.0)
    with Communicator(address_of(master)) as comm, caplog.at_level(logging.WARNING, "pccl"):
        comm.connect()
        with pytest.raises(PCCLTimeoutError):
            comm.wait_for_peers(3, timeout=0.2)
    assert [record.getMessage().partition(" s: ")[2] for record in caplog.records] == ["1 of 3 peers are there"]
