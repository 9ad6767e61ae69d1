"""`pccl doctor`: it names what is wrong with this machine or the way to a run, and says what to do."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from reports import member

import pccl
from pccl import Diagnosis, Result
from pccl.cli import doctor, main, top, trial


def findings(*arguments: str, status: int | None = None) -> dict[str, list[doctor.Finding]]:
    """By check."""
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    found: dict[str, list[doctor.Finding]] = {}
    for one in json.loads(result.output):
        found.setdefault(one["check"], []).append(doctor.Finding(**one))
    assert result.exit_code == any(one.verdict == "problem" for some in found.values() for one in some)
    assert status is None or result.exit_code == status
    assert all(bool(one.advice) == (one.verdict != "ok") for some in found.values() for one in some)
    return found


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("PCCL_KEYS", "PCCL_CERT", "PCCL_KEY", "PCCL_CA", "PCCL_INSECURE", "PCCL_CONGESTION_CONTROL", "PCCL_MASTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def result(monkeypatch):
    """Of a trial that goes well. The fixture `real` has trials made."""
    found = trial.Trial((), (), "", 100.0, keeps_events=True)
    monkeypatch.setattr(doctor, "_trial", lambda: found)
    return found


@pytest.fixture
def real(result, monkeypatch):
    monkeypatch.setattr(doctor, "_trial", functools.cache(trial.run))


def test_each_check_tells_something():
    assert set(findings()) == {"build", "torch", "environment", "keys", "ports", "limits", "clock", "network", "trial"}
    table = CliRunner().invoke(main, ["doctor"]).output
    assert pccl.__version__ in table


@pytest.mark.usefixtures("real")
def test_wrong_variables_are_named_with_what_to_do(monkeypatch):
    unknown = "_".join(("PCCL", "MASTRE"))
    given = {
        unknown: "host:48148",
        "PCCL_DATA_THREADS": "many",
        "PCCL_INTERFACE": "none9",
        "PCCL_MASTER": "host",
        "PCCL_MEMBERSHIP": "rigid",
        "PCCL_MIN_MEMBERS": "3",  # right; the two peers of the trial do not wait for a third one
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = findings(status=1)
    of = {name: [one for one in found["environment"] if name in one.seen] for name in given}
    assert not of.pop("PCCL_MIN_MEMBERS")
    assert {name: len(some) for name, some in of.items() if name not in ("PCCL_INTERFACE", "PCCL_MASTER")} == {
        unknown: 1,
        "PCCL_DATA_THREADS": 1,
        "PCCL_MEMBERSHIP": 1,
    }
    assert of[unknown][0].verdict == "warning"
    assert "did you mean PCCL_MASTER?" in of[unknown][0].seen
    assert of["PCCL_DATA_THREADS"][0].advice == "set it to a number from 0 to 16"
    assert of["PCCL_MEMBERSHIP"][0].advice == "set it to elastic, fixed or strict"
    assert any("address 'host' has no port" in one.seen for one in of["PCCL_MASTER"])
    assert any("interface none9" in one.seen and "PCCL_INTERFACE" in one.advice for one in found["environment"])
    assert [one.verdict for one in found["trial"]] == ["ok"]


@pytest.mark.usefixtures("real")
def test_a_trial_names_what_keeps_peers_from_reducing(monkeypatch):
    limit = "from resource import *; setrlimit(RLIMIT_NOFILE, (16, 16))"
    monkeypatch.setattr(trial, "PROGRAM", trial.PROGRAM.replace("; ", f"; {limit}; "))
    failure, *warnings = findings(status=1)["trial"]
    assert failure.verdict == "problem"
    named = "Too many open files|the system refused .*descriptors"  # depends on how many the process begins with
    assert any(re.search(named, one.seen) for one in (failure, *warnings))


@pytest.mark.usefixtures("real")
def test_a_trial_that_takes_too_long_shows_its_log(monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 2.0)
    line = "2026-11-27 20:00:00.000 pccl WARN [1] peer: no descriptor is left"
    monkeypatch.setattr(trial, "PROGRAM", f"import sys, time; print({line!r}, file=sys.stderr, flush=True); time.sleep(60)")
    failure, warning = findings(status=1)["trial"]
    assert failure.seen == "two peers of this host cannot reduce: the peers have not reduced within 2 s"
    assert warning.seen == "no descriptor is left"


def test_events_that_cannot_be_kept(result, monkeypatch):
    monkeypatch.setattr(doctor, "_trial", lambda: result._replace(keeps_events=False))
    assert "PCCL_EVENTS" in findings()["trial"][1].advice


@pytest.mark.usefixtures("real")
def test_a_trial_leaves_the_directory_of_the_events_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PCCL_EVENTS", str(tmp_path))
    assert [one.verdict for one in findings()["trial"]] == ["ok"]
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("real")
def test_events_that_cannot_be_written_where_they_should(monkeypatch, tmp_path):
    monkeypatch.setenv("PCCL_EVENTS", str(tmp_path / "none" / "%p.events"))
    assert "none/%p.events: No such file or directory" in findings()["trial"][1].seen


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("level", ["ERR", "none"])
def test_a_trial_reports_variables_whatever_is_logged(level, monkeypatch):
    monkeypatch.setenv("PCCL_LOG_LEVEL", level)
    monkeypatch.setenv("_".join(("PCCL", "TYPO")), "1")
    assert any("PCCL_TYPO is unknown" in one.seen for one in findings()["environment"])


@pytest.mark.usefixtures("real")
def test_a_trial_imports_nothing_from_the_working_directory(monkeypatch, tmp_path):
    for name in ("json", "pccl"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    assert [one.verdict for one in findings()["trial"]] == ["ok"]


@pytest.mark.parametrize(("soft", "verdict"), [(64, "problem"), (1024, "warning"), (4096, "ok")])
def test_file_descriptors(soft, verdict, monkeypatch):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (soft, 4096))
    one = findings()["limits"][0]
    assert (one.verdict, "ulimit -n 4096" in one.advice) == (verdict, verdict != "ok")


def test_the_run_of_the_environment(monkeypatch):
    with pccl.MasterNode("127.0.0.1:0") as master:
        monkeypatch.setenv("PCCL_MASTER", f"127.0.0.1:{master.port}")
        (one,) = findings()["master"]
    assert "serves no run" in one.seen


def test_a_congestion_control_that_the_kernel_refuses(monkeypatch):
    monkeypatch.setenv("PCCL_CONGESTION_CONTROL", "nothing")
    (one,) = (one for one in findings(status=1)["network"] if one.verdict == "problem")
    assert "PCCL_CONGESTION_CONTROL=nothing" in one.seen
    assert "modprobe tcp_nothing" in one.advice


@pytest.mark.parametrize("given", ["option", "environment"])
def test_keys_that_cannot_be_used(given, monkeypatch, tmp_path):
    path = tmp_path / "run.peer"
    path.write_text("no keys")
    path.chmod(0o600)
    arguments = ["--keys", str(path)] if given == "option" else []
    if given == "environment":
        monkeypatch.setenv("PCCL_KEYS", str(path))
    (one,) = findings(*arguments, status=1)["keys"]
    assert str(path) in one.seen


def test_keys_that_can_be_used(tmp_path):
    assert CliRunner().invoke(main, ["keys", str(tmp_path / "run")]).exit_code == 0
    (one,) = findings("--keys", str(tmp_path / "run.peer"))["keys"]
    assert one.verdict == "ok"


def test_a_port_that_is_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not doctor._is_free(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("ranges", "found"),
    [("", False), ("48148", True), ("8080,48000-48150", True), ("48000-48147,48149", False), ("48148-48148", True)],
)
def test_reserved_ports(ranges, found):
    assert doctor._is_in(48148, ranges) == found


def test_a_file_that_is_not_there_is_as_its_default(tmp_path: Path):
    assert doctor._read(str(tmp_path / "none"), "otherwise") == "otherwise"


def test_a_master_that_is_not_there():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        (one,) = findings("--master", f"127.0.0.1:{port}", status=1)["master"]
    assert f"127.0.0.1:{port}" in one.seen
    assert f"open TCP port {port}" in one.advice


def test_a_master_whose_name_is_unknown():
    (one,) = findings("--master", "nowhere.invalid:48148", status=1)["master"]
    assert "nowhere.invalid cannot be resolved" in one.seen
    assert "check the name" in one.advice


def test_a_master_without_members():
    with pccl.MasterNode("127.0.0.1:0") as master:
        (one,) = findings("--master", f"127.0.0.1:{master.port}")["master"]
    assert one.verdict == "ok"
    assert "the master serves no run: it has no members yet, or this is a standby" in one.seen


def test_members_that_can_and_that_cannot_be_dialled(monkeypatch):
    with socket.socket() as listens, socket.socket() as closed:
        for one in (listens, closed):
            one.bind(("127.0.0.1", 0))
        listens.listen()
        good, bad = (
            dataclasses.replace(member(number), address=f"127.0.0.1:{one.getsockname()[1]}", name=name)
            for number, one, name in ((1, listens, "good"), (2, closed, "bad"))
        )
        monkeypatch.setattr(top, "diagnose_run", lambda *_, **__: Diagnosis((), (good, bad), (), 5.0))
        found = findings("--master", "127.0.0.1:1")
    assert "members: 2" in found["master"][0].seen
    assert [one.seen for one in found["member"]] == [f"rank 0 (bad, 00000002) at {bad.address}: connection refused"]


def test_a_master_beyond_loopback_without_keys(monkeypatch):
    for name in ("PCCL_KEYS", "PCCL_CERT", "PCCL_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    (one,) = findings("--master", "192.0.2.1:48148", status=1)["master"]
    assert one.seen.count("192.0.2.1:48148") == 1
    assert "give keys" not in one.seen
    assert one.advice.startswith("give keys")


def test_a_master_that_refuses_the_keys(monkeypatch):
    def refuses(*_arguments: object, **_named: object) -> Diagnosis:
        raise pccl.UsageError(Result.INVALID_ARGUMENT, "diagnose", "the keys are those of another run")

    monkeypatch.setattr(top, "diagnose_run", refuses)
    (one,) = findings("--master", "127.0.0.1:1", status=1)["master"]
    assert one.seen == "127.0.0.1:1: the keys are those of another run"
    assert "--keys" in one.advice


def test_a_wrong_list_of_masters():
    result = CliRunner().invoke(main, ["doctor", "--master", "nowhere"])
    assert result.exit_code == 2
    assert "--master" in result.output


@pytest.mark.parametrize(("days", "words"), [(-365, "365 days behind"), (365, "365 days ahead")])
def test_a_clock_that_is_a_year_off(days, words, monkeypatch):
    """By the files of the package, and by the hardware clock, which alone tells of a clock that is ahead."""
    now = time.time()
    monkeypatch.setattr(doctor.time, "time", lambda: now + days * 86400)
    if days > 0:
        monkeypatch.setattr(doctor, "_times", lambda: iter([("the hardware clock rtc0", now, True)]))
    (found,) = findings()["clock"]
    assert found.verdict == "problem"
    assert words in found.seen, found.seen
