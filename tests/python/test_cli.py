"""The `pccl` command: what it prints, and what it says of wrong input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import pccl
from pccl.cli import COMMANDS, main


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
        (["topp"], "did you mean 'top'?"),
        (["top"], "PCCL_MASTER"),
        (["launch", "nothing-here.py"], "there is no file nothing-here.py; check its path"),
        (["launch", "python3", "train.py"], "PROGRAM is the Python program itself"),
        (["bench", "allreduce", "--sizes", "4Q"], "'4Q' is not a size"),
        (["bench", "allreduce", "--sizes", "4K,"], "'' is not a size"),
        (["bench", "allreduce", "--sizes", "0"], "'0' is not a size"),
        (["bench", "allreduce", "--sizes", "4K,7"], "7 B is no whole number of elements of float32"),
        (["bench", "allreduce", "--dtype", "float8"], "float8"),
        (["bench", "allreduce", "--world", "1"], "range"),
        (["bench", "allreduce", "--pin", "--master", "127.0.0.1:1"], "omit them or --master"),
        (["bench", "allreduce", "--gloo", "--master", "127.0.0.1:1"], "omit --master or --gloo"),
        (["bench", "allreduce", "--ca", "ca.crt"], "need --master"),
        (["bench", "allreduce", "--insecure"], "need --master"),
        (["bench", "allreduce", "--master", "nowhere"], "address 'nowhere' has no port"),
        (["master", "--heartbeat-limit", "0"], "range"),
        (["master", "--heartbeat-limit", "nan"], "'nan' is not a number"),
        (["top", "--master", "127.0.0.1:1", "--interval", "nan"], "'nan' is not a number"),
        (["top", "--master", "127.0.0.1:1,"], "write host:port,host:port"),
        (["info", "--master", "127.0.0.1:1,127.0.0.1:1"], "each once"),
        (["sim", "--minutes", "nan"], "'nan' is not a number"),
        (["stress", "--seconds", "nan"], "'nan' is not a number"),
        (["demo", "--steps", "1"], ""),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_input(arguments, words, monkeypatch):
    monkeypatch.delenv("PCCL_MASTER", raising=False)
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


IMPORTING = """
import sys, time
import pccl_command

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            print(flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
pccl_command.main()
"""


@pytest.mark.parametrize("module", ["pccl", "pccl.cli", "click"])
def test_ctrl_c_during_the_imports(module):
    command = subprocess.Popen(
        [sys.executable, "-c", IMPORTING, module], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=30)
    assert command.returncode == 130
    assert err == "interrupted\n"


def test_the_summaries_of_commands_are_whole():
    result = CliRunner().invoke(main, ["--help"])
    assert "..." not in result.output.partition("Commands:")[2]


def test_output_that_does_not_fit_ends_a_command_in_one_line():
    with pccl.MasterNode("127.0.0.1:0") as master, open("/dev/full", "w", encoding="ascii") as full:
        top = ["top", "--master", f"127.0.0.1:{master.port}", "--once"]
        for arguments in (top, [*top, "--json"], ["info"], ["--help"]):
            command = [sys.executable, "-m", "pccl", *arguments]
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            assert result.returncode == 1
            assert result.stderr == "Error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("words", ["info", "launch --nproc 1 -m this"])
def test_a_closed_standard_output_is_no_error(words):
    words = f"PCCL_LOG_LEVEL=WARN exec {sys.executable} -m pccl {words} >&-"
    result = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    result.stderr = re.sub(r"^pccl launch: .*\n", "", result.stderr, flags=re.MULTILINE)
    assert (result.returncode, result.stderr) == (0, "")


def test_info_shows_this_machine_if_no_master_answers():
    plain = CliRunner().invoke(main, ["info", "--master", "127.0.0.1:1"])
    assert plain.exit_code == 1
    assert "instruction set" in plain.stdout
    assert "is a pccl master running there" in plain.stderr
    printed = CliRunner().invoke(main, ["info", "--master", "127.0.0.1:1", "--json"])
    assert printed.exit_code == 1
    assert json.loads(printed.stdout)["version"] == pccl.__version__


def test_top_without_a_master():
    result = run("top", "--master", "127.0.0.1:1", "--once")
    assert result.exit_code == 1
    assert "no master answers at 127.0.0.1:1" in result.output
    assert "Connection refused" in result.output
    assert run("top", "--master", "nowhere", "--once").exit_code == 2
    assert run("top", "--help").exit_code == 0


def test_top_of_a_master_without_a_run():
    with pccl.MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        assert "serves no run" in run("top", "--master", address, "--once").output
        printed = json.loads(run("top", "--master", address, "--once", "--json").output)
    assert printed["members"] == printed["findings"] == printed["edges"] == []


def test_ctrl_c_ends_top():
    with pccl.MasterNode("127.0.0.1:0") as master:
        command = [sys.executable, "-m", "pccl", "top", "--master", f"127.0.0.1:{master.port}", "--json", "--interval", "0.2"]
        top = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert top.stdout is not None
        top.stdout.readline()
        top.send_signal(signal.SIGINT)
        assert top.wait(30) == 130
        assert top.stderr is not None
        assert top.stderr.read() == "interrupted\n"
        top.stdout.close()
        top.stderr.close()


@pytest.mark.parametrize("empty", [None, ""])
def test_no_run_in_the_environment(empty, monkeypatch):
    monkeypatch.delenv("PCCL_MASTER", raising=False)
    if empty is not None:
        monkeypatch.setenv("PCCL_MASTER", empty)
    with pytest.raises(ValueError, match="pass host:port, or set PCCL_MASTER"):
        pccl.Communicator()
    assert "Missing option '--master'" in run("top").output


def test_commands_and_communicators_take_the_run_of_the_environment(monkeypatch):
    with pccl.MasterNode("127.0.0.1:0") as master:
        monkeypatch.setenv("PCCL_MASTER", f"127.0.0.1:{master.port}")
        with pccl.Communicator() as comm:
            comm.connect()
            result = run("top", "--once", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.output)["members"]) == 1


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("pccl doc", "plain,doctor"),
        ("pccl top --keys r", "file,r"),
        ("pccl launch tr", "file,tr"),
        ("pccl tpo --h", "plain,--help"),
    ],
)
def test_shells_complete(words, completed):
    environment = {**os.environ, "_PCCL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "pccl"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert completed in told.splitlines()


BLOCKER = """
import importlib.util, runpy, socket, sys
OWN = {"pccl", "pccl_command", "cffi", "_cffi_backend", "pycparser", "click", "rich", "pygments", "markdown_it", "mdurl"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        module = name.partition(".")[0]
        if module not in OWN and module not in sys.stdlib_module_names and module != "sitecustomize":
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
def refuse(*_):
    raise OSError("there is no network")
socket.socket.connect = socket.socket.connect_ex = refuse
sys.meta_path[:] = [Blocker(), *(one for one in sys.meta_path if one.__module__.startswith("_frozen"))]  # no editable package
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "pccl"
runpy.run_module("pccl", run_name="__main__", alter_sys=True)
"""
"""Runs the package in a folder, with nothing but what it depends on, as far as that can be seen from imports."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the packages alone, as a wheel installs them."""
    folder = tmp_path_factory.mktemp("installed")
    for package in ("pccl", "pccl_command"):
        source = Path(pccl.__file__).parents[1] / package
        shutil.copytree(source, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_each_help_needs_nothing_but_the_package(name, installed):
    command = [sys.executable, "-c", BLOCKER, str(installed), *([name] if name else []), "--help"]
    result = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Usage: pccl")


def test_the_simulator_of_an_installed_package_says_what_it_needs(installed):
    command = [sys.executable, "-c", BLOCKER, str(installed), "sim", "--seeds", "3"]
    result = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "needs a checkout of pccl" in result.stderr
