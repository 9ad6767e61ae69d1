"""`pccl dump` of members that hang, and of members that were killed: it names who did not enter an operation."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from peers import PeerProcess, address_of, until

from pccl import Communicator, MasterNode
from pccl._watch import recording
from pccl.cli.dump import _event_text, command


def dump(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def kinds_in(path: Path) -> list[str]:
    return [event["kind"] for event in recording.read(path).events]


def test_names_who_did_not_enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PCCL_EVENTS", str(tmp_path))
    with MasterNode("127.0.0.1:0") as master:
        peers = []
        for name in ("ada", "bob", "cyd"):
            monkeypatch.setenv("PCCL_PEER_NAME", name)
            peers.append(PeerProcess(address_of(master)))
        try:
            for peer in peers:
                peer.tell("join", 3)
            assert [peer.answer() for peer in peers] == [3, 3, 3]
            for peer in peers:
                peer.tell("sum", 256)
            assert [peer.answer() for peer in peers] == [3, 3, 3]
            for peer in peers[:2]:
                peer.tell("sum", 1024)
            until(lambda: live(tmp_path) == 2)
            files = [str(path) for path in sorted(tmp_path.glob("*.events"))]
            assert len(files) == 4  # with the master's
            for hangs in (True, False):
                found = dump("--last", "2", *files)
                assert found.exit_code == 0, found.output
                first = found.output.splitlines()[0]
                assert first.startswith(
                    f"cyd ({uuid(files, 'cyd')}, process {peers[2].pid}) has not entered all_reduce number 2 with tag 0"
                )
                assert "(1,024 int64, sum), in which ada (" in first
                assert "and bob (" in first
                assert "its last operation, all_reduce number 1 with tag 0 (256 int64, sum), ended" in first
                assert first.endswith(" ago." if hangs else ", and its process has ended.")
                assert (" wait for " if hangs else " had waited since ") in first
                row = next(line for line in found.output.splitlines() if "number 2" in line and "8,192" in line)
                assert row.split()[-6:] == ["in", "flight", "in", "flight", "not", "entered"]
                for peer in peers:  # none is to notice the end of another one
                    peer.signal(signal.SIGSTOP)
                for peer in peers:
                    peer.kill()
            by_process = dump(str(peers[0].pid), "--json")
            assert by_process.exit_code == 0, by_process.output
            lines = [json.loads(line) for line in by_process.output.splitlines()]
            assert [line["kind"] for line in lines].count("recording") == 1
            assert lines[0]["runs"] is False
            operations = [line for line in lines if line["kind"] == "operation"]
            assert [one["bytes"] for one in operations] == [256 * 8, 1024 * 8]
            assert operations[0]["ended"] >= operations[0]["began"]
            assert operations[1]["ended"] is None
        finally:
            for peer in peers:
                peer.kill()


def live(folder: Path) -> int:
    """Operations in flight that have begun, of all members."""
    events = [event for path in folder.glob("*.events") for event in recording.read(path).events]
    return sum(event["kind"] == "operation" and event["began"] is not None and event["ended"] is None for event in events)


def uuid(files: list[str], name: str) -> str:
    return next(one.short for one in map(recording.read, files) if one.name == name)


def test_a_clean_end_leaves_nothing_behind():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), name="only") as comm:
        comm.connect()
        path = comm.event_file
        if path is None:
            pytest.skip("there is no /dev/shm")
        assert recording.read(path).name == "only"
        assert recording.read(path).runs
    assert not Path(path).exists()


def test_what_is_asked_for_stays_and_off_is_off(tmp_path: Path):
    kept = tmp_path / "here.events"
    with (
        MasterNode("127.0.0.1:0", events=tmp_path / "master.events") as master,
        Communicator(address_of(master), events=kept) as comm,
        Communicator(address_of(master), 1, events=False) as silent,
    ):
        comm.connect()
        assert comm.event_file == str(kept)
        assert silent.event_file is None
        comm.close()
        until(lambda: "left" in kinds_in(tmp_path / "master.events"))  # which no answer tells
    read = recording.read(kept)
    assert read.closed
    assert kinds_in(kept)[:3] == ["call", "joined", "epoch"]
    assert read.events[0]["name"] == "connect"
    assert kinds_in(tmp_path / "master.events")[:3] == ["joined", "vote", "epoch"]
    with pytest.raises(ValueError, match="1 to 1023 bytes"):
        Communicator("127.0.0.1:1", events="")


def test_a_member_that_left_in_order_is_not_lost():
    told = {"at": 1.0, "kind": "left", "member": "00000001", "name": "host-a"}
    for reason, word in (("died", "lost"), ("ended", "left"), ("9", "left")):
        assert f" {word} member 00000001, host-a, reason {reason}" in _event_text({**told, "reason": reason})
