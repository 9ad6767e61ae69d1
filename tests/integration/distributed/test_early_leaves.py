"""Members of a sharded model that leave before the others have a whole snapshot without them: the others say so."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from performers import PATIENCE, Performer
from protected_shards import Job
from sharded_trainers import ask

pytestmark = pytest.mark.timeout(120)


def await_number(member: Performer, expected: float | None) -> None:
    """Until the master knows this number of the member."""
    deadline = time.monotonic() + PATIENCE
    while (found := member.ask("numbers").get("without_drain")) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected


def leave(job: Job, three: list[Performer], until: int) -> list[Any]:
    """The last one leaves while the others train on. What each of the others gives, and what its log has said."""
    three[2].tell("train_and_leave", until)
    found = ask(three[:2], "try_to_train", until)
    assert found == [(until, "")] * 2
    step, told = three[2].answer()
    assert step == 3
    return [told, *ask(three[:2], "lines")]


KINDS = {"kept": (True, "", "stay with the holders"), "lost": (True, "put", "no holder"), "none": (False, "", "no holder")}


@pytest.mark.parametrize(("holder", "fails", "words"), KINDS.values(), ids=KINDS)
def test_members_that_stay_say_who_has_the_part_of_one_that_left_too_early(holder, fails, words):
    with Job(every=4, copies=1, holder=holder, name=f"early {uuid.uuid4()}") as job:
        three = job.start(3)
        assert ask(three, "try_to_train", 3) == [(3, "")] * 3
        three[0].ask("fail", "write_image", 1)  # the snapshot of the two that stay
        if fails:
            three[2].ask("fail", fails, 100)
        told, *others = leave(job, three, 5)
        assert "leaves before the others" in told[0]
        assert any("holder has not got its part" in one for one in told) == bool(fails)
        for lines in others:
            assert [words in one for one in lines] == [True]
        await_number(three[0], 1.0)
        await_number(three[1], 1.0)
        assert ask(three[:2], "try_to_train", 9) == [(9, "")] * 2  # with a snapshot of step 7
        for member in three[:2]:
            await_number(member, 0.0)


def test_a_member_that_leaves_in_order_is_no_missing_protection():
    with Job(every=4, copies=1, holder=False) as job:
        three = job.start(3)
        assert ask(three, "try_to_train", 3) == [(3, "")] * 3
        assert leave(job, three, 5) == [[], [], []]
        for member in three[:2]:
            assert "without_drain" not in member.ask("numbers")


def test_a_member_that_is_lost_while_another_leaves_ends_no_call_of_the_others():
    with Job(every=4, copies=1, name=f"early {uuid.uuid4()}") as job:
        four = job.start(4)
        assert ask(four, "try_to_train", 3) == [(3, "")] * 4
        four[1].ask("die_before_it_may_go")
        four[2].tell("train_and_leave", 9)
        for member in (four[0], four[1], four[3]):
            member.tell("try_to_train", 9)
        assert [four[0].answer(), four[3].answer()] == [(9, "")] * 2
        step, told = four[2].answer()
        assert step == 3
        assert "leaves before the others" in told[0]
        for member in (four[0], four[3]):
            assert len(member.ask("lines")) == 1
            await_number(member, 0.0)
