"""examples/slurm, with commands of Slurm that run everything on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest
from launched import EXAMPLES, Launched, expect_equal_steps

from pccl._run import keys
from pccl.lab.ports import free_ports

pytest.importorskip("torch")

SCRIPT = EXAMPLES / "slurm" / "train.sbatch"
WORKER = EXAMPLES / "elastic_worker.py"

SCONTROL = """
#!/bin/bash
[ "$*" = "show hostnames 127.0.0.[1-2]" ] && printf '127.0.0.1\\n127.0.0.2\\n'
"""

SRUN = """
#!{python}
import argparse, os, signal, subprocess, sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--nodes", type=int)
parser.add_argument("--ntasks", type=int, default=int(os.environ["SLURM_NTASKS"]))
parser.add_argument("--nodelist")
parser.add_argument("--wait", type=int)
parser.add_argument("--kill-on-bad-exit", type=int)
parser.add_argument("--overlap", action="store_true")
parser.add_argument("--no-kill", action="store_true")
parser.add_argument("command", nargs=argparse.REMAINDER)
options = parser.parse_args()
tasks = [
    subprocess.Popen(options.command, env=os.environ | {{"SLURM_PROCID": str(place), "SLURM_NTASKS": str(options.ntasks)}})
    for place in range(options.ntasks)
]
print("srun:", "on", options.nodelist, "processes", *(task.pid for task in tasks), flush=True)
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
"""


def submit(folder, *arguments, tasks):
    """Runs the script as sbatch would, in an allocation of two nodes."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN.format(python=sys.executable))):
        (folder / name).write_text(text.lstrip())
        (folder / name).chmod(0o755)
    (folder / ".pccl").mkdir()
    keys.write_files(folder / ".pccl" / "run", keys.new_keys())
    allocation = {
        "HOME": str(folder),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "SLURM_NTASKS": str(tasks),
        "PCCL_PORT": str(free_ports(1)[0]),
        "PYTHON": sys.executable,
    }
    return Launched(["bash", str(SCRIPT), *arguments], allocation)


def test_the_script_is_in_order():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", SCRIPT], check=True)


def test_a_job_ends_with_its_last_worker(tmp_path):
    with submit(tmp_path, str(WORKER), "5", "2", tasks=2) as job:
        states = {match[1] for match in job.expect(r"finished: parameters ([0-9a-f]{8})", 2)}
        assert job.end() == 0, job.lines
    assert len(states) == 1


def test_a_worker_and_the_master_are_killed(tmp_path):
    with submit(tmp_path, str(WORKER), "1000000", "3", tasks=3) as job:
        [master] = job.expect(r"srun: on 127.0.0.1 processes (\d+)")
        workers = [int(match[1]) for match in job.expect(r"joined at step 0: process (\d+)", 3)]
        expect_equal_steps(job, 3)
        os.kill(workers[1], signal.SIGKILL)
        job.expect(r"worker \d on \S+: status 137, 3 restarts left")
        job.expect(r"joined at step [1-9]\d*: process \d+, 3 workers")
        expect_equal_steps(job, 3)
        os.kill(int(master[1]), signal.SIGKILL)
        job.expect(r"master: takes over the run")
        expect_equal_steps(job, 3)


def test_a_program_that_fails_is_started_again_only_so_often(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(textwrap.dedent("import sys; sys.exit('no data')"))
    with submit(tmp_path, str(program), tasks=1) as job:
        assert job.end() == 1
    assert sum("no data" in line for line in job.lines) == 4
