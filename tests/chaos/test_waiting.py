"""Who waits is told for whom, at the default level of the log."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from actors import PATIENCE, Actor, Ops, Reduce, check_agreement, troupe
from performers import MasterProcess
from test_hostile import listening_port

import pccl

DEFAULT_LEVEL = {"PCCL_LOG_LEVEL": ""}


def wait_for(log: Path, pattern: str) -> str:
    end = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, log.read_text() if log.exists() else "")):
        assert time.monotonic() < end, f"{log.name} never said {pattern!r}: {log.read_text()}"
        time.sleep(0.05)
    return found[0]


def test_a_newcomer_is_told_whose_update_it_waits_for(tmp_path):
    with MasterProcess(stderr=tmp_path / "master") as master, troupe(master.address, 1) as actors:
        fresh = Actor(master.address, 1, environment=DEFAULT_LEVEL, stderr=tmp_path / "fresh")
        actors.append(fresh)
        fresh.tell("connect")
        words = r"waiting to be admitted: 1 of 1 members has not called update_topology for 1\d s: "
        words += r"peer \S+ \(\w{8}, rank 0, join 1\) at 127\.0\.0\.1:\d+"
        wait_for(tmp_path / "fresh", words)
        wait_for(tmp_path / "master", words)
        actors[0].tell("form", 2)
        assert [actor.answer() for actor in actors] == [None, None]


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (10, r"1 of 2 members have sent nothing for it: peer \S+ \(\w{8}, rank \d\)"),
        (4_000_000, r"(peer \S+ \(\w{8}, rank \d\) has not started it|other members have not sent)"),
    ],
)
def test_a_peer_in_an_op_that_another_one_does_not_begin(tmp_path, count, why):
    work = [Ops("plain", (Reduce(count),))]
    with MasterProcess() as master, troupe(master.address, 1) as actors:
        alone = Actor(master.address, 1, environment=DEFAULT_LEVEL, stderr=tmp_path / "alone")
        actors.append(alone)
        alone.tell("join", 2)
        actors[0].tell("form", 2)
        assert [actor.answer() for actor in actors] == [None, None]
        alone.tell("follow", work)
        wait_for(tmp_path / "alone", rf"all-reduce with tag \d+ has waited for 1\d s: {why}")
        actors[0].tell("follow", work)
        check_agreement({actor.number: actor.answer() for actor in actors})


def test_an_op_that_gets_on_is_no_wait(tmp_path):
    """Two of three begin, and what they have for each other passes between them before the first look."""
    work = [Ops("plain", (Reduce(4_000_000),))]
    with MasterProcess() as master, troupe(master.address, 2, environment={"PCCL_SAME_HOST_MEMORY": "0"}) as actors:
        environment = {**DEFAULT_LEVEL, "PCCL_SAME_HOST_MEMORY": "0"}
        third = Actor(master.address, 2, environment=environment, stderr=tmp_path / "third")
        actors.append(third)
        third.tell("join", 3)
        for actor in actors[:2]:
            actor.tell("form", 3)
        assert [actor.answer() for actor in actors] == [None] * 3
        for actor in actors[1:]:
            actor.tell("follow", work)
        told = wait_for(tmp_path / "third", r"all-reduce with tag \d+ has waited for \d+ s")
        actors[0].tell("follow", work)
        check_agreement({actor.number: actor.answer() for actor in actors})
    assert int(told.split()[-2]) >= 20


def test_the_timeout_of_a_vote_names_who_has_not_called(monkeypatch):
    monkeypatch.setenv("PCCL_LOG_LEVEL", "ERR")
    missing = r"1 of 2 members.*peer \S+ \(\w{8}, rank 0, join 1\) at 127\.0\.0\.1:\d+.*the call stays in flight"
    with MasterProcess() as master, troupe(master.address, 1) as actors, pccl.Communicator(master.address) as comm:
        actors[0].tell("form", 2)
        comm.connect(1)
        comm.wait_for_peers(2, timeout=PATIENCE)
        assert actors[0].answer() is None
        with pytest.raises(pccl.PCCLTimeoutError, match=missing):
            comm.are_peers_pending(timeout=11)


def test_a_port_of_a_peer_is_named_as_the_possible_mistake():
    with MasterProcess() as master, troupe(master.address, 1) as actors:
        port = listening_port(actors[0].pid)
        with pccl.Communicator(f"127.0.0.1:{port}") as comm, pytest.raises(pccl.PCCLError) as caught:
            comm.connect(1)
        assert "is it the port of a pccl master, not of a peer?" in caught.value.detail
