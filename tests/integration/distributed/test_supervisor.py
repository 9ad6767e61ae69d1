"""The supervisor: signals, statuses, losses and restarts, with programs that are no training at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from performers import PATIENCE

import pccl
from pccl._host.processes import python

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(pccl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}

TELL = "import os, sys, time, signal; os.write(int(os.environ['PCCL_SUPERVISOR_PIPE']), b'masters ' + sys.argv[1].encode());"


def supervisor(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        python("from pccl._run.supervisor import main; main()", sys.executable, "-c", code, *arguments),
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Status, output and errors."""
    said, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, said, errors


@pytest.fixture
def run_of_others():
    """The address of a master that has a run."""
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        yield f"127.0.0.1:{master.port}"


def test_what_is_no_place_to_import_from_is_passed_over(monkeypatch):
    monkeypatch.setattr(sys, "path", [Path("/there"), *sys.path, None])
    assert end_of(supervisor("print('runs')")) == (0, "runs\n", "")


@pytest.mark.parametrize("status", [0, 1, 77])
def test_the_status_is_that_of_the_program(status, run_of_others):
    assert end_of(supervisor(f"{TELL} sys.exit({status})", run_of_others)) == (status, "", "")


def test_a_supervisor_that_was_stopped_goes_on():
    """Python's sigtimedwait returns rubbish if the process was stopped beyond its deadline."""
    code = "import sys, time; print('begins'); time.sleep(1000)"
    process = supervisor(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)  # for longer than the supervisor waits in one call
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (-signal.SIGTERM, "", "")


def test_a_kill_is_absorbed_while_others_go_on(run_of_others):
    status, _, errors = end_of(supervisor(f"{TELL} os.kill(os.getpid(), 9)", run_of_others, RANK="3"))
    assert status == 0
    assert "rank 3 was killed by SIGKILL; the others continue without it" in errors


def test_a_program_that_tells_much_is_never_blocked(run_of_others):
    """As one that makes thousands of groups: more than the pipe holds, and the last word counts."""
    tell = r"[os.write(int(os.environ['PCCL_SUPERVISOR_PIPE']), b'masters 127.0.0.1:%d\n' % (i + 1)) for i in range(20000)]"
    code = f"import os; {tell}; {TELL}"
    status, _, errors = end_of(supervisor(f"{code} os.kill(os.getpid(), 9)", run_of_others))
    assert status == 0
    assert "the others continue without it" in errors


def test_words_for_others_mean_nothing(run_of_others):
    errors = end_of(supervisor(f"{TELL} os.kill(os.getpid(), 9)", f"{run_of_others}\nin the run\nsomething new\n"))[2]
    assert "the others continue without it" in errors


def test_a_kill_is_not_absorbed_where_nobody_goes_on():
    status, _, errors = end_of(supervisor("import os; os.kill(os.getpid(), 9)"))
    assert status == -signal.SIGKILL
    assert "no run is under way" in errors


def test_a_failure_is_not_absorbed(run_of_others):
    assert end_of(supervisor(f"{TELL} raise SystemExit(3)", run_of_others))[0] == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_program_and_then_the_supervisor(number, run_of_others):
    process = supervisor(f"{TELL} print('here'); time.sleep(600)", run_of_others)
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    status, _, errors = end_of(process)
    assert status == -number
    assert "continue" not in errors


def test_a_program_may_end_well_after_a_signal():
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('here'); signal.pause()"
    process = supervisor(code)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 5


def test_the_program_dies_with_the_supervisor():
    process = supervisor("import os, time; print(os.getpid()); time.sleep(600)")
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=PATIENCE)
    limit = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < limit
        time.sleep(0.01)


