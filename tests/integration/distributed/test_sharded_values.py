"""Sharded values, such as averages of parameters, are divided, kept and restored as the states of optimizers are."""

from __future__ import annotations

import pytest
import torch
from performers import Performer
from protected_shards import Job, reference
from sharded_trainers import ask

pytestmark = pytest.mark.timeout(120)


def require_shards_of(step: int, tree: str, members: list[Performer]) -> None:
    """Each shard at each member is that part of what one process has after as many steps."""
    wanted = reference(step, tree)
    for shards in ask(members, "shards"):
        assert shards.keys() == wanted.keys()
        for name, (part, local) in shards.items():
            cut = tuple(slice(begin, begin + size) for begin, size in zip(part.offset, part.shape, strict=True))
            torch.testing.assert_close(local, wanted[name][cut], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tree", ["nested", "late", "object", "module"])
def test_a_sharded_average_survives_a_kill_and_reaches_a_newcomer(tree):
    with Job(tree=tree, every=2, copies=1, holder=False) as job:
        three = job.start(3)
        assert ask(three, "try_to_train", 7) == [(7, "")] * 3
        require_shards_of(7, tree, three)
        three[0].kill()
        two = three[1:]
        assert ask(two, "try_to_train", 10) == [(10, "")] * 2
        require_shards_of(10, tree, two)
        again = [*two, job.join(two[0].ask("where"))]
        for member in again:
            member.tell("try_to_train", 12, None, 3)
        (step,) = {member.answer()[0] for member in again}
        require_shards_of(step, tree, again)


@pytest.mark.parametrize("tree", ["nested", "module"])
def test_replicas_keep_a_sharded_average_without_snapshots(tree):
    with Job(tree=tree, shards=2) as job:
        four = job.start(4)
        assert ask(four, "try_to_train", 4) == [(4, "")] * 4
        four[1].kill()
        three = [four[0], *four[2:]]
        assert ask(three, "try_to_train", 6) == [(6, "")] * 3
        require_shards_of(6, tree, three)
