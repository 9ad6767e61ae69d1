"""Sharded models: members that fail on their own, leave in order, or have another model. The others have the exact state."""

from __future__ import annotations

import os
import signal
import time
from uuid import UUID

import pytest
from sharded_kills import Job

from pccl._core.address import parse_endpoints
from pccl._watch.diagnosis import remove_member

pytestmark = pytest.mark.timeout(120)


def end_together(job: Job) -> None:
    lasts = job.end(job.newest() + 20)
    assert len(set(lasts)) == 1


OTHERS = {
    "model": ({"more": 3}, r"JoinError.*first\.weight is .*\(201, 97\) at rank 0 .* and .*\(204, 97\) at rank 2 "),
    "snapshots": ({"every": 9}, r"JoinError.*every of Snapshots is 4 at rank 0 .* and 9 at rank 2 "),
}


@pytest.mark.parametrize(("other", "text"), OTHERS.values(), ids=OTHERS)
def test_a_newcomer_with_another_model_or_other_snapshots_is_refused_and_the_others_go_on(tmp_path, other, text):
    with Job(tmp_path, every=4, holder=False) as job:
        job.start(2)
        job.wait_for_step(5)
        number = job.join(**other)
        job.may_fail.add(number)
        stranger = job.members.pop(number)
        stranger.answer()
        with pytest.raises(AssertionError, match=text):
            stranger.answer()
        job.wait_for_size(2)
        steps = job.newest()
        job.wait_for_step(steps + 5)
        changes = [one for one in job.happened if one["event"] == "changed" and one["member"] in job.members]
        assert all(one["step"] == one["before"] for one in changes)  # nothing is lost
        end_together(job)


IN_RESTORE = ["outline", "remesh", "carry out", "verify", "values"]
IN_SNAPSHOT = ["exchange of layouts", "send", "receive"]


@pytest.mark.parametrize("place", [*IN_RESTORE, *IN_SNAPSHOT])
def test_a_member_that_fails_on_its_own_leaves_and_the_others_go_on(tmp_path, place):
    """It fails while the parts of another one are restored, or in the snapshot after that."""
    with Job(tmp_path, every=1000, copies=2, holder=False) as job:
        job.start(4, fails={2: place} if place in IN_RESTORE else {})
        job.wait_for(lambda: all(job.last(number, "step").get("complete") == 0 for number in job.members))
        if place in IN_SNAPSHOT:
            job.fail_in(2, place)
        job.may_fail.add(2)
        job.members.pop(2)
        job.kill(1)
        job.wait_for_size(2)
        job.wait_for(lambda: "kind" in job.last(2, "failed"))
        assert f"no memory in {place}" in job.last(2, "failed")["text"] + (tmp_path / "stderr.2").read_text()
        end_together(job)


@pytest.mark.parametrize("place", ["image", "hash", "store"])
def test_a_snapshot_that_one_member_cannot_take_is_taken_by_none(tmp_path, place):
    with Job(tmp_path, every=4, copies=1, holder=False) as job:
        job.start(3)
        job.wait_for_step(6)
        job.fail_in(2, place)
        job.wait_for_step(job.newest() + 20)
        assert not any(one["event"] == "changed" and one["before"] for one in job.happened)  # nobody has left
        job.kill(2)
        job.wait_for_size(2)
        end_together(job)


def test_a_member_is_lost_before_the_first_snapshot_with_a_newcomer(tmp_path):
    """Copies are those of the snapshot before."""
    with Job(tmp_path, every=1000, copies=1, holder=False) as job:
        job.start(3)
        job.wait_for(lambda: all(job.last(number, "step").get("complete") == 0 for number in job.members))
        job.arm(1, "snapshot", 4)
        job.join()
        job.wait_for(lambda: bool(job.reap()))
        job.wait_for_size(3)
        assert all(job.last(number, "changed")["step"] == 0 for number in job.members)
        end_together(job)


def drain(job: Job, number: int) -> None:
    """As an operator does it, who has the keys of the job's master."""
    masters, keys = job.where
    member = UUID(job.last(number, "changed")["id"])
    remove_member(parse_endpoints(masters)[0], member, at_update=True, keys=keys.removesuffix(".peer") + ".master")


@pytest.mark.parametrize(("rank", "how"), [(0, "signal"), (2, "signal"), (1, "drain")])
def test_a_signal_or_an_operator_makes_a_member_leave_and_no_step_is_lost(tmp_path, rank, how):
    with Job(tmp_path, every=1000, copies=1, holder=False) as job:
        job.start(4)
        job.wait_for_step(7)
        goes = job.members.pop(rank)
        if how == "signal":
            goes.signal(signal.SIGTERM)
        else:
            drain(job, rank)
        step = goes.answer()
        job.wait_for_size(3)
        changes = [one for one in job.happened if one["event"] == "changed" and one["before"]]
        assert [(one["step"], one["before"], one["complete"]) for one in changes] == [(step, step, True)] * 3
        job.kill(min(job.members))  # its part is where the three have put it
        job.wait_for_size(2)
        assert job.last(max(job.members), "changed")["step"] == step
        end_together(job)


def test_all_leave_at_once_and_others_go_on_at_the_same_step(tmp_path):
    name = f"test-{os.getpid()}-all-leave"
    with Job(tmp_path, every=1000, copies=1, name=name) as job:
        job.start(2)
        job.wait_for_step(7)
        step = job.newest() + 5
        job.leave_at(step)
        assert [member.answer() for member in job.members.values()] == [step] * 2
    (tmp_path / "again").mkdir()
    with Job(tmp_path / "again", every=1000, copies=1, name=name) as job:
        job.start(3)
        job.wait_for_size(3)
        assert [job.last(number, "changed")["step"] for number in job.members] == [step] * 3
        end_together(job)


def test_a_signal_to_all_ends_the_job_without_dividing_the_state_among_ever_fewer(tmp_path):
    name = f"test-{os.getpid()}-signal-to-all"
    with Job(tmp_path, every=1000, copies=1, name=name) as job:
        job.start(4)
        job.wait_for_step(7)
        for member in job.members.values():
            for _ in range(2):  # as from a scheduler and a launcher
                member.signal(signal.SIGTERM)
            time.sleep(0.1)
        (step,) = {member.answer() for member in job.members.values()}
        assert not [one for one in job.happened if one["event"] == "changed" and one["before"]]
    (tmp_path / "again").mkdir()
    with Job(tmp_path / "again", every=1000, copies=1, name=name) as job:
        job.start(2)
        job.wait_for_size(2)
        assert [job.last(number, "changed")["step"] for number in job.members] == [step] * 2
        end_together(job)
