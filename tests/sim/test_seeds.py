"""`pccl sim`: its exit status and what it prints, and seeds that once failed."""

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from pccl.cli import main
from pccl.cli.sim import _C, FAULTS  # type: ignore[attr-defined]


def run(*arguments):
    return CliRunner().invoke(main, ["sim", *arguments])


@pytest.mark.parametrize(
    "seed",
    [
        161,  # a mismatch and a loss of one call, in another order than the others met them
        251,
        714146,
        1013730,
        1025488,
        313,  # a loss that only another group had heard of when the master was lost
        500435,  # a mismatch of a call that a member had begun an epoch earlier
        504061,  # a vote that was sent twice to the master that took the run up
        2012112,  # losses that only some had heard of when the master was lost
        2013523,
        265,  # a member that came back to a gathering master before the end of its older connection was seen
        813,  # members that left a standby just before it took the run up
        14315,  # and then took it up elsewhere, beside it
        2061167,  # a newcomer that began a new run at a master that had just given one up
        16739,  # a HELLO in the middle of a connection
        6012,  # such a loss, of somebody who came back to the next master
        928,  # a newcomer that was refused for links made for the candidate of the master before
        8167,  # newcomers that heard of the next run before others, which refused their hellos
        20933,  # a process without power, whose broken links spoke against two that lived
        52455,  # of two that had lost their links to a third both were expelled
        2007606,
        2024834,  # one that was let in, while the others never heard that they were
        393,  # newcomers that went on beside more than half of those that had not heard of them
        4669,  # or took the run up beside these
        38550,  # one that had no links to the expelled one, and said so of a candidate only
        48493,  # a newcomer that adopted the end of a vote which a master had told it of that was lost at once
        22180,  # a member that could not be asked for its promise, for want of memory
        50014582,  # a generation that was given again, since nobody was left who knew of it
        123832,  # a list of members that was read in a changed frame, and went to all others
        133351,  # a mismatched op whose name a member uses once more, and nobody meets it there
        154818,  # an epoch of which nobody is left, told to two, while one that was expelled goes on
        61394,  # a cancelled call of the dead, which the only survivor took for its next one with newcomers
        126606,  # one of after a vote whose end a member heard from the next master
        220644,  # a call that began under the name of the mismatched one before it
    ],
)
def test_seed_passes(seed):
    result = run("--seed", str(seed))
    assert result.exit_code == 0, result.output


def test_no_part_of_a_run_passes_for_its_majority():
    """Three of seven, whose master had lost the other four one after another."""
    result = run("--seed", "6517", "--peers", "7", "--masters", "2", "--faults", "partition")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("seed", "masters"),
    [
        (734, 2),  # members whose master was refused memory for an epoch, and who took the run up beside it
        (1103, 2),  # in the same generation
        (1333, 2),
        (577, 1),  # a member that was refused for ever, since its master had no memory for what it knew
        (354, 1),
    ],
)
def test_refused_memory_harms_no_run(seed, masters):
    result = run("--seed", str(seed), "--masters", str(masters), "--faults", "memory")
    assert result.exit_code == 0, result.output
    assert "refused allocations" in result.output


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
