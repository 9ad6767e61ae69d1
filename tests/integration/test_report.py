"""Numbers of a program: they come to the events of the member, and through the master to whoever asks it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from peers import PATIENCE, address_of, team
from performers import MasterProcess, Performer
from precopiers import Precopier
from states import Held, filled, sync_all

from pccl import ArgumentError, Communicator, MasterNode, _recording
from pccl._address import parse_endpoint
from pccl._diagnosis import diagnose_run
from pccl._reports import JOINING, Diagnosis


def test_numbers_are_seen_everywhere(tmp_path: Path):
    path = tmp_path / "one.events"
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), events=path) as comm:
        comm.report(early=1)  # not connected: the master hears it later, and no file has it
        comm.connect()
        comm.report(loss=0.5, tokens=3_000_000, broken=math.nan)
        comm.report(loss=0.25)  # the master may hear it 0.2 s later, although nothing else is reported
        told = _reported(address_of(master), "loss", 0.25)
        (member,) = told.members
        assert member.report.keys() == {"early", "loss", "tokens", "broken"}
        assert member.report["tokens"] == 3e6
        assert math.isnan(member.report["broken"])
        assert told.to_json()["members"][0]["report"]["broken"] is None
        assert member.told_seconds is None  # it has called no operation
        assert told.generation >= 1
        reports = [event for event in _recording.read(path).events if event["kind"] == "report"]
        assert [(event["name"], event["value"]) for event in reports] == [
            ("loss", 0.5),
            ("tokens", 3e6),
            ("broken", None),
            ("loss", 0.25),
        ]
        for i in range(14):
            comm.report(**{f"n{i}": i})
        told = _reported(address_of(master), "n13", 13)
        assert told.members[0].report.keys() == {"broken", "loss", *(f"n{i}" for i in range(14))}  # the last 16
        comm.update_topology()
        _told(address_of(master), lambda now: now.votes != told.votes)  # an answer serves all who ask in 100 ms


def test_numbers_from_before_connect_wait_for_nothing():
    """A member that does nothing hears and sends nothing for long. It used to sleep over them in one of four runs."""
    with MasterNode("127.0.0.1:0", heartbeat_limit=3600) as master:
        for number in range(16):
            with Communicator(address_of(master)) as comm:
                comm.report(early=number)
                comm.connect()
                _reported(address_of(master), "early", number)


def _told(address: str, wanted: Callable[[Diagnosis], bool]) -> Diagnosis:
    """Returns the first answer of the master that is the wanted one."""
    deadline = time.monotonic() + PATIENCE
    while not wanted(told := diagnose_run(parse_endpoint(address))):
        assert time.monotonic() < deadline, told
        time.sleep(0.02)
    return told


def _reported(address: str, name: str, value: float) -> Diagnosis:
    """Returns what the master tells once it has heard this number of its one member."""
    return _told(address, lambda told: told.members[0].report.get(name) == value)


def test_the_next_master_hears_the_numbers_again():
    with MasterProcess() as master, Communicator(master.address) as comm:
        comm.connect()
        comm.report(loss=0.5)
        _reported(master.address, "loss", 0.5)
        master.kill()
        master.start()
        comm.update_topology()  # the run goes on
        _reported(master.address, "loss", 0.5)


def test_the_master_tells_the_shared_state_of_each_member():
    with team([0, 0, 0]) as comms:
        assert [member.state_revision for member in comms[0].diagnose().members] == [None] * 3
        held = [Held(filled(1, 1000), revision=7) for _ in comms]
        sync_all(comms, held)
        for one in held:
            one.shared.push_revision()
            one.arrays[0] += 1
        held[2].arrays[0][5] += 1  # it computes something else
        sync_all(comms, held)
        deadline = time.monotonic() + PATIENCE
        while any(member.state_revision != 8 for member in comms[0].diagnose().members):  # one answer serves 100 ms
            assert time.monotonic() < deadline
            time.sleep(0.02)
        told = comms[0].diagnose()
        assert {member.state_hash for member in told.members} == {held[0].shared.hash()}
        assert [member.uuid for member in told.members if member.state_replaced] == [comms[2].uuid]
        assert told.to_json()["members"][0]["state_revision"] == 8


def test_the_master_tells_what_peers_do_on_their_way_into_the_run(tmp_path: Path):
    end = tmp_path / "end"
    master, member, newcomer = (Performer(Precopier, at, ()) for at in range(3))

    def await_joiners(*does: str) -> Diagnosis:
        return _told(address, lambda told: [one.does for one in told.joiners] == list(does))

    try:
        address = master.ask("serve")
        member.ask("join", address, 4, 1)
        os.kill(member.pid, signal.SIGSTOP)  # it gives nothing
        newcomer.tell("join", address, 4, 2)
        (joiner,) = await_joiners(JOINING[0]).joiners
        assert (joiner.done_bytes, joiner.eta_seconds) == (0, None)
        os.kill(member.pid, signal.SIGCONT)
        await_joiners(JOINING[1])
        for process in (member, newcomer):
            process.tell("train", str(end))
        await_joiners()
        end.touch()
    finally:
        for process in (master, member, newcomer):
            process.kill()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"a b": 1}, "1 to 32 letters"),
        ({"": 1}, "1 to 32 letters"),
        ({"x" * 33: 1}, "1 to 32 letters"),
        ({"länge": 1}, "1 to 32 letters"),
        ({"loss": "1"}, "must be a number"),
        ({"loss": True}, "must be a number"),
        ({"loss": None}, "loss must be a number, not NoneType"),
        ({"step": 1, "loss": np.ones(2)}, r"loss must be a number, not ndarray of shape \(2,\)"),
        ({"tokens": 10**400}, "tokens must be a number, not one beyond the range"),
        ({f"n{i}": i for i in range(17)}, "at most 16"),
    ],
)
def test_wrong_numbers(numbers: dict[str, float], words: str):
    with Communicator("127.0.0.1:1") as comm, pytest.raises(ArgumentError, match=words):
        comm.report(**numbers)
