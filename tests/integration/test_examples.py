"""The examples run as they stand."""

import os
import re
import subprocess
import sys
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


def test_diloco_of_sharded_models():
    pytest.importorskip("torch")
    out, err = start("diloco_fsdp.py", "--outer-steps", "2").communicate(timeout=100)
    steps = re.findall(r"outer step 2: (shard \d), 2 replicas, [^,]*, parity ([0-9a-f]{32})", out)
    assert len(steps) == 4, err
    assert len(set(steps)) == 2, out
