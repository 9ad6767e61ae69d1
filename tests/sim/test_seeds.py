"""`pccl sim`: its exit status and what it prints, and seeds that once failed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from pccl.cli import main
from pccl.cli.sim import _C, FAULTS  # type: ignore[attr-defined]

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments):
    return CliRunner().invoke(main, ["sim", *arguments])


def seeds_that_failed():
    """Of the table in docs/simulator.md: each seed with its options."""
    table = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8").partition("| seeds | what |")[2]
    for row in re.finditer(r"^\| ([\d, ]+)(?:\(`(.*?)`\) )?\|", table, re.MULTILINE):
        for seed in row[1].split(","):
            yield pytest.param([seed.strip(), *(row[2] or "").split()], id=seed.strip())


@pytest.mark.parametrize("arguments", list(seeds_that_failed()))
def test_seed_passes(arguments):
    result = run("--seed", *arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("fault", ["fork", "block", "memory"])
def test_each_late_fault_happens(fault):
    words = {"fork": "deaths held by a child", "block": "blocked threads", "memory": "refused allocations"}
    result = run("--seed", "1", "--seeds", "40", "--faults", fault)
    assert result.exit_code == 0, result.output
    assert [word for word in words.values() if word in result.output] == [words[fault]]


@pytest.mark.parametrize(("peers", "seeds"), [(20, 300), (300, 4)])
def test_many_peers_are_taken_over(peers, seeds):
    result = run("--seed", "1", "--seeds", str(seeds), "--peers", str(peers))
    assert result.exit_code == 0, result.output
    assert "takeovers" in result.output


def test_prints_what_happened():
    result = run("--seed", "1", "--seeds", "50", "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert "50 seeds from 1" in result.output
    assert "all passed" in result.output
    assert "ops committed" in result.output


def test_long_seed_with_chosen_faults():
    result = run("--seed", "3", "--peers", "16", "--masters", "2", "--minutes", "0.05", "--faults", "crash,stall")
    assert result.exit_code == 0, result.output
    assert "partitions" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "rain"], "'rain' is no fault"),
        (["--trace", "--seeds", "2"], "--trace is for one seed"),
        (["--peers", "1"], "2<=x<=1000"),
        (["--masters", "4"], "1<=x<=3"),
    ],
)
def test_wrong_arguments(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_trace_replays():
    command = [sys.executable, "-m", "pccl.cli", "sim", "--seed", "9", "--trace"]
    first, second = (subprocess.run(command, capture_output=True, check=True, timeout=60).stdout for _ in range(2))
    assert first == second
    assert b"peer 1: starts" in first


def test_interrupt():
    command = [sys.executable, "-m", "pccl.cli", "sim", "--seeds", "100000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "seeds" in process.stderr.readline()  # it is at work
        os.kill(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    assert "interrupted after" in out
    assert "Traceback" not in error


def test_fault_names_are_those_of_the_core():
    assert sum(FAULTS.values()) == _C.PCCL_SIM_ALL
