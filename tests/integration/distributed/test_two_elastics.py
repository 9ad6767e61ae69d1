"""More than one Elastic in a process: one after another, or in turns."""

from __future__ import annotations

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

from pccl.distributed import Elastic


def made(seed: int, step: int = 0) -> Elastic:
    torch.manual_seed(seed)
    net = nn.Linear(4, 4)
    return Elastic(net, torch.optim.SGD(net.parameters(), 0.1), step=step)


def two_phases() -> list[object]:
    """The second training begins with the checkpoint of one rank, though the group has had another training."""
    rank = dist.get_rank()
    first = made(0)
    first.sync(timeout=20)
    second = made(1 + rank)
    if rank == 1:
        second.load_state_dict(second.state_dict() | {"values": {"step": (False, 7)}})
    assert second.sync()
    found = [second.step, second.state_dict()["model"]["weight"].sum().item()]
    del second
    first.sync()
    return found


def test_each_training_begins_with_the_checkpoint_of_the_highest_step():
    one, other = ranks.run(two_phases, 2)
    assert one == other
    assert one[0] == 7


def in_turns() -> str:
    """A newcomer would get the state of one of them, and train with another one's."""
    one, other = made(0), made(1)
    one.sync()
    other.sync()
    with pytest.raises(RuntimeError) as caught:
        one.sync()
    return str(caught.value)


def test_two_that_take_turns_are_an_error():
    assert all("give all models to one Elastic" in text for text in ranks.run(in_turns, 2))


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"the state lacks model, optimizers, steps, values"):
        made(0).load_state_dict(nn.Linear(2, 2).state_dict())
