"""`pccl stress --program`: programs that survive pass, and each kind of bug is found and named."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from launched import EXAMPLES, Launched
from peers import ENVIRONMENT
from performers import PATIENCE

pytest.importorskip("click")

from click.testing import CliRunner

from pccl._run import keys
from pccl._run.own_keys import why_plain
from pccl.cli import main

STRESS = [sys.executable, "-m", "pccl", "stress"]
QUICK = ("--seconds", "6", "--every", "1.2", "--patience", "15", "--heartbeat-limit", "2")

LOOP = """
    import hashlib, os, signal, subprocess, sys, time
    place, joins = int(os.environ["PCCL_PEER"]), os.environ.get("PCCL_JOIN") == "1"
    def go(first, last, more=lambda step: None):
        for step in range(first, last):
            print(f"step {step} state {hashlib.md5(str(step).encode()).hexdigest()}", flush=True)
            more(step)
            time.sleep(0.02)
"""


class Stressed:
    """One `pccl stress --program` and its summary."""

    def __init__(self, folder, command, *options):
        self.folder = folder
        self.launched = Launched([*STRESS, "--program", command, "--out", str(folder), *options])

    def end(self, timeout=4 * PATIENCE):
        """The exit status."""
        return self.launched.end(timeout)

    @property
    def text(self):
        return "".join(self.launched.lines)

    @property
    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    def failure(self):
        """The claim that does not hold, and what is said of it."""
        failed = [check for check in self.summary["checks"] if not check["holds"]]
        assert len(failed) == 1, self.text
        return failed[0]["check"], failed[0]["detail"]


@pytest.fixture
def stress(tmp_path):
    """Starts it with a program, given as text or as a command; ends it and all that it has started."""
    with contextlib.ExitStack() as stack:

        def start(program, *options, command=None):
            path = tmp_path / "program.py"
            path.write_text(textwrap.dedent(LOOP) + textwrap.dedent(program or ""))
            one = Stressed(tmp_path / "out", command or f"python {path}", *options)
            stack.enter_context(one.launched)
            return one

        yield start


def living(text):
    """Processes whose command line has this text."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and text in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_a_program_that_uses_pccl_survives_all_faults(stress):
    one = stress(
        None, "--seconds", "16", "--every", "2", "--heartbeat-limit", "4", command=f"python {EXAMPLES / 'survivor.py'} 900"
    )
    assert one.end() == 0, one.text
    assert one.text.endswith("PASSED\n")
    done = {fault["kind"] for fault in one.summary["faults"] if not fault["skipped"]}
    assert done == {"kill", "stop", "restart", "cut"}, one.text
    state = next(check for check in one.summary["checks"] if check["check"] == "state")
    assert int(state["detail"].split()[0]) > 100
    assert "admitted" in (one.folder / "master.log").read_text()
    assert not living(str(EXAMPLES / "survivor.py"))


