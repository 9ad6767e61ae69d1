"""Runs a program of this folder under torchrun, and reads what its processes report."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = float(os.environ.get("FRAMEWORK_SECONDS", "240"))
"""Seconds for one job."""


@dataclass
class Job:
    """One run: the exit status of its launcher, its output, and the reports of the processes that finished."""

    status: int
    output: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    def weights(self) -> set[str]:
        """Digests of the trained parameters; one if all processes hold the same bits."""
        return {report["weights"] for report in self.reports}


def run(
    program: str,
    folder: Path,
    backend: str,
    *,
    members: int,
    kill: int | None = None,
    join: bool = False,
    steps: int = 12,
    wrap: tuple[str, ...] = (),
    launcher: str = "torchrun",
    membership: str = "elastic",
    adapted: bool = True,
    exactly: int = 0,
) -> Job:
    """Runs a program with `members` ranks.

    Rank `kill` kills itself with SIGKILL in the middle of a step. With `join`, its supervisor starts it again, and it joins.
    `wrap`: options of `pccl.distributed.run`. Without `adapted` the program calls nothing of pccl,
    and makes `exactly` so many steps, as a run with `join` did before.
    AssertionError: the job did not end within LIMIT.
    """
    if program.startswith("deepspeed"):
        compile_operators()
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "BACKEND": backend,
        "STEPS": str(steps),
        "MEMBERS": str(members),
        "KILL_RANK": str(-1 if kill is None else kill),
        "EXACTLY": str(exactly),
        "JOINS": str(int(join)),
        "PCCL_MEMBERSHIP": membership,
        "ADAPTED": str(int(adapted)),
        "REPORTS": str(folder),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    script = str(PROGRAMS / program)
    command = [sys.executable, script]
    if launcher == "torchrun":
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=1",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
        ]
        command += ["--local-addr=127.0.0.1", f"--nproc-per-node={members}"]
        if backend == "pccl":
            command += ["-m", "pccl.distributed.run", *wrap, *(("--restarts", "1") if join else ()), script]
        else:
            command.append(script)
    printed = folder / "output.txt"  # not a pipe: whoever outlives the launcher would hold it open
    with printed.open("w") as out:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            process.wait()
            output = printed.read_text(errors="replace")
            raise AssertionError(f"{program} did not end within {LIMIT:g} s:\n{output[-6000:]}") from None
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return Job(process.returncode, printed.read_text(errors="replace"), reports)


def end_tree(pid: int) -> None:
    """Kills a process and all that it has started, also in sessions of their own, as torchrun's workers are."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # starts nothing more
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                end_tree(int(child))
        os.kill(pid, signal.SIGKILL)


@functools.cache
def compile_operators() -> None:
    """Has DeepSpeed compile its operator for CPUs, for later runs as well. On a busy machine that may take longer than LIMIT."""
    program = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True)