RESTART = f"""{TELL}
print(os.environ.get('PCCL_JOIN', '0'), os.environ.get('PCCL_MASTER', '-'), os.environ['RANK'], os.environ['WORLD_SIZE'])
if os.environ.get('PCCL_JOIN') == '1' and len(sys.argv) > 2: sys.exit(int(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


def test_a_program_that_was_killed_is_started_anew_to_join(run_of_others):
    process = supervisor(RESTART, run_of_others, "0", PCCL_RESTARTS="2", RANK="1", WORLD_SIZE="4", PCCL_MASTER="")
    status, said, errors = end_of(process)
    assert (status, said) == (0, f"0  1 4\n1 {run_of_others} 0 1\n")
    assert "joins the others (1 restarts left)" in errors


def test_restarts_are_counted(run_of_others):
    process = supervisor(RESTART, run_of_others, PCCL_RESTARTS="2", RANK="1", WORLD_SIZE="4")
    status, said, _ = end_of(process)
    assert (status, said.count("\n")) == (0, 3)


def test_a_program_that_was_stopped_may_fail(run_of_others):
    process = supervisor(f"{TELL} print(os.getpid()); os.kill(os.getpid(), signal.SIGSTOP); sys.exit(1)", run_of_others)
    pid = int(process.stdout.readline())
    assert "was stopped" in process.stderr.readline()
    os.kill(pid, signal.SIGCONT)
    status, _, errors = end_of(process)
    assert status == 0
    assert "failed with status 1; the others continue" in errors


@pytest.mark.parametrize(("told", "status"), [("", 0), ("\njoined\n", 3)])
def test_a_failure_is_absorbed_before_the_program_has_joined_and_not_after(told, status, run_of_others):
    process = supervisor(f"{TELL} sys.exit(3)", f"{run_of_others}{told}", PCCL_JOIN="1")
    found, _, errors = end_of(process)
    assert found == status
    assert ("the others continue without it" in errors) == (status == 0)


def test_a_restarted_program_that_fails_after_it_has_joined_is_not_started_again(run_of_others):
    process = supervisor(RESTART, f"{run_of_others}\njoined\n", "3", PCCL_RESTARTS="2", RANK="1", WORLD_SIZE="4")
    status, said, _ = end_of(process)
    assert (status, said.count("\n")) == (3, 2)


def test_a_bad_number_of_restarts():
    status, _, errors = end_of(supervisor("pass", PCCL_RESTARTS="many"))
    assert status == 1
    assert "PCCL_RESTARTS=many" in errors


# ---- the commands ----


def command(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pccl.distributed.run", *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_help():
    status, said, _ = command("--help")
    assert status == 0
    assert "--restarts N" in said


@pytest.mark.parametrize("arguments", [(), ("--restarts", "x", "a.py"), ("--what", "a.py"), ("-m",)])
def test_what_is_not_understood(arguments):
    status, _, errors = command(*arguments)
    assert status == 2
    assert "Error:" in errors


def test_a_script_and_its_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['PCCL_RESTARTS'], __name__)")
    assert command("--restarts", "3", str(script), "--restarts", "x") == (0, "['--restarts', 'x'] 3 __main__\n", "")


def test_a_module():
    assert command("-m", "json.tool", "--help")[0] == 0


def test_supervise_goes_on_in_a_child(tmp_path):
    """In a folder whose files have names of the standard library, which only the supervisor might take for it."""
    script, folder = tmp_path / "script.py", tmp_path / "here"
    folder.mkdir()
    for module in ("queue", "resource", "select", "signal", "typing"):
        (folder / f"{module}.py").write_text("raise SystemExit('this is no module of the standard library')")
    script.write_text(
        "import os, sys\n"
        "print('begins', os.environ.get('PCCL_SUPERVISED'), sys.argv[1:], flush=True)\n"
        "from pccl.distributed import supervise\n"
        "supervise()\n"
        "print('goes on', os.environ.get('PCCL_SUPERVISED'))\n"
    )

    def run(*arguments: str, **environment: str) -> str:
        command = [sys.executable, str(script), *arguments]
        environment = {**ENVIRONMENT, **environment}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr

    assert run("an argument", LOCAL_RANK="0") == "begins None ['an argument']\ngoes on 1\n"
    assert run() == "begins None []\ngoes on None\n"


LEAVES = f"""{TELL} print('began', os.environ.get('PCCL_JOIN'))
import pccl; os.write(int(os.environ['PCCL_SUPERVISOR_PIPE']), b'\\n')
if 'PCCL_JOIN' not in os.environ: raise pccl.Left"""


def test_a_program_that_has_left_is_replaced(run_of_others):
    status, said, errors = end_of(supervisor(LEAVES, run_of_others, PCCL_RESTARTS="1"))
    assert (status, said) == (0, "began None\nbegan 1\n")
    assert "has left; it is restarted and joins the others (0 restarts left)" in errors


@pytest.mark.parametrize("outer", ["", "75", "3"])
def test_a_program_that_has_left_ends_as_its_launcher_wants(outer, run_of_others):
    status, _, errors = end_of(supervisor(LEAVES, run_of_others, PCCL_LEFT_STATUS=outer))
    assert status == int(outer or 0)
    assert "has left; the others continue without it" in errors


def test_status_75_of_a_program_that_has_not_left_is_a_failure(run_of_others):
    status, _, errors = end_of(supervisor(f"{TELL} sys.exit(75)", run_of_others, PCCL_RESTARTS="1"))
    assert (status, errors) == (75, "")


def test_a_program_that_has_left_when_all_were_told_to_end(run_of_others):
    code = """import signal, time, pccl
def leave(*_): raise pccl.Left
signal.signal(15, leave)"""
    process = supervisor(f"{code}\nprint('here'); time.sleep(600)", PCCL_RESTARTS="3")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (0, "", "")
