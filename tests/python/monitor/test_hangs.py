"""What recordings of several members say, and files that are none."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

import pccl
from pccl._watch import recording as _recording
from pccl._watch.recording import Event, Recording, RecordingError
from pccl.cli.dump import _report, command
from pccl.monitor import hangs

NOW = 1000.0


def operation(sequence: int | None = 1, *, ended: float | None = None, at: float = 900.0, **values: Any) -> Event:
    given = {
        "tag": 7,
        "epoch": 3,
        "members": 2,
        "subgroup": 0,
        "ids": [],
        "count": 4,
        "dtype": "float",
        "op": "sum",
        "codec": 0,
        "root": None,
    }
    begun = {"sequence": sequence, "began": None if sequence is None else at, "ended": ended, "error": None}
    return {"at": at, "kind": "operation", "collective": "all_reduce", **given, **begun, **values}


def recording(number: int, *events: Event, members: int = 2, **values: Any) -> Recording:
    joined = [
        {"at": 1.0, "kind": "joined", "member": f"0000000{one + 1}", "name": f"m{one + 1}", "epoch": 3} for one in range(members)
    ]
    given = {"path": "", "role": "peer", "process": 100 + number, "host": "h", "name": f"m{number}", "run_name": "", "run": 5}
    rest = {"group": 0, "uuid": UUID(int=number << 96), "opened": 1.0, "closed": False, "runs": True, "torn": 0}
    rest["taken"] = NOW
    epoch = {"at": 2.0, "kind": "epoch", "epoch": 3, "members": members}
    return Recording(**{**given, **rest, "events": [*joined, epoch, *events], **values})


def sentences(*recordings: Recording) -> list[str]:
    (judgement,) = hangs.judge(recordings, NOW)
    return judgement.sentences


def test_who_is_missing():
    done = operation(1, ended=890.0, at=880.0)
    (found,) = sentences(recording(1, done, operation(2)), recording(2, done, runs=False))
    first, _, second = found.partition("; ")
    assert first == (
        "m2 (00000002, process 102) has not entered all_reduce number 2 with tag 7 (4 float, sum), in which "
        "m1 (00000001, process 101) waits for 100 s"
    )
    assert (
        second == "its last operation, all_reduce number 1 with tag 7 (4 float, sum), ended 110 s ago, and its process has ended."
    )


def test_times_of_day_if_all_processes_have_ended():
    done = operation(1, ended=890.5, at=880.0)
    (found,) = sentences(recording(1, done, operation(2), runs=False), recording(2, done, runs=False))
    assert f"m1 (00000001, process 101) had waited since {hangs.clock(900.0)} when the processes ended; its last" in found
    assert found.endswith(f" ended at {hangs.clock(890.5)}, and its process has ended.")
    assert hangs.clock(890.5).endswith(".500")


def test_members_of_one_name_have_columns_of_their_own():
    done = operation(1, ended=901.0, bytes=16, algorithm="ring")
    recordings = [recording(number, done, members=3, name="vm" if number < 3 else "m3") for number in (1, 2, 3)]
    lines = list(_report(recordings, hangs.judge(recordings, NOW), 5))
    assert lines[-2].endswith("  vm (00000001)  vm (00000002)")
    assert "  m3  " in lines[-2]
    assert lines[2].endswith(f"last event: {hangs.clock(2.0)} epoch 3, 3 members")


def test_who_waits_elsewhere():
    call = {"at": 950.0, "kind": "call", "name": "update_topology", "ended": None, "error": None}
    found = sentences(recording(1, operation()), recording(2, call))
    assert found[0].endswith("; it waits in update_topology for 50 s.")
    assert found[1].startswith("m1 (00000001, process 101) has not called update_topology, in which m2 (")
    assert found[1].endswith("; it is in all_reduce number 1 with tag 7 (4 float, sum).")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (operation(), "All 2 members entered all_reduce number 1"),
        (
            operation(count=5),
            "Arguments of number 1 with tag 7 disagree: m1 (00000001, process 101) calls all_reduce (4 float, sum)",
        ),
        (
            operation(None),
            "m2 (00000002, process 102) has posted all_reduce with tag 7 (4 float, sum) 100 s ago, and it has not begun",
        ),
    ],
)
def test_other_hangs(second: Event, words: str):
    assert any(sentence.startswith(words) for sentence in sentences(recording(1, operation()), recording(2, second)))


def test_an_overwritten_operation_was_entered():
    assert "not entered" not in " ".join(sentences(recording(1, operation(2)), recording(2, operation(9, ended=950.0))))


def test_members_without_a_recording_are_named():
    (found,) = sentences(recording(1, operation(), members=3), recording(2, operation(), members=3))
    assert "nothing is known of m3 (00000003): read the recordings on their hosts" in found


def test_a_subgroup_concerns_its_members_alone():
    of_two = operation(subgroup=9, ids=["00000001", "00000002"])
    everyone = [recording(number, *([of_two] if number == 1 else []), members=3) for number in (1, 2, 3)]
    (found,) = sentences(*everyone)
    assert found.startswith("m2 (")


def test_nothing_hangs():
    assert sentences(recording(1, operation(ended=901.0)), recording(2)) == ["No operation is in flight."]


def test_arguments_that_disagreed_are_told_afterwards():
    refused = operation(2, at=890.0, ended=891.0, error="mismatch")
    assert sentences(recording(1, operation(1, ended=880.0), refused), recording(2, {**refused, "count": 9})) == [
        "No operation is in flight. The last refused operation ended 109 s ago. Arguments of number 2 with tag 7 disagree: "
        "m1 (00000001, process 101) calls all_reduce (4 float, sum), and m2 (00000002, process 102) all_reduce (9 float, sum)."
    ]


def test_what_began_after_a_recording_was_read_is_not_missing_there():
    done, later = operation(1, ended=890.0, at=880.0), operation(2, at=895.0)
    assert sentences(recording(1, done, taken=894.0), recording(2, done, later)) == ["No operation is in flight."]
    (found,) = sentences(recording(1, done, taken=896.0), recording(2, done, later))
    assert found.startswith("m1 (00000001, process 101) has not entered all_reduce number 2")


def test_a_member_that_was_lost_before_a_call_is_not_missing_there():
    left = {"at": 3.0, "kind": "left", "member": "00000002", "text": "", "epoch": 4}
    call = {"at": 890.0, "kind": "call", "name": "update_topology", "ended": None, "error": None}
    dead, newcomer = recording(2, operation(1, ended=6.0), runs=False), recording(3, members=3)
    assert sentences(recording(1, left, call, members=3), dead, newcomer) == [
        "m3 (00000003, process 103) has not called update_topology, in which m1 (00000001, process 101) waits for 110 s; it has "
        "entered no operation."
    ]


# ---- files ----


def a_file(folder: Path) -> Path:
    path = folder / "real.events"
    with pccl.MasterNode("127.0.0.1:0", events=path):
        pass
    return path


def test_hostile_files(tmp_path: Path):
    whole = a_file(tmp_path).read_bytes()
    path = tmp_path / "hostile.events"

    def refused(content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(RecordingError) as caught:
            _recording.read(path)
        found = CliRunner().invoke(command, [str(path)])
        assert found.exit_code == 1
        assert str(caught.value) in found.output
        return str(caught.value)

    assert "has no events of pccl" in refused(b"")
    assert "has no events of pccl" in refused(os.urandom(8192))
    assert "cut off: it has 5000 of" in refused(whole[:5000])
    assert "another version of pccl (format 9)" in refused(whole[:8] + b"\x09" + whole[9:])
    assert "its header counts 4294967295 records" in refused(whole[:20] + b"\xff" * 4 + whole[24:])
    # Records of noise have no meaning, but do no harm, and texts lose what a terminal would interpret.
    noise = whole[:4096] + os.urandom(len(whole) - 4096)
    path.write_bytes(noise)
    assert len(_recording.read(path).events) > 1000
    found = CliRunner().invoke(command, ["--json", str(path)])
    assert found.exit_code == 0
    assert found.output.replace("\n", "").isprintable()
    path.write_bytes(whole[:152] + b"\x1b[2J\0" + whole[157:])
    assert _recording.read(path).name == "?[2J"


def test_files_without_a_recording_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = a_file(tmp_path).read_bytes()
    (tmp_path / "begins.events").touch()
    (tmp_path / "reserved.events").write_bytes(bytes(8192))
    monkeypatch.setenv("PCCL_EVENTS", str(tmp_path))
    monkeypatch.setattr(_recording, "_is_own", lambda path: False)
    for arguments in ([], [str(tmp_path)]):  # as PCCL_EVENTS says; a directory
        found = CliRunner().invoke(command, arguments)
        assert (found.exit_code, found.stderr) == (0, "")
        assert "master" in found.output
    found = CliRunner().invoke(command, ["--run", "bert"])
    assert found.exit_code == 2
    assert "no member is of the run bert; runs that were found: one without a name" in found.stderr
    (tmp_path / "empty").mkdir()
    assert "empty has no file that ends with .events" in CliRunner().invoke(command, [str(tmp_path / "empty")]).stderr
    (tmp_path / "foreign.events").write_bytes(whole[:100])
    found = CliRunner().invoke(command, [])
    assert found.exit_code == 1
    assert "cut off" in found.stderr


def test_a_record_that_was_being_written_is_counted(tmp_path: Path):
    path = tmp_path / "torn.events"
    content = bytearray(a_file(tmp_path).read_bytes())
    content[4096 + 8 : 4096 + 16] = b"\1" * 8  # its serial is still 0
    path.write_bytes(content)
    assert _recording.read(path).torn == 1


def test_a_clock_that_was_set_back(tmp_path: Path):
    """The times of a living process are as if the clock had always been as it is now, so all processes of a host have one."""
    path, began = tmp_path / "real.events", time.time()
    with pccl.MasterNode("127.0.0.1:0", events=path):
        with path.open("r+b") as file:
            file.seek(32)
            (opened,) = struct.unpack("q", file.read(8))
            file.seek(32)
            file.write(struct.pack("q", opened + 3600 * 10**9))
        head, *_ = map(json.loads, CliRunner().invoke(command, ["--json", str(path)]).output.splitlines())
    assert head["runs"]
    assert began - 1 <= head["at"] <= time.time()


def test_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in ((tmp_path / "none", "cannot be read: No such file"), (tmp_path / "pipe", "is no file")):
        found = CliRunner().invoke(command, [str(path)])
        assert found.exit_code == 1
        assert words in found.output
