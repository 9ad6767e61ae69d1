"""The example runs as it stands: under torchrun, with a kill, a restart and a newcomer from another shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pccl

ROOT = Path(pccl.__file__).parents[1]
EXAMPLE = str(ROOT / "examples" / "ddp_elastic.py")
# Ranks share one standard output, and print() writes the line's end separately: two lines may run together.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
SECONDS = 270


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr",
            "127.0.0.1",
            "--nproc_per_node",
            "3",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


HELD = """
import os, runpy, sys
import torch, pccl.distributed
print("held", flush=True)
os.environ["PCCL_KEYS"], *sys.argv = input().split()
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A process that has imported what takes long when it is told what to run: a busy machine needs half a minute for that."""


def weights(said: str) -> list[str]:
    """What each process that has come to the end prints of its weights."""
    return re.findall(r"sum of all weights (-?[\d.e-]+)", said)


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_rank_that_is_killed_comes_back(rank):
    process = torchrun(EXAMPLE, "--kill", rank, "--restarts", "1", "--steps", "400", "--pause", "0.03")
    said, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said + errors
    assert f"rank {rank} kills itself" in said
    assert "was killed by SIGKILL; it is restarted" in errors
    found = weights(said)
    assert len(found) in (2, 3), said + errors  # the restarted one may come too late
    assert len(set(found)) == 1


@pytest.mark.timeout(SECONDS + 30)
def test_a_rank_that_is_killed_under_the_module_and_one_that_joins():
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    fresh = subprocess.Popen([sys.executable, "-c", HELD], text=True, env=ENVIRONMENT, **pipes)
    assert fresh.stdout.readline() == "held\n", fresh.stderr.read()
    process = torchrun("-m", "pccl.distributed.run", EXAMPLE, "--kill", "1", "--steps", "400", "--pause", "0.03")
    line = ""
    while "to join:" not in line:
        line = process.stdout.readline()
        assert line, process.stderr.read()
    [(keys, masters)] = re.findall(r"PCCL_KEYS=(\S+) .* --join (\S+)", line)
    joined, why = fresh.communicate(f"{keys} {EXAMPLE} --join {masters} --steps 400 --pause 0.03\n", timeout=SECONDS)
    said, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, fresh.returncode) == (0, 0), said + errors + why
    assert "the others continue without it" in errors
    assert len(weights(said)) == 2
    assert set(weights(said)) == set(weights(joined))
    assert "the newcomer is rank" in joined


@pytest.mark.timeout(SECONDS + 30)
def test_a_sharded_training_goes_on_with_three_and_then_with_four():
    process = torchrun(str(ROOT / "examples" / "fsdp_elastic.py"), "--kill", "1", "--restarts", "1", "--pause", "0.1")
    said, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said + errors
    assert "step 105: rank 1 kills itself" in said
    assert re.search(r"step 100: rank 0 is rank 0 of 2(?!\d)", said), said + errors
    found = weights(said)
    assert len(found) in (2, 3), said + errors  # the restarted one may come too late
    assert len(set(found)) == 1
