"""The `pccl` command: what it prints, and what it says of wrong input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import pccl
from pccl.cli import main


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_version():
    assert run("--version").output.split()[-1] == pccl.__version__


def test_as_a_module():
    result = subprocess.run([sys.executable, "-m", "pccl", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"pccl, version {pccl.__version__}\n"


def test_info():
    plain = run("info")
    assert plain.exit_code == 0
    assert "instruction set" in plain.output
    facts = json.loads(run("info", "--json").output)
    assert facts["version"] == pccl.__version__
    assert facts["default port"] == 48148
    assert facts["instruction set"] in ("portable", "avx2", "avx512", "neon")
    assert facts["LZ4"] == "yes" or "install liblz4-dev" in facts["LZ4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "allreduce", "--sizes", "4Q"], "'4Q' is not a size"),
        (["bench", "allreduce", "--sizes", "4K,"], "'' is not a size"),
        (["bench", "allreduce", "--sizes", "0"], "'0' is not a size"),
        (["bench", "allreduce", "--dtype", "float8"], "float8"),
        (["bench", "allreduce", "--world", "1"], "range"),
        (["bench", "allreduce", "--pin", "--master", "127.0.0.1:1"], "leave --master or them out"),
        (["bench", "allreduce", "--gloo", "--master", "127.0.0.1:1"], "leave --master or --gloo out"),
        (["master", "--heartbeat-limit", "0"], "range"),
        (["demo", "--steps", "1"], ""),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_input(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("arguments", "stream", "words"),
    [
        (["sim", "--seeds", "100000", "--jobs", "1"], "stderr", "interrupted after"),
        (["bench", "allreduce", "--sizes", "4K,16M", "--iterations", "2000", "--no-gloo", "--json"], "stdout", "interrupted"),
    ],
)
def test_ctrl_c_ends_a_command_with_130_and_no_traceback(arguments, stream, words):
    environment = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1])}
    command = subprocess.Popen(
        [sys.executable, "-m", "pccl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    getattr(command, stream).readline()
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert words in out + err
    assert "Traceback" not in err


def test_the_summaries_of_commands_are_whole():
    result = CliRunner().invoke(main, ["--help"])
    assert "..." not in result.output.partition("Commands:")[2]
