"""Messages between two members: what a receive from any source does when those that could send die."""

from __future__ import annotations

import contextlib
import threading

import pytest
import ranks
import torch
import torch.distributed as dist

import pccl.distributed
from pccl.distributed._p2p import Messages


def received_from_any(waits: bool) -> object:
    if dist.get_rank() != 1:
        ranks.die()
    work = dist.group.WORLD.recv_anysource([torch.zeros(3)], 0)
    while not waits and not work.is_completed():
        pass
    with pytest.raises(pccl.distributed.PeerLostError, match="no other member of the group is left") as error:
        work.wait()
    return error.value.ranks


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_receive_from_any_source_ends_when_all_others_are_dead(waits: bool, strict: str) -> None:
    results = ranks.run(received_from_any, 3, waits, environment={"PCCL_STRICT": strict}, dead=(0, 2), timeout=ranks.SECONDS)
    assert results == [None, (0, 2), None]


def received_from_the_survivor() -> object:
    rank = dist.get_rank()
    if rank == 0:
        ranks.die()
    tensor = torch.full((3,), float(rank))
    if rank == 1:
        dist.send(tensor, 2)
        return rank
    return dist.recv(tensor), tensor.tolist()


def test_a_receive_from_any_source_goes_on_while_one_is_left() -> None:
    assert ranks.run(received_from_the_survivor, 3, dead=(0,)) == [None, 1, (1, [1.0] * 3)]


def received_by_two_threads() -> object:
    """Both look for a message while only that of rank 1 is there; the one of rank 2 comes when one of them has taken it."""
    rank = dist.get_rank()
    if rank == 1:
        dist.send(torch.ones(1), 0)
        return True
    if rank == 2:
        dist.recv(torch.zeros(1), 0, tag=1)
        dist.send(torch.ones(1), 0)
        return True
    both = threading.Barrier(2)
    real = Messages.posted

    def posted(self: Messages, source: object, tag: int) -> bool:
        found: bool = real(self, source, tag)  # type: ignore[arg-type]
        if found:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)  # a second look at the same message, if one can come in between
        return found

    Messages.posted = posted  # type: ignore[method-assign,assignment]
    works = [dist.group.WORLD.recv_anysource([torch.zeros(1)], 0) for _ in range(2)]
    threads = [threading.Thread(target=work.wait, daemon=True) for work in works]
    for one in threads:
        one.start()
    while all(one.is_alive() for one in threads):
        threads[0].join(0.01)
    dist.send(torch.zeros(1), 2, tag=1)
    for one in threads:
        one.join(10)
    return sorted(work.source_rank() for work in works)


def test_two_receives_from_any_source_take_two_messages() -> None:
    assert ranks.run(received_by_two_threads, 3) == [[1, 2], True, True]
