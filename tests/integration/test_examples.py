"""The examples run as they stand."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pccl

pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1])}


def start(name, *arguments):
    return subprocess.Popen(
        [sys.executable, EXAMPLES / name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def test_all_reduce():
    out, err = start("all_reduce.py").communicate(timeout=60)
    assert out.count("average over 2 peers is [2.5 2.5 2.5 2.5]") == 2, err


def test_training_loop_survives_a_kill():
    with pccl.MasterNode("127.0.0.1:0") as master:
        peers = [start("training_loop.py", f"127.0.0.1:{master.port}", "200", "3") for _ in range(3)]
        first = [peer.stdout.readline() for peer in peers]
        assert all(line.startswith("step 20: 3 peers") for line in first)
        assert len(set(first)) == 1
        time.sleep(0.05)
        peers[1].kill()
        ends = [peer.communicate(timeout=60) for peer in (peers[0], peers[2])]
        peers[1].communicate()
    lines = [out.splitlines() for out, _ in ends]
    assert lines[0] == lines[1], ends
    assert lines[0][-1].startswith("step 200: 2 peers")


def test_diloco_of_sharded_models():
    pytest.importorskip("torch")
    out, err = start("diloco_fsdp.py", "--outer-steps", "2").communicate(timeout=100)
    steps = re.findall(r"outer step 2: (shard \d), 2 replicas, [^,]*, parity ([0-9a-f]{32})", out)
    assert len(steps) == 4, err
    assert len(set(steps)) == 2, out
