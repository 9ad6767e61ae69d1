"""Numbers of a program: they come to the events of the member, and through the master to whoever asks it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import PATIENCE, address_of, team
from performers import MasterProcess, Performer
from precopiers import Precopier
from states import Held, filled, sync_all

from pccl import ArgumentError, Communicator, MasterNode
from pccl._core.address import parse_endpoint
from pccl._watch import recording
from pccl._watch.diagnosis import diagnose_run
from pccl._watch.reports import JOINING, Diagnosis
from pccl.lab.ports import free_ports
from pccl.monitor.history import read_file


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
        reports = [event for event in recording.read(path).events if event["kind"] == "report"]
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


MISMATCHED = """
    import sys
    import numpy as np
    import pccl

    with pccl.Communicator(sys.argv[1], name=sys.argv[2], insecure=True) as comm:
        comm.connect(60)
        while comm.world_size < 3:
            comm.update_topology()
        arrays = [np.zeros(100, np.float32) for _ in range(3)]
        state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, f"w{i}") for i, array in enumerate(arrays)])
        for step in range(3):
            comm.sync_shared_state(state)
            print("synced", flush=True)
            sys.stdin.readline()
            state.push_revision()
            arrays[1] += 1
            if step == 0 and sys.argv[2] == "host-3":
                arrays[1] += 1  # it computes something else
                arrays[2] -= 1
"""


def test_a_member_that_had_other_content_is_an_event_and_a_line_at_it_and_at_the_master(tmp_path: Path):
    (port,) = free_ports(1)
    address, events, logs = f"127.0.0.1:{port}", tmp_path / "run.events", {}
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[str]:
            logs[name] = tmp_path / name
            log = stack.enter_context(logs[name].open("w"))
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
            process = stack.enter_context(subprocess.Popen([sys.executable, *arguments], **pipes))
            stack.callback(process.kill)
            return process

        def seen(kind: str) -> list[dict[str, Any]]:
            with contextlib.suppress(OSError, ValueError):
                return [event for event in read_file(str(events)) if event["kind"] == kind]
            return []

        def wait_for(condition: Callable[[], object]) -> None:
            deadline = time.monotonic() + PATIENCE
            while not condition():
                assert time.monotonic() < deadline
                time.sleep(0.1)

        master = start("master", "-m", "pccl.master", "--listen", address)
        assert "listening" in ((master.stdout and master.stdout.readline()) or "")
        start("web", "-m", "pccl", "web", "--master", address, "--events", str(events), "--listen", "127.0.0.1:0")
        peers = [start(f"host-{i}", "-c", textwrap.dedent(MISMATCHED), address, f"host-{i}") for i in (1, 2, 3)]

        def step() -> None:
            for peer in peers:
                print(file=peer.stdin, flush=True)
            for peer in peers:
                assert peer.stdout is not None
                assert peer.stdout.readline() == "synced\n"

        for peer in peers:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "synced\n"
        wait_for(lambda: len(seen("member") + seen("joined")) >= 3)
        assert seen("state_mismatch") == []
        step()
        wait_for(lambda: seen("state_mismatch"))
        step()
        (event,) = seen("state_mismatch")
        (host,) = {one["member"] for one in seen("member") + seen("joined") if one["name"] == "host-3"}
        assert (event["member"], event["revision"], event["repaired"]) == (host, 1, True)
        own = 'had other content of the shared state than its group, in entry "w1" (and 1 more), repaired at revision 1'
        assert logs["host-3"].read_text().count(own) == 1
        assert "other content" not in logs["host-1"].read_text() + logs["host-2"].read_text()
        (line,) = [line for line in logs["master"].read_text().splitlines() if "other content" in line]
        assert "host-3" in line
        assert line.endswith("repaired at revision 1")


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
