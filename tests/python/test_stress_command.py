"""The command line of `pccl stress`."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from stress import backends, command

from pccl.cli import main
from pccl.lab.folder import alone_in
from pccl.stress import program


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "1"], "range"),
        (["--faults", "kick=1"], "'kick' is no kind of fault"),
        (["--seconds", "5", "--minutes", "1"], "exclude each other"),
        (["--backend", "mpi"], "mpi"),
        (["--out", "/dev/null/x"], "cannot write"),
        (["--plant", "wrong-sum"], "No such option"),
        (["--backend", "gloo", "--standbys", "1"], "one master"),
        (["--workload", "sgd"], "sgd"),
        (["--workload", "async", "--backend", "gloo"], "backend pccl alone"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, words):
    result = CliRunner().invoke(main, ["stress", "--out", str(tmp_path), *arguments])
    assert result.exit_code == 2, result.output
    assert words in result.output


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with alone_in(tmp_path):
        result = CliRunner().invoke(main, ["stress", "--out", str(tmp_path), "--seconds", "1"])
    assert result.exit_code == 2
    assert "another run writes to" in result.output


@pytest.mark.parametrize("name", ["events.jsonl", "summary.json", "throughput.png", "peer-1.log", "master-2.log", "other.log"])
def test_results_of_another_run_are_not_overwritten(tmp_path, name):
    path = tmp_path / name
    path.write_text("a result\n")
    log = ["--log", str(path)] if name == "other.log" else []
    result = CliRunner().invoke(main, ["stress", "--out", str(tmp_path), "--seconds", "1", *log])
    assert result.exit_code == 2
    assert name in result.output
    assert ("--log" if log else "--out") in result.output
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {name: "a result\n"}


def test_training_needs_torch_and_nothing_else_does(tmp_path, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    result = CliRunner().invoke(main, ["stress", "--workload", "diloco", "--out", str(tmp_path), "--seconds", "1"])
    assert result.exit_code == 2
    assert "--workload diloco needs torch: pip install torch" in result.output
    assert backends.BACKENDS["pccl"].missing() == []


def test_help_says_what_it_does():
    text = CliRunner().invoke(command.stress, ["--help"]).output
    for word in ("--fault-every", "--faults", "--backend", "--workload", "Exit status", "kill (SIGKILL"):
        assert word in text


def test_a_wheel_names_the_missing_program(monkeypatch, tmp_path):
    monkeypatch.setattr(program, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    result = CliRunner().invoke(main, ["stress", "--seconds", "1"])
    assert result.exit_code == 2
    assert "--program is missing" in result.output


def test_pccl_itself_is_not_tested_from_a_folder_outside_its_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["stress", "--seconds", "1"])
    assert result.exit_code == 2
    assert "--program is missing" in result.output
    assert not list(tmp_path.iterdir())
    assert "[required outside a checkout]" in " ".join(CliRunner().invoke(main, ["stress", "--help"]).output.split())
