"""Sharded models survive: their state comes from the memory of other members, and is divided among those who are there."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from elastic_shards import Job
from sharded_trainers import ask

EVERY = 4

pytestmark = pytest.mark.timeout(120)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Sums of other numbers of ranks differ in their last bits."""
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def undisturbed():
    """Losses and states of a run without a loss, by the step that it ends at."""
    with Job() as job:
        members = job.start(2)
        found = {}
        for until in (8, 14, 20):
            ask(members, "train", until)
            found[until] = ask(members, "whole")[0]
        ask(members, "leave")
        return found


@pytest.mark.parametrize("redundancy", [{"copies": 1}, {"code": (3, 1)}], ids=["copies", "code"])
def test_a_training_goes_on_from_the_last_snapshot_without_a_lost_member_and_then_with_a_new_one(undisturbed, redundancy):
    with Job(every=EVERY, **redundancy) as job:
        four = job.start(4)
        written = ask(four, "bytes_written")
        for rank, member in enumerate(four):
            member.tell("train", 14, 10 if rank == 1 else None)
        three = [four[0], four[2], four[3]]
        changes = [member.answer() for member in three]
        assert changes == [[(0, 4), (8, 3)]] * 3
        close(ask(three, "whole")[0], undisturbed[14])
        fresh = job.join(three[0].ask("where"))
        again = [*three, fresh]
        for member in again:
            member.tell("train", 20, None, 0.01, 4)
        changes = [member.answer() for member in again]
        step = changes[0][-1][0]
        assert step >= 14  # nothing is lost when somebody joins
        assert all(one[-1] == (step, 4) for one in changes)
        states = ask(again, "whole")
        assert all(torch.equal(states[0][name], one[name]) for one in states for name in states[0])
        if int(states[0]["steps of the schedule"]) == 20:
            close(states[0], undisturbed[20])
        # Less than any member's part of one snapshot: the kernel counts inodes whose times change.
        assert all(
            now - before < 100_000 for now, before in zip(ask(three, "bytes_written"), [written[0], *written[2:]], strict=True)
        )
        ask(again, "leave")


def test_two_losses_at_once_are_survived_by_a_code_with_two_rows(undisturbed):
    with Job(every=EVERY, code=(2, 2)) as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train", 14, 9 if rank in (0, 3) else None)
        two = four[1:3]
        assert [member.answer()[0] for member in two] == [(0, 4)] * 2
        assert [one[-1] for one in ask(two, "train", 14)] == [(8, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_more_losses_than_copies_are_an_error_on_all_that_names_what_is_missing():
    with Job(every=EVERY, copies=1, holder=False) as job:
        four = job.start(4)
        ask(four, "train", 8)
        for member in four:
            member.tell("train_and_lose", 1000)
        for victim in (1, 2):
            four[victim].kill()
        texts = [four[rank].answer() for rank in (0, 3)]
        assert texts[0] == texts[1]
        assert "the parts of ranks 1 of 4 are gone" in texts[0] or "the parts of ranks 1, 2 of 4 are gone" in texts[0]


def test_a_step_that_was_begun_is_not_taken_for_a_state(undisturbed):
    """The optimizer of some members has stepped, and that of others has not."""
    with Job(every=EVERY, copies=1) as job:
        three = job.start(3)
        ask(three, "train", 6)
        ask(three, "half_a_step")
        three[2].kill()
        two = three[:2]
        changes = ask(two, "train", 14)
        assert [one[-1] for one in changes] == [(4, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_the_holder_gives_the_part_of_a_killed_process_without_any_copy_elsewhere(undisturbed):
    """Both copies of the part of rank 1 are lost with ranks 1 and 2, but for the memory that the host keeps."""
    with Job(every=EVERY, copies=1, name=f"test-{os.getpid()}-holder") as job:
        four = job.start(4)
        for rank, member in enumerate(four):
            member.tell("train", 14, 10 if rank in (1, 2) else None)
        two = [four[0], four[3]]
        assert [member.answer()[0] for member in two] == [(0, 4)] * 2
        assert [one[-1] for one in ask(two, "train", 14)] == [(8, 2)] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_all_processes_are_started_again_and_go_on(undisturbed):
    name = f"test-{os.getpid()}-restart"
    with Job(every=EVERY, copies=1, name=name) as job:
        three = job.start(3)
        ask(three, "train", 10)
    with Job(every=EVERY, copies=1, name=name) as job:
        two = job.start(2)
        assert ask(two, "train", 14) == [[(8, 2)]] * 2
        close(ask(two, "whole")[0], undisturbed[14])
        ask(two, "leave")


def test_a_holder_that_is_killed_is_started_again_and_costs_nothing(undisturbed):
    with Job(every=EVERY, copies=1, name=f"test-{os.getpid()}-killed") as job:
        three = job.start(3)
        ask(three, "train", 5)
        os.kill(three[0].ask("holder"), signal.SIGKILL)
        ask(three, "train", 10)
        assert [(report["step"], report["complete"], report["why"]) for report in ask(three, "report")] == [(8, True, "")] * 3
        three[1].tell("train", 14, 11)
        others = [three[0], three[2]]
        assert [one[-1] for one in ask(others, "train", 14)] == [(8, 2)] * 2
        close(ask(others, "whole")[0], undisturbed[14])
        ask(others, "leave")


def test_without_snapshots_a_newcomer_is_let_in_and_a_loss_is_an_error():
    with Job() as job:
        two = job.start(2)
        ask(two, "train", 3)
        fresh = job.join(two[0].ask("where"))
        three = [*two, fresh]
        for member in three:
            member.tell("train", 6, None, 0.01, 3)
        assert {one.answer()[-1][1] for one in three} == {3}
        for member in three:
            member.tell("train_and_lose", 1000)
        three[1].kill()
        assert ["no member holds a snapshot" in three[rank].answer() for rank in (0, 2)] == [True, True]
