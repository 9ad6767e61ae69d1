"""Snapshots of plain tensors survive peers and hosts that are killed."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from performers import MasterProcess, Performer
from snapshot_peers import SnapshotPeer

QUIET = {"PCCL_LOG_LEVEL": "ERR"}

pytestmark = pytest.mark.timeout(120)


class Run:
    """Peers with a holder each, as on hosts of their own."""

    def __init__(self, master: MasterProcess, **options: Any) -> None:
        self._options = options
        self._master = master
        self._run = uuid.uuid4().hex
        self.all: list[Performer] = []

    def add(self, number: int | None = None) -> Performer:
        """A process on the host of this number; by default one of its own."""
        number = len(self.all) if number is None else number
        options = {"copies": 1, "name": f"{self._run} {number}", "linger": 5, **self._options}
        self.all.append(Performer(SnapshotPeer, len(self.all), (self._master.address, options), QUIET))
        return self.all[-1]

    def begin(self, members: list[Performer]) -> list[Performer]:
        ask(members, "join", *[(len(members),)] * len(members))
        return members


@pytest.fixture
def peers(request) -> Iterator[Run]:
    with MasterProcess() as master:
        made = Run(master, **getattr(request, "param", {}))
        try:
            yield made
        finally:
            for member in made.all:
                member.kill()


def ask(members: list[Performer], method: str, *arguments: tuple[Any, ...]) -> list[Any]:
    """Tells each member something, with its arguments."""
    given = arguments or ((),) * len(members)
    for member, one in zip(members, given, strict=True):
        member.tell(method, *one)
    return [member.answer() for member in members]


def lose(member: Performer) -> None:
    """The process and its holder, as a host."""
    os.kill(member.ask("holder"), signal.SIGKILL)
    member.kill()


def ranks(size: int, *first: Any) -> list[tuple[Any, ...]]:
    return [(*first, rank, size) for rank in range(size)]


def test_parts_are_divided_anew_after_a_loss_and_among_more_after_a_start_of_all(peers):
    four = peers.begin([peers.add() for _ in range(4)])
    assert ask(four, "restore", *ranks(4)) == [None] * 4
    for step in (3, 4):
        assert ask(four, "snapshot", *ranks(4, step)) == [True] * 4
    lose(four[2])
    three = [four[0], four[1], four[3]]
    assert ask(three, "restore", *ranks(3)) == [(4, True)] * 3
    assert ask(three, "snapshot", *ranks(3, 2)) == [True] * 3  # of a later era, so newer than step 4
    for member in three:
        member.kill()
    again = peers.begin([peers.add(number) for number in (0, 1, 3, 4)])
    assert ask(again, "restore", *ranks(4)) == [(2, True)] * 4
    ask(again, "leave")


def test_survivors_get_their_own_part_and_a_newcomer_that_of_the_lost_one(peers):
    three = peers.begin([peers.add() for _ in range(3)])
    names = ["a", "bc", "def"]
    assert ask(three, "snapshot_own", *((7, name) for name in names)) == [True] * 3
    lose(three[1])
    two = [three[0], three[2]]
    assert ask(two, "restore_own", ("a",), ("def",)) == [(7, names, [[7.0]]), (7, names, [[7.0] * 3])]
    fresh = peers.add()
    for member in two:
        member.tell("admit", 3)
    fresh.tell("join", 3)
    for member in (*two, fresh):
        member.answer()
    assert ask([*two, fresh], "restore_own", ("",), ("",), ("bc",)) == [(7, names, []), (7, names, []), (7, names, [[7.0] * 2])]
    assert ask([*two, fresh], "snapshot_own", (1, "a"), (1, "def"), (1, "bc")) == [True] * 3
    ask([*two, fresh], "leave")


def test_more_losses_than_copies_are_an_error_on_all_alike(peers):
    four = peers.begin([peers.add() for _ in range(4)])
    assert ask(four, "snapshot", *ranks(4, 1)) == [True] * 4
    for victim in four[:3]:
        lose(victim)
    (text,) = ask(four[3:], "restore", *ranks(1))
    assert "the state is lost: of the snapshot of step 1 the parts of ranks" in text


def test_votes_and_syncs_wait_for_a_snapshot_under_way(peers):
    three = peers.begin([peers.add() for _ in range(3)])
    assert ask(three, "votes", *((rank, 4) for rank in range(3))) == [[True] * 12] * 3
    ask(three, "leave")


@pytest.mark.parametrize("where", ["gather", "send", "recv"])
def test_a_member_that_is_late_costs_one_snapshot_and_no_member(peers, where):
    three = peers.begin([peers.add() for _ in range(3)])
    assert ask(three, "snapshot", *ranks(3, 1)) == [True] * 3
    ends = ask(three, "late", *((2, rank, 3, 1, where) for rank in range(3)))
    assert [complete for complete, _ in ends] == [False] * 3, ends
    assert all("a member has waited too long for another one" in why for _, why in ends), ends
    assert ask(three, "snapshot", *ranks(3, 3)) == [True] * 3
    assert ask(three, "restore", *ranks(3)) == [(3, True)] * 3
    ask(three, "leave")


def test_a_restarted_process_drops_what_those_before_it_have_left(peers):
    two = peers.begin([peers.add() for _ in range(2)])
    assert ask(two, "snapshot", *ranks(2, 1)) == [True] * 2
    for member in two:
        member.kill()
    again = peers.begin([peers.add(number) for number in range(2)])
    ask(again, "drop")
    assert ask(again, "restore", *ranks(2)) == [None] * 2
    ask(again, "leave")


def test_different_redundancy_is_an_error_on_all(peers):
    three = peers.begin([peers.add() for _ in range(3)])
    texts = ask(three, "differ", (1,), (1,), (2,))
    assert all(
        "copies or code of Snapshots is (" in text and text.endswith("; give the same to all (INVALID_USAGE)") for text in texts
    ), texts
    assert all("(1, 1) at rank " in text and "(1, 2) at rank " in text for text in texts), texts  # ranks are not the places here
    assert len(set(texts)) == 1
    ask(three, "leave")


@pytest.mark.parametrize("peers", [{"holder": False}], indirect=True)
def test_a_peer_that_reconnects_has_its_snapshots_and_one_that_closes_has_none(peers):
    two = peers.begin([peers.add() for _ in range(2)])
    assert ask(two, "snapshot", *ranks(2, 3)) == [True] * 2
    ask(two, "join_again", (2,), (2,))
    assert ask(two, "restore", *ranks(2)) == [(3, True)] * 2
    assert ask(two, "close") == [(0, False)] * 2


def test_a_step_is_a_whole_number_of_any_kind(peers):
    two = peers.begin([peers.add() for _ in range(2)])
    assert ask(two, "snapshot_at", (np.int64(7),), (torch.tensor(7),)) == [True, True]
    text = "TypeError: step must be a whole number below 2^63, not '8'"
    assert ask(two, "snapshot_at", ("8",), (8,)) == [text, False]
    assert all("ValueError: step must be" in one for one in ask(two, "snapshot_at", (1 << 63,), (1 << 63,)))
    assert ask(two, "snapshot_at", (9,), (9,)) == [True, True]  # nobody has left
    ask(two, "leave")


def test_a_tensor_that_cannot_be_written_to_keeps_nobody_waiting(peers):
    two = peers.begin([peers.add() for _ in range(2)])
    assert ask(two, "snapshot", *ranks(2, 5)) == [True] * 2
    texts = ask(two, "restore_into", ("expanded",), ("plain",))
    assert all("tensor w is expanded or of inference mode, and cannot be written to; pass its clone()" in one for one in texts)
    assert ask(two, "restore_into", ("refuses",), ("plain",)) == ["it refuses", 5]  # alone, after the other one has left
