"""The `pccl` command: what it prints, and what it says of wrong input."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import pccl
from pccl.cli import main
from pccl.cli.bench import Plan, run_here, take_part


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


def test_sizes():
    from pccl.cli.bench import read_sizes

    assert read_sizes("1,4K, 4KiB,1mb,2G") == [1, 4096, 4096, 1 << 20, 2 << 30]


def plan(**changes):
    given = {"sizes": [4096], "world": 2, "lanes": 0, "dtype": "float32", "iterations": 2, "in_place": False, "gloo": False}
    return Plan(**{**given, **changes})


THREE = {"world": 3, "lanes": 2, "in_place": True, "dtype": "int8", "tcp": True, "pin": True}


@pytest.mark.parametrize("changes", [THREE, {"gloo": True}])
def test_bench_measures(changes):
    pytest.importorskip("torch" if "gloo" in changes else "numpy")
    rows = list(run_here(plan(sizes=[4096, 1 << 20], **changes)))
    assert [row["bytes"] for row in rows] == [4096, 1 << 20]
    for row in rows:
        assert row["pccl_ms"] >= row["pccl_min_ms"] > 0
        assert row["pccl_gb_per_s"] == pytest.approx(row["bytes"] / row["pccl_ms"] / 1e6)
        assert ("ratio" in row) == changes.get("gloo", False)
        assert ("tcp_ms" in row) == changes.get("tcp", False)
        assert row["cpu"]
        assert row["load"] >= 0
        assert "reno" in row["congestion"]
        assert ("one core" in row["peers_run"]) >= changes.get("pin", False)


def test_bench_prints_a_table_and_json():
    pytest.importorskip("numpy")
    shown = run("bench", "allreduce", "--sizes", "4K", "--iterations", "2", "--no-gloo", "--tcp")
    assert shown.exit_code == 0, shown.output
    assert "4 KiB" in shown.output
    lines = run("bench", "allreduce", "--sizes", "4K,8K", "--iterations", "2", "--no-gloo", "--json").output.splitlines()
    assert [json.loads(line)["bytes"] for line in lines] == [4096, 8192]


def test_bench_takes_part_in_a_run():
    pytest.importorskip("numpy")

    rows = []
    with pccl.MasterNode("127.0.0.1:0") as master:
        peers = [Thread(target=lambda: rows.append(list(take_part(plan(), f"127.0.0.1:{master.port}")))) for _ in range(2)]
        for peer in peers:
            peer.start()
        for peer in peers:
            peer.join(60)
    assert [len(mine) for mine in rows] == [1, 1]


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