DISTRIBUTED = """
    import torch, torch.distributed as dist, zlib, pccl.distributed
    torch.set_num_threads(1)
    dist.init_process_group("pccl")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = pccl.distributed.Elastic(model, optimizer, step=0)
    while state.step < int(sys.argv[1]):
        state.sync()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        state.step += 1
        value = zlib.crc32(torch.cat([one.detach().flatten() for one in model.parameters()]).numpy())
        print(f"step {state.step} state {value:08x}", flush=True)
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.skipif(why_plain() != "", reason="this build has no encryption")
@pytest.mark.plain("the run has keys of its own")
def test_a_cut_that_reaches_nothing_is_no_fault(stress, tmp_path, monkeypatch):
    """The proxy cannot read which ports members name to each other in a run with keys."""
    monkeypatch.setitem(ENVIRONMENT, "PCCL_KEYS", str(keys.write_files(tmp_path / "run", keys.new_keys())[0]))
    one = stress(
        None,
        *("--members", "2", "--seconds", "3", "--every", "0.6", "--faults", "cut", "--heartbeat-limit", "2"),
        command=f"python {EXAMPLES / 'survivor.py'} 300",
    )
    one.end()
    resets = [fault for fault in one.summary["faults"] if fault["how"] == "reset"]
    assert resets
    assert all(fault["skipped"] for fault in resets)
    assert "the run has keys, so cuts reach connections to the master alone" in one.summary["notes"]


def test_a_program_under_torch_distributed_survives(stress, tmp_path):
    one = stress(
        DISTRIBUTED,
        *("--seconds", "12", "--every", "2", "--faults", "kill,restart", "--patience", "120"),
        command=f"python {tmp_path / 'program.py'} 900",
    )
    assert one.end() == 0, one.text
    assert {fault["kind"] for fault in one.summary["faults"]} == {"kill", "restart"}


def test_a_wrong_hash_is_named(stress):
    one = stress(
        """
        def spoil(step):
            if place == 1 and step == 100:
                print("step 101 state 0badbad0", flush=True)
        go(0, 1000, spoil)
        """,
        *QUICK,
        *("--faults", "stop"),
    )
    assert one.end() == 1
    claim, detail = one.failure()
    assert claim == "state"
    assert detail.startswith("step 101: ")
    assert "copy 1 printed 0badbad0" in detail


def test_a_hang_after_a_kill_is_named(stress, tmp_path):
    one = stress(
        f"""
        open("{tmp_path}/" + str(place), "w").write(str(os.getpid()))
        def look(step):
            pids = [int(open(f"{tmp_path}/{{other}}").read()) for other in range(3) if step > 50]
            if place == 0 and not all(os.path.exists(f"/proc/{{pid}}") for pid in pids):
                print("a copy is gone", flush=True)
                time.sleep(1000)
        go(0, 1500, look)
        """,
        *QUICK,
        *("--faults", "kill", "--patience", "4"),
    )
    assert one.end() == 1
    claim, detail = one.failure()
    assert claim == "progress"
    assert re.match(r"copy 0 has made no progress after step \d+ for \d+\.\d s; the last fault was kill of copy \d at", detail)
    assert "its last line was 'a copy is gone'" in detail


def test_an_exit_code_is_named(stress):
    one = stress("go(0, 200 if place == 2 else 400)\nsys.exit(3 if place == 2 else 0)", *QUICK, "--faults", "cut")
    assert one.end() == 1
    claim, detail = one.failure()
    assert claim == "exit"
    assert detail.startswith("copy 2 failed with status 3 ")
    assert "its last line was 'step 199 state" in detail


def test_a_crash_of_a_replacement_is_named(stress):
    one = stress("if joins: raise SystemExit('cannot join')\ngo(0, 1000)", *QUICK, "--faults", "restart")
    assert one.end() == 1
    claim, detail = one.failure()
    assert claim == "exit"
    assert re.match(r"copy \d \(replacement 1\) failed with status 1 .*the last fault was restart of copy \d", detail)
    assert "its last line was 'cannot join'" in detail


@pytest.mark.parametrize(
    ("program", "claim", "words"),
    [
        ("print('bye')", "progress", "ended with status 0 and without a progress line; its last line was 'bye'"),
        ("sys.exit(4)", "exit", "failed with status 4"),
        ("time.sleep(1000)", "progress", "no progress line for"),
        (
            "while True: sys.stdout.buffer.write(os.urandom(1000)); sys.stdout.buffer.flush(); time.sleep(0.01)",
            "progress",
            "no progress line for",
        ),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); go(0, 1000000)", "exit", "did not end within"),
    ],
    ids=["exits", "fails", "silent", "binary", "stubborn"],
)
def test_programs_that_cannot_be_judged_get_a_clear_verdict(stress, tmp_path, program, claim, words):
    one = stress(program, "--seconds", "3", "--every", "1", "--patience", "3", "--faults", "stop", "--heartbeat-limit", "1")
    assert one.end() == 1, one.text
    found, detail = one.failure()
    assert found == claim
    assert words in detail
    assert "ok     at least one fault was injected: 0 injected" not in one.text
    assert not living(str(tmp_path / "program.py"))


def test_a_program_that_ends_before_the_first_fault_gets_a_clear_verdict(stress):
    one = stress("go(0, 20)", "--seconds", "600", "--every", "300", "--faults", "stop", "--heartbeat-limit", "1")
    assert one.end() == 1, one.text
    found, detail = one.failure()
    assert found == "faults"
    assert "before the first fault" in detail


def test_a_progress_bar_is_progress(stress):
    one = stress(
        """
        for step in range(1, 300):
            sys.stderr.write(f"\\rstep {step}/300")
            sys.stderr.flush()
            time.sleep(0.02)
        """,
        *("--seconds", "3", "--every", "1", "--faults", "stop", "--heartbeat-limit", "2", "--patience", "5"),
    )
    assert one.end() == 0, one.text


def test_a_disk_that_is_full_is_named(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("while True: print('x' * 100, flush=True)")
    done = subprocess.run(
        [*STRESS, "--program", f"python {path}", "--out", str(tmp_path / "out")],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14)),
        env={**ENVIRONMENT, "PCCL_EVENTS": "off"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(f"Error: the test was cut short: cannot write to {tmp_path / 'out'}: File too large\n")
    assert "Traceback" not in done.stderr


def test_a_program_that_runs_on_ends_by_sigterm(stress):
    one = stress(
        "go(0, 1000000)", "--seconds", "3", "--every", "1", "--patience", "3", "--faults", "stop", "--heartbeat-limit", "1"
    )
    assert one.end() == 0, one.text
    assert one.text.count("sending SIGTERM") == 3


CHILDREN = """
    code = "import time; time.sleep(1000)  # {mark}"
    subprocess.Popen([sys.executable, "-c", code])
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    go(0, 1000000)
"""


@pytest.mark.parametrize("ending", ["by itself", signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind(stress, tmp_path, ending):
    mark = f"mark {tmp_path}"
    one = stress(
        CHILDREN.replace("{mark}", mark), "--seconds", "3", "--every", "1", "--patience", "3", "--faults", "kill,restart"
    )
    if ending != "by itself":
        one.launched.expect("faults follow")
        one.launched.process.send_signal(ending)
    assert one.end() == (0 if ending == "by itself" else 128 + ending), one.text
    deadline = time.monotonic() + PATIENCE
    while living(mark) or living(str(tmp_path / "program.py")):
        assert time.monotonic() < deadline
    if ending != "by itself":
        assert one.summary["interrupted"] == ending.name


def test_children_of_the_caller_live_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LOOP) + "go(0, 10)")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as own:
        arguments = ["stress", "--program", f"python {program}", "--faults", "stop", "--out", str(tmp_path / "out")]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, result.output
        assert "before the first fault" in result.output
        assert own.poll() is None
        own.communicate(b"\n")
    assert own.returncode == 0


def test_copies_die_with_a_command_that_is_killed(stress, tmp_path):
    one = stress("go(0, 1000000)", *QUICK)
    one.launched.expect("faults follow")
    one.launched.process.kill()
    deadline = time.monotonic() + PATIENCE
    while living(str(tmp_path / "program.py")):
        assert time.monotonic() < deadline


def test_the_environment_is_that_of_launchers(stress):
    one = stress(
        """
        names = ("PCCL_PEER", "PCCL_PEERS", "PCCL_JOIN", "RANK", "WORLD_SIZE", "LOCAL_RANK")
        print("ENV", {name: os.environ.get(name) for name in names})
        print("ENV", os.environ["PCCL_MASTER"], os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
        go(0, 1000)
        """,
        *("--seconds", "7", "--every", "4", "--faults", "restart", "--members", "2"),
    )
    assert one.end() == 0, one.text
    first = (one.folder / "copy-1.log").read_text()
    assert (
        "ENV {'PCCL_PEER': '1', 'PCCL_PEERS': '2', 'PCCL_JOIN': None, 'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1'}" in first
    )
    assert re.search(r"ENV 127\.0\.0\.1:\d+ 127\.0\.0\.1 \d+", first)
    later = [path for path in one.folder.glob("copy-*.1.log") if path.stat().st_size]
    assert later
    assert "'PCCL_JOIN': '1'" in later[0].read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--program", ""], "the command is empty"),
        (["--program", "/nowhere/train"], "is not an executable program"),
        (["--program", "python 'x"], "No closing quotation"),
        (["--program", "true", "--faults", "fire"], "'fire' is not a fault"),
        (["--program", "true", "--faults", ""], "no fault given"),
        (["--program", "true", "--progress", "("], "is not a regular expression"),
        (["--program", "true", "--members", "1"], "range"),
        (["--program", "true", "--seconds", "nan"], "not a number"),
        (["--program", "true", "--out", "/proc/x"], "cannot write"),
    ],
)
def test_wrong_arguments(arguments, words):
    with Launched([*STRESS, *arguments]) as one:
        assert one.end() == 2, one.lines
        assert words in "".join(one.lines)


def test_results_of_another_run_are_kept(stress, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("{}")
    one = stress("go(0, 10)")
    assert one.end() == 2
    assert "has results of another run, such as summary.json" in one.text
    assert (tmp_path / "out" / "summary.json").read_text() == "{}"
