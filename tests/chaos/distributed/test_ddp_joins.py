"""Newcomers in a DDP training while processes are killed: nobody hangs, the others go on with the same bits."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from performers import PATIENCE
from test_ddp_losses import masters_of
from trainers import Job

STEPS = 10
MORE = 2 * STEPS

NEWCOMERS_DIE = ["before _broadcast", "after _broadcast", "before _share", "after _share"]
MEMBERS_DIE = ["before update_topology", "after update_topology", *NEWCOMERS_DIE]


def test_several_newcomers_at_once(tmp_path):
    with Job(tmp_path) as job:
        old = job.start(2)
        for trainer in old:
            trainer.tell("train", STEPS)
        assert [trainer.answer() for trainer in old] == [2, 2]
        masters = job.masters()
        everybody = [*old, *(job.join(masters) for _ in range(3))]
        for trainer in everybody:
            trainer.tell("train", 10 * STEPS, None, 0.02)
        assert [trainer.answer(2 * PATIENCE) for trainer in everybody] == [5] * 5
        assert job.steps()[10 * STEPS - 1][0]["contributors"] == [5] * 8


@pytest.mark.parametrize("where", NEWCOMERS_DIE)
def test_a_newcomer_that_dies_while_it_joins(tmp_path, where):
    with Job(tmp_path) as job:
        old = job.start(2)
        fresh = job.join(job.masters())
        fresh.ask("harm", where)
        for trainer in [*old, fresh]:
            trainer.tell("train", MORE, None, 0.02)
        assert [trainer.answer() for trainer in old] == [2, 2]
        assert fresh.answer() is None
        assert list(job.steps()) == list(range(MORE))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("where", MEMBERS_DIE)
def test_a_member_that_dies_while_it_lets_a_newcomer_in(tmp_path, where, rank):
    with Job(tmp_path) as job:
        old = job.start(3)
        fresh = job.join(job.masters())
        old[rank].ask("harm", where)
        for trainer in [*old, fresh]:
            trainer.tell("train", 5 * STEPS, None, 0.02)
        alive = [*(trainer for trainer in old if trainer.number != rank), fresh]
        assert [trainer.answer() for trainer in alive] == [3, 3, 3]
        steps = job.steps()
        assert list(steps) == list(range(5 * STEPS))
        assert steps[5 * STEPS - 1][0]["contributors"] == [3] * 8


def test_the_only_member_dies_while_it_lets_a_newcomer_in(tmp_path):
    with Job(tmp_path) as job:
        (old,) = job.start(1)
        fresh = job.join(job.masters())
        old.ask("harm", "before _broadcast")
        for trainer in (old, fresh):
            trainer.tell("train", STEPS)
        with pytest.raises(AssertionError, match=r"JoinError.*the run has ended"):
            fresh.answer()


def test_a_master_that_dies_during_a_join(tmp_path):
    with Job(tmp_path) as job:
        old = job.start(3)
        fresh = job.join(job.masters())
        master = masters_of(job)[0]
        for trainer in [*old, fresh]:
            trainer.tell("train", 20 * STEPS, None, 0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(master, signal.SIGKILL)
        assert [trainer.answer(2 * PATIENCE) for trainer in [*old, fresh]] == [4] * 4
        assert list(job.steps()) == list(range(20 * STEPS))


def test_a_newcomer_without_a_run_is_told(tmp_path):
    with Job(tmp_path) as job:
        fresh = job.join("127.0.0.1:9")
        fresh.tell("train", STEPS)
        with pytest.raises(AssertionError, match=r"could not join the run at 127\.0\.0\.1:9"):
            fresh.answer()
