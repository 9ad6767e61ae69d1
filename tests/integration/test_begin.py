"""Peers that may only join a run, that wait for a master, and what peers say of runs, waits and losses."""

from __future__ import annotations

import logging
import threading

import pytest
from peers import Background, address_of, form

from pccl import Communicator, ConnectError, MasterNode, PCCLTimeoutError, _waits
from pccl.lab.ports import free_ports

PATIENCE = 60


@pytest.fixture
def master() -> MasterNode:
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
        with pytest.raises(ConnectError, match="no run goes on"):
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
    with Communicator(address_of(master)) as later, pytest.raises(ConnectError, match="no run goes on"):
        later.connect(1, begin=begin)


def test_a_run_that_ends_while_a_peer_waits_to_join_it_is_not_begun_again(master: MasterNode) -> None:
    with Communicator(address_of(master)) as member, Communicator(address_of(master)) as late:
        member.connect()
        joining = Background(join_only, late)
        while not member.are_peers_pending(timeout=PATIENCE):
            pass
        member.close()
        assert "no run goes on" in str(joining.error())


def test_reconnect_may_only_join(master: MasterNode) -> None:
    with Communicator(address_of(master)) as comm:
        comm.connect()
        with pytest.raises(ConnectError, match="no run goes on"):
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


def test_a_peer_says_that_it_begins_a_run(master: MasterNode, capfd: pytest.CaptureFixture[str]) -> None:
    with Communicator(address_of(master)) as first, Communicator(address_of(master)) as second:
        first.connect()
        assert capfd.readouterr().err.count("begins a new run") == 1
        joining = Background(lambda: second.connect(timeout=PATIENCE))
        form(first, 2)
        joining.result()
        assert "begins a new run" not in capfd.readouterr().err


def test_survivors_say_whom_they_lost(master: MasterNode, capfd: pytest.CaptureFixture[str]) -> None:
    with Communicator(address_of(master)) as first, Communicator(address_of(master)) as second:
        first.connect()
        joining = Background(lambda: second.connect(timeout=PATIENCE))
        form(first, 2)
        joining.result()
        name = str(second.uuid)[:8]
        second.close()
        first.update_topology(timeout=PATIENCE)
    assert f"peer {name}, 127.0.0.1:" in (said := capfd.readouterr().err)
    assert said.count("lost; members left in the group: 1") == 1


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_peer_waits_for_a_master_that_starts_later(
    how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pccl._communicator.PAUSE_SECONDS", 0.01)
    if how == "environment":
        monkeypatch.setenv("PCCL_CONNECT_TIMEOUT_S", str(PATIENCE))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    tried = threading.Event()
    attempt = Communicator._attempt

    def counted(comm: Communicator, *arguments: object) -> None:
        counted.calls += 1
        if counted.calls == 20:
            tried.set()
        attempt(comm, *arguments)

    counted.calls = 0
    monkeypatch.setattr(Communicator, "_attempt", counted)
    with Communicator(address) as comm:
        connecting = Background(lambda: comm.connect(1, wait_for_master=PATIENCE if how == "argument" else None))
        assert tried.wait(PATIENCE)
        with MasterNode(address):
            connecting.result()
            comm.close()
    assert capfd.readouterr().err.count("connect failed: could not connect to the master") == 1


def test_the_wait_for_a_master_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pccl._communicator.PAUSE_SECONDS", 0.01)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Communicator(address) as comm:
        with pytest.raises(ConnectError, match="is it running"):
            comm.connect(1, wait_for_master=0.1)
        with pytest.raises(PCCLTimeoutError):
            comm.connect(1, wait_for_master=PATIENCE, timeout=0.1)
        for wrong in (-1, float("nan"), "long"):
            with pytest.raises(ValueError, match="wait_for_master"):
                comm.connect(1, wait_for_master=wrong)  # type: ignore[arg-type]
        monkeypatch.setenv("PCCL_CONNECT_TIMEOUT_S", "soon")
        with pytest.raises(ValueError, match="PCCL_CONNECT_TIMEOUT_S"):
            comm.connect(1)


def test_wait_for_peers_says_how_many_are_there(
    master: MasterNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_waits, "FIRST_SECONDS", 0.0)
    with Communicator(address_of(master)) as comm, caplog.at_level(logging.WARNING, "pccl"):
        comm.connect()
        with pytest.raises(PCCLTimeoutError):
            comm.wait_for_peers(3, timeout=0.2)
    assert [record.getMessage().partition(" s: ")[2] for record in caplog.records] == ["1 of 3 peers are there"]
