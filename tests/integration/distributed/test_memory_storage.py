"""Checkpoints in memory: they are read by other numbers of ranks after losses, and brought to disk."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checkpointers import Checkpointer
from performers import Performer

QUIET = {"PCCL_LOG_LEVEL": "ERR"}

pytestmark = pytest.mark.timeout(120)


class Ranks:
    """Processes with a holder each, as on hosts of their own."""

    def __init__(self, **snapshots: Any) -> None:
        self._snapshots = {"linger": 5, **snapshots}
        self._run = uuid.uuid4().hex
        self.all: list[Performer] = []

    def add(self) -> Performer:
        options = {**self._snapshots, "name": f"{self._run} {len(self.all)}"}
        self.all.append(Performer(Checkpointer, len(self.all), (options,), QUIET, Path("/dev/null")))
        return self.all[-1]

    def group(self, members: list[Performer], seed: int) -> None:
        """Makes them the ranks of a new group, with a model of other numbers for each seed."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank, member in enumerate(members):
            member.tell("start", self._store.port, rank, len(members), seed)
        for member in members:
            member.answer()


def ask(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


@pytest.fixture
def ranks(request) -> Iterator[Ranks]:
    made = Ranks(**getattr(request, "param", {"copies": 1}))
    try:
        yield made
    finally:
        for member in made.all:
            member.kill()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def all_same(loaded: list[Any], expected: dict[str, Any]) -> None:
    """Says which ranks got what else: their errors, or the names of the tensors that differ."""
    differing = {}
    for rank, one in enumerate(loaded):
        if one.keys() != expected.keys():
            differing[rank] = one
        elif not same(one, expected):
            differing[rank] = [name for name in one if not torch.equal(one[name], expected[name])]
    assert not differing


def lose(member: Performer) -> None:
    """The process and its holder, as a host."""
    os.kill(member.ask("holder"), signal.SIGKILL)
    member.kill()


@pytest.mark.parametrize("ranks", [{"copies": 1}, {"code": (3, 1)}], ids=["copies", "code"], indirect=True)
def test_a_checkpoint_of_four_is_read_by_three_and_by_four_after_the_loss_of_a_host_and_goes_to_disk(ranks, tmp_path):
    four = [ranks.add() for _ in range(4)]
    ranks.group(four, 5)
    assert ask(four, "save", 1) == [None] * 4
    expected = ask(four, "whole", 1)[0]
    lose(four[1])
    three = [four[0], four[2], four[3]]
    ranks.group(three, 6)
    assert not same(ask(three, "whole", 1)[0], expected)
    loaded = ask(three, "load")
    all_same(loaded, expected)
    drained = ask(three, "drain", str(tmp_path / "drained"))
    all_same(drained, expected)
    again = [four[0], ranks.add(), *four[2:]]  # torch remembers the coordinates of a rank in a mesh of four
    ranks.group(again, 7)
    loaded = ask(again, "load")
    all_same(loaded, expected)
    ask(again, "leave")


@pytest.mark.parametrize("ranks", [{"copies": 1, "linger": 0.1}], indirect=True)
def test_memory_is_kept_while_its_process_lives_however_long_the_next_group_takes(ranks):
    three = [ranks.add() for _ in range(3)]
    ranks.group(three, 5)
    assert ask(three, "save", 1) == [None] * 3
    holders = ask(three, "holder")
    lose(three[1])
    two = [three[0], three[2]]
    ask(two, "end_group")
    time.sleep(1.5)  # a holder that nobody needs ends within 0.6 s
    assert all(Path(f"/proc/{holder}").exists() for holder in (holders[0], holders[2]))
    again = [two[0], ranks.add(), two[1]]
    ranks.group(again, 6)
    assert [one["step"].item() for one in ask(again, "load")] == [1] * 3
    ask(again, "leave")


def test_more_losses_than_copies_are_an_error_on_all_alike(ranks):
    four = [ranks.add() for _ in range(4)]
    ranks.group(four, 5)
    assert ask(four, "save", 1) == [None] * 4
    for victim in four[1:3]:
        lose(victim)
    two = [four[0], four[3]]
    ranks.group(two, 6)
    before = ask(two, "whole", 3)[0]
    failures = ask(two, "load")
    assert failures[0] == failures[1]
    assert [name for name, _ in failures[0].values()] == ["StateLostError"] * 2
    assert all("of the snapshot of step 0 the parts of ranks" in text for _, text in failures[0].values())
    assert same(ask(two, "whole", 3)[0], before)
    ask(two, "leave")


def test_a_save_that_fails_leaves_the_checkpoint_before_and_the_next_one_replaces_it(ranks):
    two = [ranks.add() for _ in range(2)]
    ranks.group(two, 5)
    failures = ask(two, "load")
    assert [name for name, _ in failures[1].values()] == ["StateLostError"] * 2
    assert ask(two, "save", 1) == [None] * 2
    failures = ask(two, "save_what_cannot_be")
    assert failures[0] == failures[1]
    assert "cannot be saved" in failures[0][1][1]
    assert [one["step"].item() for one in ask(two, "load")] == [1, 1]
    assert ask(two, "save", 2, True) == [None] * 2
    assert [one["step"].item() for one in ask(two, "load", "2")] == [2, 2]
    failures = ask(two, "load", "1")
    assert failures[0][0] == ("CheckpointError", "checkpoint 1 is not in memory, where 2 is")
    ask(two, "leave")


def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(ranks):
    three = [ranks.add() for _ in range(3)]
    ranks.group(three, 5)
    assert ask(three, "save", 1) == [None] * 3
    for member in three:
        member.tell("save_and_die", 1)
    two = [three[0], three[2]]
    errors = [member.answer() for member in two]
    assert errors == ["PeerLostError"] * 2
    ranks.group(two, 6)
    assert [one["step"].item() for one in ask(two, "load")] == [1, 1]
    ask(two, "leave")


def test_ranks_that_give_different_copies_are_all_told(ranks):
    two = [ranks.add() for _ in range(2)]
    ranks.group(two, 5)
    failures = ask(two, "save_with_copies_of_its_own")
    assert failures[0] == failures[1]
    text = "MemoryWriter: ranks give different copies or codes: (data, parity) is (1, 1) on rank 0 and (1, 2) on rank 1"
    assert any(one == ("ValueError", f"{text}; pass the same Snapshots on all") for one in failures[0].values()), failures[0]


def test_a_save_in_a_thread_is_complete_though_others_load_meanwhile(ranks):
    three = [ranks.add() for _ in range(3)]
    ranks.group(three, 5)
    assert ask(three, "save", 1) == [None] * 3
    for number in (2, 3):
        told = ask(three, "save_beside_loads", number)
        assert [last for _, last in told] == [number] * 3
        assert told[1] == told[2] == told[0]
        for one in told[0][0]:
            texts = one if isinstance(one, list) else []
            assert one in (number - 1, number) or all("another snapshot was taken" in text for _, text in texts), told
    ask(three, "leave")
