"""A protection that fails for good ends the run on all members alike, before a loss needs it; others are reported."""

from __future__ import annotations

import re
import time
import uuid

import pytest
from protected_shards import Job
from sharded_trainers import ask

pytestmark = pytest.mark.timeout(120)

LOCAL = {"rows": r"\.row", "means": r"\.mean", "second moment": r"\.v\b", "packed": r"\.codes", "one rank": r"\.mean"}


@pytest.mark.parametrize("snapshots", [{}, {"every": 4, "copies": 1, "holder": False}], ids=["replicas alone", "snapshots"])
@pytest.mark.parametrize("optimizer", LOCAL)
def test_an_optimizer_with_plain_tensors_of_local_rows_is_refused_after_its_first_step(optimizer, snapshots):
    """No loss has needed its state yet, and all members hear of the same entry."""
    with Job(optimizer, 0 if snapshots else 2, **snapshots) as job:
        found = ask(job.start(2 if snapshots else 4), "try_to_train", 20)
        assert [step for step, _ in found] == [1] * len(found)
        texts = {text for _, text in found}
        assert len(texts) == 1, texts
        assert re.search(LOCAL[optimizer], texts.pop())


def test_plain_tensors_that_come_later_are_judged_when_they_come():
    with Job("late", 2) as job:
        found = ask(job.start(4), "try_to_train", 20)
        assert [step for step, _ in found] == [6] * 4
        assert "mean" in found[0][1]


def test_plain_tensors_that_all_have_alike_are_kept():
    with Job("even", every=2, copies=1, holder=False) as job:
        assert ask(job.start(2), "try_to_train", 8) == [(8, "")] * 2


def test_what_one_member_cannot_keep_ends_the_run_on_all():
    with Job(every=2, copies=1, holder=False) as job:
        three = job.start(3)
        assert ask(three, "try_to_train", 3) == [(3, "")] * 3
        ask(three, "keep", 1)
        found = ask(three, "try_to_train", 20)
        assert {step for step, _ in found} == {5}  # the sync after that of the snapshot of step 4
        assert all("TreeError" in text and "kept" in text for _, text in found), found


FAILURES = {
    "memory": ("write_image", 100, "MemoryError"),
    "holder": ("_connect", 100, "_connect fails"),
    "host": ("available_bytes", 100, "MiB"),
}


@pytest.mark.parametrize(("place", "times", "words"), FAILURES.values(), ids=FAILURES)
def test_the_third_snapshot_in_a_row_that_fails_at_one_member_ends_the_run_on_all(place, times, words):
    with Job(every=2, copies=1, name=f"third {uuid.uuid4()}", holder=place == "_connect") as job:
        three = job.start(3)
        three[1].ask("fail", place, times)
        found = ask(three, "try_to_train", 40)
        assert {step for step, _ in found} == {5}  # after the snapshots of steps 0, 2 and 4
        assert all(words in text for _, text in found), found


def test_a_snapshot_that_succeeds_in_between_begins_the_count_anew():
    with Job(every=2, copies=1, holder=False) as job:
        two = job.start(2)
        for _ in range(3):
            two[0].ask("fail", "write_image", 2)
            step = max(two[0].ask("protected") or 0, 0)
            assert [text for _, text in ask(two, "try_to_train", step + 8)] == ["", ""]


def test_a_program_that_listens_hears_of_the_steps_at_stake_and_goes_on():
    with Job(listens=True, every=2, copies=1, holder=False) as job:
        two = job.start(2)
        assert ask(two, "try_to_train", 3) == [(3, "")] * 2
        assert ask(two, "protected") == [2, 2]
        two[1].ask("fail", "write_image", 4)
        assert ask(two, "try_to_train", 11) == [(11, "")] * 2
        for heard in ask(two, "heard_of"):
            assert [steps for _, steps in heard] == [7, 9]  # after the third and the fourth, of steps 8 and 10
            assert all("MemoryError" in text for text, _ in heard)
        assert ask(two, "protected") == [2, 2]
        deadline = time.monotonic() + 30
        while (found := two[0].ask("numbers")).get("without_snapshots") != 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found["without_snapshots"] == 1, found
        assert ask(two, "try_to_train", 15) == [(15, "")] * 2
        assert ask(two, "protected") == [14, 14]
        while (found := two[0].ask("numbers")).get("without_snapshots") != 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found["without_snapshots"] == 0, found


def test_a_member_that_is_lost_in_a_snapshot_is_no_failure_of_the_protection():
    with Job(every=1, copies=1, holder=False) as job:
        members = job.start(5)
        for dies_at in (2, 4, 6):
            members[-1].ask("die_at_message", "snapshot", 3)
            for member in members:
                member.tell("try_to_train", dies_at + 3)
            members = members[:-1]
            assert [member.answer()[1] for member in members] == [""] * len(members)


def test_replicas_protect_the_step_at_hand():
    with Job(shards=2) as job:
        four = job.start(4)
        ask(four, "try_to_train", 3)
        assert ask(four, "protected") == [3] * 4
        for member in four[2:]:
            member.kill()
        assert ask(four[:2], "try_to_train", 5) == [(5, "")] * 2
        assert ask(four[:2], "protected") == [None] * 2
