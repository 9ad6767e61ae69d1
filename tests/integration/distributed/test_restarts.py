"""Jobs that begin again: torchrun restarts them, or they call init_process_group again in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RESTARTS = int(os.environ.get("TEST_RESTARTS", "1"))
BEGINNINGS = int(os.environ.get("TEST_BEGINNINGS", "6"))
LIMIT = 100 + 10 * RESTARTS

# Ranks share one standard output. With PYTHONUNBUFFERED=1 print() writes the line's end separately: two lines may run together.

RESTARTED = """
import os, signal, sys, time
import torch, torch.distributed as dist
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
when = sys.argv[2]
if when == "before" and attempt < int(sys.argv[1]) and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.init_process_group("pccl")
group = dist.new_group([0, 1])
x = torch.full((3,), float(rank + 1))
dist.all_reduce(x)
print(f"attempt {attempt} rank {rank}: {x.tolist()} of {dist.get_world_size()}", flush=True)
if when == "after" and attempt < int(sys.argv[1]) and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
if attempt < int(sys.argv[1]):
    time.sleep(60)   # torchrun ends the others
dist.destroy_process_group()
"""

AGAIN = """
import os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
for number in range(int(sys.argv[1])):
    time.sleep(0.05 * ((rank + number) % 2))
    dist.init_process_group("pccl")
    x = torch.full((3,), float(rank + 1))
    dist.all_reduce(x)
    print(f"time {number} rank {rank}: {x.tolist()} of {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()
"""

LOST = """
import os, signal
import torch, torch.distributed as dist
import pccl.distributed
rank = int(os.environ["RANK"])
dist.init_process_group("pccl")
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
parts = [torch.zeros(1) for _ in range(3)]
try:
    while True:
        dist.all_gather(parts, torch.ones(1))
except pccl.distributed.PeerLostError as error:
    assert "Connection closed by peer" in str(error)
for stale in (lambda: dist.all_gather(parts, torch.ones(1)), lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(1))):
    try:
        stale()
    except pccl.distributed.PeerLostError as error:
        assert error.ranks == (1,), error.ranks
    else:
        raise AssertionError("a call for three members went through")
dist.destroy_process_group()
os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank // 2), "2"
dist.init_process_group("pccl")
x = torch.full((3,), float(rank + 1))
dist.all_reduce(x)
print(f"again rank {dist.get_rank()}: {x.tolist()} of {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
"""

ALONE = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import pccl.distributed
dist.init_process_group("pccl")
joining = pccl.distributed.is_joining()
net = DistributedDataParallel(torch.nn.Linear(2, 1))
if joining:
    print(f"environment {os.environ['RANK']} {os.environ['WORLD_SIZE']}", flush=True)
    for name, call in (
        ("all_reduce", lambda: dist.all_reduce(torch.ones(1))),
        ("all_gather", lambda: dist.all_gather([torch.ones(1)], torch.ones(1))),
        ("backward", lambda: net(torch.ones(1, 2)).sum().backward()),
    ):
        try:
            call()
            print(f"alone {name}", flush=True)
        except (RuntimeError, ValueError) as error:
            print(f"refused {name} {'has not joined it yet' in str(error)}", flush=True)
else:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
state = pccl.distributed.Elastic(net, step=0)
came = []
pccl.distributed.on_change(lambda change: came.extend(change.joined))
while not came:
    state.sync()
    net(torch.ones(1, 2)).sum().backward()
    time.sleep(0.01)
"""


def torchrun(
    folder: Path, text: str, *arguments: str, ranks: int = 3, before: tuple[str, ...] = (), wrap: tuple[str, ...] = ()
) -> str:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    command += ["--local-addr=127.0.0.1", f"--nproc-per-node={ranks}", "--monitor-interval=0.1", *before, *wrap, str(script)]
    environment = {**os.environ, "PCCL_LOG_LEVEL": "ERR", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=LIMIT, start_new_session=True, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_torchrun_restarts_is_whole_each_time(tmp_path, when):
    told = torchrun(tmp_path, RESTARTED, str(RESTARTS), when, before=(f"--max-restarts={RESTARTS}",))
    lines = re.findall(r"attempt (\d+) rank (\d): \[([^],]*)[^]]*\] of (\d)", told)
    last = [line for line in lines if line[0] == str(RESTARTS)]
    assert sorted(line[1] for line in last) == ["0", "1", "2"], told
    assert {line[2:] for line in lines} == {("6.0", "3")}, told
    assert told.count("pccl.distributed.run") >= 1  # the warning of rank 0


def test_a_process_may_begin_again(tmp_path):
    told = torchrun(tmp_path, AGAIN, str(BEGINNINGS), ranks=2)
    assert re.findall(r"\[3.0, 3.0, 3.0\] of 2", told) == ["[3.0, 3.0, 3.0] of 2"] * 2 * BEGINNINGS, told


def test_survivors_may_begin_again_after_a_loss(tmp_path):
    told = torchrun(tmp_path, LOST, wrap=("-m", "pccl.distributed.run"))
    assert sorted(re.findall(r"again rank (\d): \[4.0, 4.0, 4.0\] of 2", told)) == ["0", "1"], told
    assert "torchrun ends the whole job" not in told


def test_a_restarted_process_does_not_train_alone(tmp_path):
    told = torchrun(tmp_path, ALONE, wrap=("-m", "pccl.distributed.run", "--restarts", "1"))
    assert "environment 1 3" in told, told
    assert sorted(re.findall(r"refused (\w+) True", told)) == ["all_gather", "all_reduce", "backward"], told
    assert "alone" not in told


def test_pccl_takes_the_place_of_gloo(tmp_path):
    script = """
import torch, torch.distributed as dist
for backend in (("gloo",), (), ("cpu:gloo,cuda:nccl",)):
    dist.init_process_group(*backend)
    x = torch.ones(1)
    dist.all_reduce(x)
    print(f"backend {dist.get_backend()} {x.item()}\\n", end="", flush=True)
    dist.destroy_process_group()
"""
    told = torchrun(tmp_path, script, ranks=2, wrap=("-m", "pccl.distributed.run", "--as", "gloo"))
    assert told.count("backend pccl 2.0") == 3 * 2, told
