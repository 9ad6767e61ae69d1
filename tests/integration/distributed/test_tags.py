"""Messages of many tags: they meet in any order, and what a process keeps does not grow with the tags."""

from __future__ import annotations

import ranks
import torch
import torch.distributed as dist

LARGE = 1 << 20
TAGS = 5000


def kept() -> int:
    messages = dist.group.WORLD._messages
    return len(messages._sent) + len(messages._last)


def many_tags() -> tuple[bool, float]:
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    total = 0.0
    for first in range(LARGE, LARGE + TAGS, 50):
        tags = range(first, first + 50)
        works = [dist.isend(torch.full((1,), float(tag - LARGE)), other, tag=tag) for tag in tags]
        for tag in reversed(tags):  # in another order than they are sent
            x = torch.zeros(1)
            dist.recv(x, other, tag=tag)
            assert x.item() == tag - LARGE
            total += x.item()
        for work in works:
            work.wait()
    assert rank in (0, 1)
    return kept() <= 2200, total


def test_what_is_kept_does_not_grow_with_the_tags():
    assert ranks.run(many_tags, 2) == [(True, TAGS * (TAGS - 1) / 2)] * 2


def one_large_tag() -> list[list[float]]:
    """Many messages of one tag under way: in order, whoever waits for which, and without a wait of the sender."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    found = []
    for turn in range(20):
        tag = LARGE + turn % 2
        received = [torch.zeros(1) for _ in range(8)]
        sends = [dist.isend(torch.full((1,), float(10 * turn + n)), other, tag=tag) for n in range(8)]
        receives = [dist.irecv(x, other, tag=tag) for x in received]
        if turn % 3 == 0:
            del sends  # dropped: they go on
            receives[-1].wait()
        elif turn % 3 == 1:
            for work in reversed(sends):
                work.wait()
        for work in receives:
            work.wait()
        found.append([x.item() - 10 * turn for x in received])
    x = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=-1)
        dist.send(torch.full((1,), 2.0), 1, tag=LARGE)
    else:
        dist.recv(x, tag=-1)
        assert x.item() == 1
        dist.recv(x, tag=LARGE)
        assert x.item() == 2
    dist.barrier()
    return found


def test_messages_of_one_large_tag_keep_their_order():
    expected = [[float(n) for n in range(8)]] * 20
    assert ranks.run(one_large_tag, 2) == [expected] * 2
