"""Training frameworks on pccl: the same losses as on gloo, to the end after a kill, and with a process that joins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path

import jobs
import pytest


@dataclass(frozen=True)
class Case:
    """A framework, and how its program is run."""

    name: str
    distribution: str
    module: str
    program: str
    wrap: tuple[str, ...] = ()
    launcher: str = "torchrun"
    kills: tuple[int, ...] = (1, 0)
    """Ranks that are killed, one per run."""
    no_join: str = ""
    """Why no process can join."""
    more: tuple[str, ...] = field(default=())
    """Fields of the reports that have to equal those on gloo."""


CASES = [
    Case("torch DDP", "torch", "torch", "plain_ddp.py", more=("rate",)),
    Case("nanoGPT", "torch", "torch", "nano_gpt.py", no_join="no: train.py has no step to begin at"),
    Case("accelerate", "accelerate", "accelerate", "accelerate_loop.py", wrap=("--as", "gloo"), more=("means", "rate")),
    Case(
        "transformers Trainer", "transformers", "transformers", "trainer.py", wrap=("--as", "gloo"), more=("evaluation", "saved")
    ),
    Case("Lightning Trainer", "lightning", "lightning", "lightning_trainer.py", more=("mean", "saved")),
    Case("Lightning Fabric", "lightning", "lightning", "fabric.py", more=("means",)),
    Case("DeepSpeed ZeRO-0", "deepspeed", "deepspeed", "deepspeed_zero0.py", no_join="no: the engine makes its groups once"),
    Case("Ray Train", "ray", "ray", "ray_train.py", launcher="python", kills=(1,), no_join="by Ray, which restarts all workers"),
]
IDS = [case.program.removesuffix(".py") for case in CASES]


@pytest.fixture
def case(request):
    if util.find_spec(request.param.module) is None:
        pytest.skip("not installed")
    return request.param


every_case = pytest.mark.parametrize("case", CASES, ids=IDS, indirect=True)
pytestmark = pytest.mark.timeout(3 * jobs.LIMIT)


def show(job: jobs.Job) -> str:
    return f"status {job.status}, reports {job.reports}:\n{job.output[-8000:]}"


@every_case
@pytest.mark.cell("equals gloo")
def test_losses_are_those_of_gloo(case, tmp_path):
    runs = {
        backend: jobs.run(case.program, tmp_path / backend, backend, members=2, wrap=case.wrap, launcher=case.launcher)
        for backend in ("gloo", "pccl")
    }
    for job in runs.values():
        assert job.status == 0, show(job)
        assert len(job.reports) == 2, show(job)
        assert len(job.weights()) == 1, show(job)
    assert {report["backend"] for report in runs["pccl"].reports} == {"pccl"}, show(runs["pccl"])
    told = {backend: sorted(job.reports, key=lambda report: report["rank"]) for backend, job in runs.items()}
    for ours, theirs in zip(told["pccl"], told["gloo"], strict=True):
        for name in ("losses", "weights", *case.more):
            assert ours[name] == theirs[name], name
        assert len(ours["losses"]) >= 3, show(runs["pccl"])


@every_case
@pytest.mark.cell("survives a kill")
def test_survivors_of_a_kill_train_to_the_end(case, tmp_path):
    for rank in case.kills:
        job = jobs.run(case.program, tmp_path / str(rank), "pccl", members=3, kill=rank, wrap=case.wrap, launcher=case.launcher)
        assert job.status == 0, show(job)
        if case.launcher == "torchrun":
            assert "was killed by SIGKILL" in job.output, show(job)
            survivors = {report["first_rank"] for report in job.reports}
            assert survivors == {0, 1, 2} - {rank}, show(job)
            assert {report["world_size"] for report in job.reports} == {2}, show(job)
        else:  # the survivors had trained to the end before all began again
            job.reports = [report for report in job.reports if report["restarted"]]
            assert len(job.reports) == 3, show(job)
        assert len(job.weights()) == 1, show(job)
        check_roles(case, job)


@every_case
@pytest.mark.cell("a process joins")
def test_a_killed_process_comes_back(case, tmp_path):
    if case.no_join:
        pytest.skip(case.no_join)
    job = jobs.run(case.program, tmp_path / "job", "pccl", members=3, kill=1, join=True, wrap=case.wrap)
    assert job.status == 0, show(job)
    assert [report["newcomer"] for report in job.reports].count(True) == 1, show(job)
    assert {report["world_size"] for report in job.reports} == {3}, show(job)
    assert len(job.weights()) == 1, show(job)
    check_roles(case, job)
    if "rate" in case.more:
        assert len({str(report["rate"]) for report in job.reports}) == 1, show(job)


FIXED = {
    "accelerate": ("accelerate_data.py", ("--as", "gloo")),
    "transformers": ("trainer.py", ("--as", "gloo")),
    "deepspeed": ("deepspeed_zero0.py", ()),
}
"""Programs of frameworks that run with fixed membership, by module."""


@pytest.mark.parametrize("module", FIXED)
def test_unmodified_programs_survive_a_kill_with_fixed_membership(module, tmp_path):
    """Nothing in them calls pccl. The losses are those of an undisturbed run within noise."""
    if util.find_spec(module) is None:
        pytest.skip("not installed")
    program, wrap = FIXED[module]
    undisturbed: dict[int, list[float]] = {}
    for kill in (None, 1, 0):
        folder = tmp_path / str(kill)
        job = jobs.run(program, folder, "pccl", members=3, kill=kill, wrap=wrap, membership="fixed", adapted=False)
        assert job.status == 0, show(job)
        assert {report["rank"] for report in job.reports} == {0, 1, 2} - {kill}, show(job)
        assert {report["world_size"] for report in job.reports} == {3}, show(job)
        assert len(job.weights()) == 1, show(job)
        for report in job.reports:
            assert all(mean == 1.0 for mean in report.get("means", ())), show(job)
            assert report.get("count", 7 * 16) == 7 * 16, show(job)
            last = undisturbed.setdefault(report["rank"], report["losses"])[-4:]
            assert sum(report["losses"][-4:]) == pytest.approx(sum(last), rel=0.1), show(job)


@pytest.mark.parametrize("kill", [1, 0])
@pytest.mark.parametrize("program", ["plain_ddp.py", "accelerate_loop.py", "trainer.py", "deepspeed_zero0.py"])
def test_a_replacement_takes_the_lost_rank_with_fixed_membership(program, kill, tmp_path):
    case = next(case for case in CASES if case.program == program)
    if util.find_spec(case.module) is None:
        pytest.skip("not installed")
    job = jobs.run(program, tmp_path / "job", "pccl", members=3, kill=kill, join=True, wrap=case.wrap, membership="fixed")
    assert job.status == 0, show(job)
    assert {report["rank"]: report["newcomer"] for report in job.reports} == {rank: rank == kill for rank in range(3)}, show(job)
    assert {report["world_size"] for report in job.reports} == {3}, show(job)
    assert len(job.weights()) == 1, show(job)
    check_roles(case, job)


UNMODIFIED = {
    "torch": ("plain_ddp.py", ()),
    "accelerate": ("accelerate_data.py", ("--as", "gloo")),
    "transformers": ("trainer.py", ("--as", "gloo")),
    "deepspeed": ("deepspeed_zero0.py", ()),
}
"""Programs that call nothing of pccl, by what --adapt takes."""


@pytest.mark.parametrize("kill", [1, 0])
@pytest.mark.parametrize("module", UNMODIFIED)
def test_an_unmodified_program_takes_a_replacement(module, kill, tmp_path):
    """The Trainer and accelerate make several epochs. The losses are those of an undisturbed run within noise."""
    if util.find_spec(module) is None:
        pytest.skip("not installed")
    program, wrap = UNMODIFIED[module]
    wrap = (*wrap, "--adapt", module)
    folder = tmp_path / "job"
    job = jobs.run(program, folder, "pccl", members=3, kill=kill, join=True, wrap=wrap, membership="fixed", adapted=False)
    assert job.status == 0, show(job)
    assert {report["rank"]: report["newcomer"] for report in job.reports} == {rank: rank == kill for rank in range(3)}, show(job)
    assert len(job.weights()) == 1, show(job)
    for name in ("evaluation", "rate", "accuracy"):
        assert len({str(report.get(name)) for report in job.reports}) == 1, show(job)
    made = max(len(report["losses"]) for report in job.reports)
    calm = jobs.run(program, tmp_path / "calm", "pccl", members=3, wrap=wrap, membership="fixed", adapted=False, exactly=made)
    assert calm.status == 0, show(calm)
    means = [{report["rank"]: sum(report["losses"][-8:]) / 8 for report in one.reports} for one in (job, calm)]
    disturbed, undisturbed = ([one[rank] for rank in range(3)] for one in means)
    print(f"{program}, rank {kill} killed: after {made} steps losses of {disturbed}, undisturbed of {undisturbed}")
    assert disturbed == pytest.approx(undisturbed, rel=0.25, abs=0.02), show(job)


@pytest.mark.skipif(util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_zero_stage_1_loses_parts_of_its_state_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ZERO_STAGE", "1")
    job = jobs.run("deepspeed_zero0.py", tmp_path / "job", "pccl", members=3, kill=1, membership="fixed", adapted=False)
    assert job.status != 0, show(job)
    assert "it needs rank 1, which is lost" in job.output, show(job)
    assert not job.reports, show(job)


@pytest.mark.skipif(util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_zero_stage_1_is_refused_where_replacements_are_to_join(tmp_path, monkeypatch):
    monkeypatch.setenv("ZERO_STAGE", "1")
    wrap = ("--adapt", "deepspeed")
    job = jobs.run("deepspeed_zero0.py", tmp_path / "job", "pccl", members=2, wrap=wrap, membership="fixed", adapted=False)
    assert job.status != 0, show(job)
    assert "use ZeRO stage 0" in job.output, show(job)


def check_roles(case: Case, job: jobs.Job) -> None:
    """What the adapters promise: sizes and means of the members that are left, and one process that writes checkpoints."""
    for report in job.reports:
        if "processes" in report:
            assert report["processes"] == report["world_size"], show(job)
        assert all(mean == 1.0 for mean in report.get("means", ())), show(job)
    if any("writer" in report for report in job.reports):
        assert [report["writer"] for report in job.reports].count(True) == 1, show(job)
    for report in job.reports:
        if "saved" in report:
            assert any("12" in name or "last" in name for name in report["saved"]), show(job)


@pytest.mark.skipif(util.find_spec("torchft") is None, reason="torchft is not installed")
def test_torchft_trains_by_its_own_tests(tmp_path):
    """LocalSGD and DiLoCo under torchft's Manager, with faults, from the tests in its wheel."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "torchft_plugin", "--pyargs", "torchft.local_sgd_integ_test"]
    environment = {**os.environ, "PYTHONPATH": str(jobs.PROGRAMS), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-2000:]


def test_each_program_is_in_the_table():
    programs = {path.name for path in Path(jobs.PROGRAMS).glob("*.py")} - {"common.py", "torchft_plugin.py", "lightning_data.py"}
    assert programs == {case.program for case in CASES}.union(program for program, _ in FIXED.values())


def test_lightning_reads_what_a_lost_member_has_left(tmp_path):
    """Three steps with three members, then two read the rest of the first epoch, and the second one."""
    if util.find_spec("lightning") is None:
        pytest.skip("not installed")
    program = Path(jobs.PROGRAMS) / "lightning_data.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3"]
    command += ["-m", "pccl.distributed.run", str(program), str(tmp_path)]
    subprocess.run(command, check=True, timeout=jobs.LIMIT)
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert told == [{"counts": {"6": 42, "5": 18}, "remaining": 0}] * 2
