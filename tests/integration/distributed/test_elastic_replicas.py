"""Sharded models with replicas (HSDP) survive: while replicas that live have the whole state, no step is lost."""

from __future__ import annotations

import time

import pytest
import torch
from elastic_shards import Job
from sharded_trainers import ask

pytestmark = pytest.mark.timeout(120)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Sums of other numbers of ranks differ in their last bits."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def undisturbed():
    """States of a run without a loss, by the step that it ends at."""
    with Job() as job:
        members = job.start(2)
        found = {}
        for until in (14, 20):
            ask(members, "train", until)
            found[until] = ask(members, "whole")[0]
        ask(members, "leave")
        return found


@pytest.mark.parametrize(("place", "step"), [("backward", 10), ("last call", 10), ("step", 11)])
def test_no_step_is_lost_with_a_member(undisturbed, place, step):
    """Members that need nothing of the lost one end their step, too; if all have agreed to step, all survivors do."""
    with Job(shards=2) as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train", 14, 10 if rank == 1 else None, 0.0, 0, place)
        three = [four[0], four[2], four[3]]
        assert [member.answer() for member in three] == [[(0, 4), (step, 3)]] * 3
        assert ask(three, "mesh") == [(1, 3)] * 3
        close(ask(three, "whole")[0], undisturbed[14])
        ask(three, "leave")


def test_the_mesh_returns_with_a_new_member(undisturbed):
    with Job(shards=2, every=4, copies=1) as job:
        four = job.start(4)
        ask(four, "train", 10)
        four[0].kill()
        three = four[1:]
        assert [changes[-1] for changes in ask(three, "train", 14)] == [(10, 3)] * 3
        assert ask(three, "mesh") == [(1, 3)] * 3
        again = [*three, job.join(three[0].ask("where"))]
        for member in again:
            member.tell("train", 20, None, 0.01, 4)
        assert {member.answer()[-1][1] for member in again} == {4}
        assert ask(again, "mesh") == [(2, 2)] * 4
        states = ask(again, "whole")
        assert all(torch.equal(states[0][name], one[name]) for one in states for name in states[0])
        if int(states[0]["steps of the schedule"]) == 20:
            close(states[0], undisturbed[20])
        ask(again, "leave")


def test_no_step_is_lost_with_a_replica(undisturbed):
    with Job(shards=2, every=4, copies=1) as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train", 14, 10 if rank > 1 else None, 0.0, 0, "backward")
        two = four[:2]
        changes = [member.answer() for member in two]
        assert changes[0] == changes[1]
        assert {step for step, _ in changes[0][1:]} == {10}
        assert ask(two, "mesh") == [(1, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_no_step_is_lost_with_a_member_and_another_one_at_the_end_of_the_sync_after(undisturbed):
    with Job(shards=2) as job:
        four = job.start(4)
        ask(four, "train", 10)
        four[0].ask("die_at_message", "restore", 7)
        for member in four:
            member.tell("train", 14)
        four[3].kill()
        two = four[1:3]
        assert [member.answer()[-1] for member in two] == [(10, 2)] * 2
        assert ask(two, "mesh") == [(1, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_a_member_that_has_stepped_when_others_have_not_takes_their_state(undisturbed):
    with Job(shards=2) as job:
        four = job.start(4)
        ask(four, "train", 10)
        ask(four, "half_a_step", [1])
        four[2].kill()
        three = [four[0], four[1], four[3]]
        assert [changes[-1] for changes in ask(three, "train", 14)] == [(10, 3)] * 3
        close(ask(three, "whole")[0], undisturbed[14])
        ask(three, "leave")


def test_a_call_in_flight_that_nobody_waits_for_is_ended(undisturbed):
    with Job(shards=2) as job:
        four = job.start(4)
        ask(four, "train", 10)
        ask(four, "begin_alone")
        four[1].kill()
        three = [four[0], four[2], four[3]]
        assert [changes[-1] for changes in ask(three, "train", 14)] == [(10, 3)] * 3
        close(ask(three, "whole")[0], undisturbed[14])
        ask(three, "leave")


def test_without_all_parts_the_last_snapshot_counts(undisturbed):
    """One copy of each part is that of the other replica, so the second one is at a member with another part."""
    with Job(shards=2, every=4, copies=2, holder=False) as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train", 14, 10 if rank in (0, 2) else None)
        two = [four[1], four[3]]
        assert [member.answer()[-1] for member in two] == [(8, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_without_all_parts_and_snapshots_the_state_is_lost():
    with Job(shards=2) as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train_and_lose", 14, 10 if rank in (0, 2) else None)
        assert ["no member holds a snapshot" in four[rank].answer() for rank in (1, 3)] == [True, True]


def test_a_member_that_leaves_after_the_last_step_ends_no_call_of_others():
    with Job(shards=2) as job:
        four = job.start(4)
        ask(four, "train", 2)
        four[2].tell("sum_in_replica")
        ask(four[:2], "leave")
        while four[3].ask("members_left") > 2:
            time.sleep(0.01)
        time.sleep(0.2)  # in which the other one has looked for losses
        four[3].tell("sum_in_replica")
        assert [member.answer() for member in four[2:]] == [5, 5]
        ask(four[2:], "leave")
