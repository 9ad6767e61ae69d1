"""A newcomer copies the state while the members train, and somebody dies meanwhile."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from performers import Performer
from precopiers import CHANGED_PART, Precopier, await_no_thread, await_thread

MEBIBYTES = 64
BYTES = MEBIBYTES << 20


@contextlib.contextmanager
def run(members: int) -> Iterator[tuple[str, list[Performer], Performer]]:
    """The address of a master, the members of its run, which have one state, and a process that has not joined."""
    master, *everyone = [Performer(Precopier, at, ()) for at in range(members + 2)]
    try:
        address = master.ask("serve")
        for at, one in enumerate(everyone[:members]):
            one.tell("join", address, MEBIBYTES, at)
            if at == 0:
                one.answer()
                one.tell("form", members)
        answers = [one.answer() for one in everyone[:members]]
        assert all("error" not in answer for answer in answers)
        yield address, everyone[:members], everyone[members]
    finally:
        for one in [master, *everyone]:
            one.kill()


def end_together(processes: list[Performer], end: Path) -> list[dict]:
    """Ends the training of all; they hold one state."""
    end.touch()
    trained = [process.answer() for process in processes]
    assert len({one["hash"] for one in trained}) == 1
    assert {one["world"] for one in trained} == {len(processes)}
    return trained


def test_newcomer_copies_beside_the_steps(tmp_path):
    """Its sync brings little more than what a step changes, and the members lose nobody."""
    end = tmp_path / "end"
    with run(2) as (address, members, newcomer):
        for member in members:
            member.tell("train", str(end))
        received = newcomer.ask("join", address, MEBIBYTES, 9)["received"]
        assert received < 10 * BYTES / CHANGED_PART
        newcomer.tell("train", str(end))
        trained = end_together([*members, newcomer], end)
        assert [one["losses"] for one in trained] == [0, 0, 0]
        await_no_thread([*members, newcomer], "pccl:precopy")
        await_no_thread([*members, newcomer], "pccl:donor")


def test_newcomer_dies_while_it_copies(tmp_path):
    """The members never hear of it."""
    end = tmp_path / "end"
    with run(2) as (address, members, newcomer):
        newcomer.tell("join", address, MEBIBYTES, 9)
        await_thread([newcomer], "pccl:precopy")
        donor = await_thread(members, "pccl:donor")
        newcomer.kill()
        for member in members:
            member.tell("train", str(end))
        await_no_thread([donor], "pccl:donor")
        assert [one["losses"] for one in end_together(members, end)] == [0, 0]


def test_donor_dies_while_it_gives(tmp_path):
    """The newcomer goes on with the other member."""
    end = tmp_path / "end"
    with run(2) as (address, members, newcomer):
        newcomer.tell("join", address, MEBIBYTES, 9)
        donor = await_thread(members, "pccl:donor")
        donor.signal(signal.SIGKILL)
        [other] = [member for member in members if member is not donor]
        await_thread([other], "pccl:donor")
        other.tell("train", str(end))
        received = newcomer.answer()["received"]
        assert received < 10 * BYTES / CHANGED_PART
        newcomer.tell("train", str(end))
        end_together([other, newcomer], end)


def test_all_members_die_while_a_newcomer_copies():
    """It begins the next run, with its own state if it had copied nothing, else with none: that may be of several steps."""
    with run(1) as (address, members, newcomer):
        newcomer.tell("join", address, MEBIBYTES, 9)
        await_thread(members, "pccl:donor")
        members[0].kill()
        told = newcomer.answer()
        assert "error" in told or told["own"]


@pytest.mark.parametrize("victim", ["nobody", "newcomer", "donor", "member"])
def test_every_byte_changes_in_each_step(tmp_path, victim):
    """Whoever dies while the newcomer copies, those who are left hold one state, the newcomer included."""
    end = tmp_path / "end"
    with run(2) as (address, members, newcomer):
        for member in members:
            member.tell("train", str(end), 1, 0.05)
        newcomer.tell("join", address, MEBIBYTES, 9)
        donor = await_thread(members, "pccl:donor")
        [other] = [member for member in members if member is not donor]
        time.sleep(random.Random(victim).uniform(0, 0.05))
        dies = {"newcomer": newcomer, "donor": donor, "member": other}.get(victim)
        if dies is not None:
            dies.kill()
        if dies is not newcomer:
            assert "error" not in newcomer.answer()
            newcomer.tell("train", str(end), 1, 0.05)
        end_together([one for one in (*members, newcomer) if one is not dies], end)
