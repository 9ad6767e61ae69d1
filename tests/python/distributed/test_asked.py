"""Sums that a program may divide by a size from before a loss: with how many members each of them has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import torch

from pccl._core.errors import Result
from pccl.distributed._calls import Asked
from pccl.distributed._errors import PeerLostError

SUMS = 5000


def chain(ended: int) -> list[Any]:
    """Sums one after the other, the first of which have ended: one half with 4 members, and the next one with 3."""
    sums: list[Any] = []
    for number in range(SUMS):
        info = SimpleNamespace(local_world_size=4 if number < SUMS // 2 else 3)
        asked: Any = Asked(0, torch.zeros(1))
        asked.begin(sums[-1] if sums else None, 4, alone=False)
        asked.op = SimpleNamespace(
            done=lambda number=number: number < ended, c=SimpleNamespace(result=Result.SUCCESS.value, info=info)
        )
        sums.append(asked)
    return sums


def test_the_last_of_many_sums_may_be_awaited_first():
    sums = chain(SUMS)
    assert sums[-1].left() == 3
    assert [number for number, one in enumerate(sums) if one.shrunk()] == [SUMS // 2]


def test_nothing_is_known_of_a_sum_behind_one_that_has_not_ended():
    sums = chain(SUMS // 2)
    assert sums[-1].left() == 0
    assert sums[SUMS // 2].before() == 4
    assert not any(one.shrunk() for one in sums)


def test_what_members_have_agreed_on_stays():
    """A rank that has not asked for the size may look at the sum again, as while it waits for other calls."""
    asked = chain(SUMS)[SUMS // 2]
    assert asked.shrunk()
    asked.vote()[0] = 1  # another rank has asked
    assert asked.shrunk()
    view = SimpleNamespace(lost_of=lambda *_: ((3,), (uuid4(),)))
    losses: Any = SimpleNamespace(view=view, told=lambda _: {}, _unpublished=frozenset())
    with pytest.raises(PeerLostError, match="on this rank or another, asked for the size"):
        asked.refuse(losses, "all_reduce")
