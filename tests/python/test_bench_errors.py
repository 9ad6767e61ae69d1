"""What benchmarks say on a machine that lacks something: one line, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'bench'}:{ROOT}"}

REFUSE = "def refuse(*_): raise PermissionError(1, 'Operation not permitted')\nos.sched_setscheduler = refuse\n"

CASES = {
    "ip in a lab": (
        "os.geteuid = lambda: 0\nos.environ['PATH'] = '/nowhere'\n",
        "netlab.Lab",
        "the program ip is missing: install iproute2",
    ),
    "ip by itself": ("os.environ['PATH'] = '/nowhere'\n", "lambda: netlab.run('ip link')", "the program ip is missing"),
    "any program": (
        "os.environ['PATH'] = '/nowhere'\n",
        "lambda: subprocess.run(['sysctl', '-a'])",
        "the program sysctl is missing: install procps, or add its folder to PATH",
    ),
    "real-time priority": (
        REFUSE,
        "lambda: harness.Fleet(print, 1, realtime=True)",
        "--realtime: the system refuses real-time priority (SCHED_FIFO 1): Operation not permitted; run this as root",
    ),
    "real-time priority in compare": (
        REFUSE,
        "lambda: compare.Fleet(None, None, realtime=True)",
        "run this as root or with CAP_SYS_NICE, or leave --realtime out",
    ),
    "the native program of a master": ("startup.PROGRAM = '/nowhere'\n", "startup.masters", "/nowhere is missing: build it"),
    "a master that cannot start": (
        "import sys\n",
        "lambda: startup.accept_seconds([sys.executable, '-c', 'raise SystemExit(1)'])",
        "does not listen: run it by itself to see why",
    ),
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    code = f"import os, subprocess\nimport compare, harness, netlab, startup\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_is_said_in_one_line(name):
    before, body, words = CASES[name]
    ended = run(f"{before}harness.main({body})")
    assert ended.returncode == 1
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_missing_file_is_no_missing_program():
    ended = run("harness.main(lambda: open('/nowhere/file'))")
    assert "FileNotFoundError" in ended.stderr


def test_masters_are_measured_without_the_script_of_an_installation():
    ended = run("import sys\nsys.executable = '/nowhere/python'\nprint(*startup.masters(), sep=',')")
    assert ended.stdout.strip() == "python -m pccl master,python -m pccl.master,the native program", ended.stderr


def test_asking_for_real_time_priority_keeps_the_policy():
    """A run under chrt keeps its priority."""
    ended = run(
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n"
        "try: harness.require_realtime()\n"
        "except harness.BenchError: pass\n"
        "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    assert ended.stdout == "True\n", ended.stderr
