"""Messages between two members: what a receive from any source does when those that could send die."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist

import pccl.distributed


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
