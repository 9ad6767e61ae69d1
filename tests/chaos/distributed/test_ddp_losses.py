"""Unmodified DistributedDataParallel while its processes are killed or stopped: right averages, the same bits, no hang.

Each rank checks by itself that every gradient is the average over members that were there (`trainers.Trainer`).
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from performers import PATIENCE, Performer
from trainers import Job, reference

STEPS = 12
AT = 4
MOMENTS = ["before", "forward", "backward", "reduce", "broadcast", "after"]


def train(trainers: list[Performer], until: int, ends: dict[int, tuple[int, str]] | None = None) -> list[int]:
    """World sizes at the end, of those that are there still."""
    ends = ends or {}
    for trainer in trainers:
        trainer.tell("train", until, ends.get(trainer.number))
    return [trainer.answer() for trainer in trainers if trainer.number not in ends]


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_each_moment(tmp_path, rank, moment):
    with Job(tmp_path, options={"bucket_cap_mb": 0.01}) as job:
        assert train(job.start(3), STEPS, {rank: (AT, moment)}) == [2, 2]
        steps = job.steps()
        assert list(steps) == list(range(STEPS))
        assert [len(steps[step]) for step in range(AT)] == [3] * AT
        assert [sorted(one["rank"] for one in steps[step]) for step in range(AT + 1, STEPS)] == [[0, 1]] * (STEPS - AT - 1)
        assert all(one["contributors"] == [2] * 8 for one in steps[STEPS - 1])


def test_the_loss_is_that_of_one_process_with_the_same_contributors(tmp_path):
    with Job(tmp_path, options={"bucket_cap_mb": 0.01}) as job:
        train(job.start(4), STEPS, {0: (AT, "reduce"), 2: (AT + 3, "backward")})
        steps = job.steps()
    assert [steps[step][0]["loss"] for step in steps] == pytest.approx(reference(64, steps), rel=1e-4)


@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}])
def test_ways_to_use_the_wrapper(tmp_path, options):
    with Job(tmp_path, options={"bucket_cap_mb": 0.01, **options}) as job:
        assert train(job.start(3), STEPS, {0: (AT, "reduce")}) == [2, 2]
        assert list(job.steps()) == list(range(STEPS))


@pytest.mark.parametrize("hook", ["python", "builtin"])
def test_hooks(tmp_path, hook):
    with Job(tmp_path, options={"bucket_cap_mb": 0.01}, hook=hook) as job:
        assert train(job.start(3), STEPS, {1: (AT, "reduce")}) == [2, 2]
        assert list(job.steps()) == list(range(STEPS))


@pytest.mark.parametrize(("first", "second"), [(AT, AT), (AT, AT + 1)])
def test_two_deaths_in_a_row(tmp_path, first, second):
    with Job(tmp_path, options={"bucket_cap_mb": 0.01}) as job:
        assert train(job.start(4), STEPS, {0: (first, "reduce"), 1: (second, "backward")}) == [2, 2]
        steps = job.steps()
        assert list(steps) == list(range(STEPS))
        assert steps[STEPS - 1][0]["contributors"] == [2] * 8


def test_all_but_one_die(tmp_path):
    with Job(tmp_path) as job:
        assert train(job.start(3), STEPS, {0: (AT, "reduce"), 2: (AT + 2, "forward")}) == [1]
        assert job.steps()[STEPS - 1][0]["contributors"] == [1] * 8


def test_kills_from_outside_at_random(tmp_path):
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    with Job(tmp_path, options={"bucket_cap_mb": 0.01}) as job:
        trainers = job.start(4)
        ends = {rank: (moments.randrange(2, 40), f"later {moments.random() * 0.02:.6f}") for rank in (0, 2)}
        assert train(trainers, 60, ends) == [2, 2], (seed, ends)
        assert list(job.steps()) == list(range(60)), (seed, ends)


def test_a_rank_that_is_stopped_is_given_up(tmp_path):
    with Job(tmp_path) as job:
        trainers = job.start(3)
        for trainer in trainers:
            trainer.tell("train", 100, None, 0.02)
        trainers[0].signal(signal.SIGSTOP)
        assert [trainer.answer(2 * PATIENCE) for trainer in trainers[1:]] == [2, 2]
        steps = job.steps()
        assert steps[99][0]["contributors"] == [2] * 8
        trainers[0].signal(signal.SIGCONT)
        # The latter, if its own vote was open when it was expelled.
        assert trainers[0].answer() in ("MASTER_CONNECTION_FAILED", "RANK_CONNECTION_FAILED")


def masters_of(job: Job) -> list[int]:
    """The processes of the masters, in their order."""
    masters = job.masters().split(",")
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "--listen" in words and words[words.index("--listen") + 1] in masters:
            found[words[words.index("--listen") + 1]] = int(entry.name)
    return [found[one] for one in masters]


@pytest.mark.parametrize("place", [0, 1])
def test_the_death_of_a_master_stops_nobody(tmp_path, place):
    with Job(tmp_path) as job:
        trainers = job.start(3)
        train(trainers, AT)
        os.kill(masters_of(job)[place], signal.SIGKILL)
        assert train(trainers, STEPS) == [3, 3, 3]
        assert train(trainers, 2 * STEPS, {0: (STEPS + 1, "reduce")}) == [2, 2]
        assert list(job.steps()) == list(range(2 * STEPS))


def test_a_master_and_a_rank_die_together(tmp_path):
    with Job(tmp_path) as job:
        trainers = job.start(3)
        train(trainers, AT)
        masters = masters_of(job)
        for trainer in trainers:
            trainer.tell("train", 100, None, 0.02)
        os.kill(masters[0], signal.SIGKILL)
        trainers[0].signal(signal.SIGKILL)
        assert [trainer.answer(2 * PATIENCE) for trainer in trainers[1:]] == [2, 2]
        assert list(job.steps()) == list(range(100))
