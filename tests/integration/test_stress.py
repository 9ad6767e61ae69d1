"""`pccl stress` as a whole: a run passes, what is planted is found, and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

for module in ("numpy", "matplotlib", "click", "rich"):
    pytest.importorskip(module)


def stress(out: Path, *arguments: str) -> list[str]:
    code = "import sys; from pccl.cli import main; main(['stress', *sys.argv[1:]])"
    return [sys.executable, "-c", code, "--out", str(out), *arguments]


CHECKOUT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "bench")}

PLANTED = """
import sys
from pathlib import Path
from stress.command import run
from stress.options import Options
from stress.schedule import Fault

out, plant, workload, seconds, kind = Path(sys.argv[1]), *sys.argv[2:]
faults = [Fault(at=0.99, kind=kind, slot=1, how="in retry")] if kind else None
options = Options(peers=3, seconds=float(seconds), seed=1, elements=4096, every=5, rates={}, beat=2, backend="pccl", baseline=0,
                  keep_going=False, out=out, log=out / "events.jsonl", plant=plant, workload=workload)
sys.exit(run(options, faults))
"""


def planted(out: Path, plant: str, workload: str, seconds: str = "60", kind: str = "") -> list[str]:
    return [sys.executable, "-c", PLANTED, str(out), plant, workload, seconds, kind]


def events(path: Path, kind: str) -> list[dict[str, object]]:
    """Of a log that may still be written."""
    whole = path.read_text().rpartition("\n")[0]
    return [event for event in map(json.loads, whole.splitlines()) if event["event"] == kind]


@pytest.mark.timeout(320)
def test_a_run_passes(tmp_path: Path) -> None:
    # the machine may be busy with other tests: a limit that nobody meets by being slow
    faults = "kill=3,stop=1,cut=2,delay=2,join=1"
    size = ["--seconds", "10", "--peers", "3", "--elements", "65536", "--baseline", "2"]
    arguments = [*size, "--seed", "54", "--heartbeat-limit", "2.5", "--fault-every", "1", "--faults", faults]
    done = subprocess.run(stress(tmp_path, *arguments), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASSED")
    log = tmp_path / "events.jsonl"
    (start,), (end,) = events(log, "start"), events(log, "end")
    applied = [event["fault"] for event in events(log, "fault")]
    applied.sort(key=lambda fault: fault["at"])  # a kill may wait for its moment
    assert [fault | {"step": None} for fault in applied] == start["faults"]
    assert {fault["kind"] for fault in applied} == {"kill", "stop", "cut", "delay", "join"}
    outcome = end["outcome"]
    assert outcome["passed"]
    assert outcome["kept"] > 0
    assert outcome["counts"]["ops"] > 100
    assert outcome["counts"]["losses seen"] > 0
    assert json.loads((tmp_path / "summary.json").read_text())["goodput"] == outcome["goodput"]
    assert (tmp_path / "throughput.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(320)
@pytest.mark.parametrize("backend", ["gloo", "torchft"])
def test_other_backends_run_under_the_same_schedule(tmp_path: Path, backend: str) -> None:
    there = all(importlib.util.find_spec(name) for name in ("torch", backend.replace("gloo", "torch")))
    arguments = ["--backend", backend, "--seconds", "6", "--seed", "40", "--fault-every", "1.5", "--elements", "4096"]
    done = subprocess.run(stress(tmp_path, *arguments, "--baseline", "0"), capture_output=True, text=True, timeout=150)
    if not there:
        assert done.returncode == 2
        assert f"--backend {backend} needs" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    (end,) = events(tmp_path / "events.jsonl", "end")
    assert end["outcome"]["goodput"] > 0


@pytest.mark.timeout(320)
@pytest.mark.parametrize(("workload", "seed"), [("diloco", "3"), ("async", "1"), ("streaming", "3")])
def test_training_goes_on_under_faults(tmp_path: Path, workload: str, seed: str) -> None:
    pytest.importorskip("torch")
    faults = ["--faults", "kill=3,cut=1,delay=1,join=2,master=1", "--fault-every", "0.4", "--heartbeat-limit", "2.5"]
    arguments = ["--workload", workload, "--seed", seed, "--seconds", "2", "--elements", "16384", "--baseline", "0", *faults]
    done = subprocess.run(stress(tmp_path, *arguments), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    (end,) = events(tmp_path / "events.jsonl", "end")
    assert end["outcome"]["counts"]["losses seen"] > 0


@pytest.mark.timeout(320)
def test_a_kill_that_waits_for_its_moment_comes_before_the_end(tmp_path: Path) -> None:
    done = subprocess.run(planted(tmp_path, "", "mixed", "1", "kill"), capture_output=True, text=True, timeout=150, env=CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    gone = {event["serial"]: event["status"] for event in events(tmp_path / "events.jsonl", "gone")}
    assert gone == {0: 0, 1: -signal.SIGKILL, 2: 0, 3: 0}


@pytest.mark.timeout(320)
def test_a_full_disk_ends_the_run_and_says_so(tmp_path: Path) -> None:
    done = subprocess.run(stress(tmp_path, "--log", "/dev/full"), capture_output=True, text=True, timeout=150)
    assert done.returncode == 1
    assert "cannot write to /dev/full: No space left on device" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.timeout(320)
def test_a_standby_takes_over(tmp_path: Path) -> None:
    faults = ["--faults", "master,kill", "--fault-every", "2", "--seed", "7"]  # one master is killed, early
    size = ["--seconds", "9", "--elements", "65536", "--baseline", "0", "--heartbeat-limit", "2.5"]
    done = subprocess.run(stress(tmp_path, "--standbys", "1", *faults, *size), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / "events.jsonl"
    ((killed, away),) = [(one["t"], one["fault"]["back"]) for one in events(log, "fault") if one["fault"]["kind"] == "master"]
    assert away > 3
    steps = [(one["t"], one["steps"]) for one in events(log, "sample")]
    before, after = (max((int(count) for at, count in steps if at < end), default=0) for end in (killed, killed + away))
    assert after > before  # while the first master was away


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    ("plant", "workload", "claim"),
    [("wrong-sum", "mixed", "sum"), ("hang", "mixed", "hang"), ("wrong-sum", "streaming", "sum")],
)
def test_what_is_planted_is_found(tmp_path: Path, plant: str, workload: str, claim: str) -> None:
    if workload != "mixed":
        pytest.importorskip("torch")
    done = subprocess.run(planted(tmp_path, plant, workload), capture_output=True, text=True, timeout=150, env=CHECKOUT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("FAILED")
    (end,) = events(tmp_path / "events.jsonl", "end")
    assert claim in end["outcome"]["broken"]
    if plant == "hang":
        assert any("_plant" in log.read_text() for log in tmp_path.glob("peer-*.log"))  # the stacks


def children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
        found = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found.union(*map(children, found))


def gone(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


@contextlib.contextmanager
def under_way(out: Path) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A run, and the processes that it has started."""
    command = stress(out, "--seconds", "60", "--baseline", "0", "--fault-every", "0.5")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            end = time.monotonic() + 60
            pids: set[int] = set()
            # who starts them, the master, and some peers; faults take some away for a while
            while not (out / "events.jsonl").exists() or len(events(out / "events.jsonl", "fault")) < 4 or len(pids) < 4:
                assert time.monotonic() < end
                assert run.poll() is None
                time.sleep(0.1)
                pids = children(run.pid)
            yield run, pids
        finally:
            run.kill()


def wait_for_the_end_of(pids: set[int]) -> None:
    end = time.monotonic() + 60
    while not all(map(gone, pids)):
        assert time.monotonic() < end, [pid for pid in pids if not gone(pid)]
        time.sleep(0.05)


@pytest.mark.timeout(320)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with under_way(tmp_path) as (run, pids):
        os.kill(run.pid, number)
        output = run.communicate(timeout=60)[0]
        assert run.returncode == 128 + number, output
        assert f"ended by {number.name}" in output
        assert "Traceback" not in output
        (end,) = events(tmp_path / "events.jsonl", "end")  # what was done until then
        assert end["outcome"]["counts"]["ops"] > 0
        assert json.loads((tmp_path / "summary.json").read_text())["cut_short"] == f"ended by {number.name}"
        assert (tmp_path / "throughput.png").stat().st_size > 0
        wait_for_the_end_of(pids)


@pytest.mark.timeout(320)
def test_nobody_outlives_the_orchestrator(tmp_path: Path) -> None:
    with under_way(tmp_path) as (run, pids):
        run.kill()
        run.wait()
        wait_for_the_end_of(pids)
