"""`pccl bench`: what it measures, and how it shows it."""

import json
import os
import subprocess
import sys
from threading import Thread

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import pccl
from pccl.cli import bench, main
from pccl.cli.bench import Plan, read_sizes, run_here, take_part


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_sizes():
    assert read_sizes("1,4K, 4KiB,1mb,2G") == [1, 4096, 4096, 1 << 20, 2 << 30]


def plan(**changes):
    given = {"sizes": [4096], "world": 2, "lanes": 0, "dtype": "float32", "iterations": 2, "in_place": False, "gloo": False}
    return Plan(**{**given, **changes})


THREE = {"world": 3, "lanes": 2, "in_place": True, "dtype": "int8", "pin": True}


@pytest.mark.parametrize("changes", [THREE, {"gloo": True}])
def test_bench_measures(changes):
    pytest.importorskip("torch" if "gloo" in changes else "numpy")
    rows = list(run_here(plan(sizes=[4096, 1 << 20], **changes)))
    assert [row["bytes"] for row in rows] == [4096, 1 << 20]
    for row in rows:
        assert row["pccl_ms"] >= row["pccl_min_ms"] > 0
        assert row["pccl_gb_per_s"] == pytest.approx(row["bytes"] / row["pccl_ms"] / 1e6)
        assert ("ratio" in row) == changes.get("gloo", False)
        assert row["cpu"]
        assert row["load"] >= 0
        assert ("one core" in row["peers_run"]) >= changes.get("pin", False)


def test_bench_prints_a_table_and_json():
    pytest.importorskip("numpy")
    shown = run("bench", "allreduce", "--sizes", "4K", "--iterations", "2", "--no-gloo")
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


@pytest.mark.parametrize(("dtype", "package"), [("float32", "numpy"), ("bfloat16", "torch")])
def test_without_numpy_and_torch_no_peer_is_started(dtype, package, monkeypatch):
    for name in ("numpy", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(bench, "run_here", lambda plan: pytest.fail("peers were started"))
    result = CliRunner().invoke(main, ["bench", "allreduce", "--no-gloo", "--sizes", "4K", "--dtype", dtype])
    assert result.exit_code == 1
    assert result.output.endswith(f"which is not installed: pip install {package}\n")


def test_the_table_comes_without_a_log():
    pytest.importorskip("numpy")
    command = [sys.executable, "-m", "pccl", "bench", "allreduce", "--sizes", "4K", "--iterations", "1", "--no-gloo"]
    environment = {name: value for name, value in os.environ.items() if name != "PCCL_LOG_LEVEL"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "4 KiB" in result.stdout
    assert result.stderr == ""
