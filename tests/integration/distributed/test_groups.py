"""Groups of some members, made after a process has joined that has made none of the earlier ones."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import pccl.distributed

preload(__name__)
preload("pccl.distributed._elastic")

TIMEOUT = timedelta(seconds=PATIENCE)


class Member:
    """A rank, or a newcomer, without a training."""

    def __init__(self, pipe: Connection) -> None:
        torch.set_num_threads(1)

    def start(self, port: int, rank: int, size: int) -> tuple[str, str]:
        """Begins the job, and makes groups that a newcomer has not made; gives the masters and the keys."""
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        self.before = [dist.new_group([0, 1]) for _ in range(3)]
        self.state = pccl.distributed.Elastic(nn.Linear(2, 2))
        assert self.state.sync()
        return pccl.distributed.masters(), pccl.distributed.keys()

    def join(self, run: tuple[str, str]) -> None:
        pccl.distributed.join(run[0], timeout=TIMEOUT, keys=run[1])
        self.state = pccl.distributed.Elastic(nn.Linear(2, 2))

    def sync(self) -> int:
        """Until there are other members than before."""
        while not self.state.sync():
            pass
        return dist.get_world_size()

    def sums(self) -> list[float]:
        """Sums over two groups of all, one of the first and the last rank, and the columns of a mesh, in one after another."""
        own = float(1 << dist.get_rank())
        groups = [dist.new_group([0, 1, 2]), dist.new_group([0, 2]), dist.new_group([0, 1, 2])]
        groups.append(init_device_mesh("cpu", (3, 1), mesh_dim_names=("replica", "shard"))["replica"].get_group())
        groups.append(dist.new_group([0, 1, 2], use_local_synchronization=True))
        found = []
        begun = []
        for group in groups:
            tensor = torch.tensor([own])
            if dist.get_rank(group) >= 0:
                begun.append(dist.all_reduce(tensor, group=group, async_op=True))
            found.append(tensor)
        for work in begun:
            work.wait()
        return [tensor.item() for tensor in found]

    def sum_before(self) -> list[float]:
        """Sums over the groups that were made before the newcomer came."""
        found = [torch.ones(1) for _ in self.before]
        for tensor, group in zip(found, self.before, strict=True):
            dist.all_reduce(tensor, group=group)
        return [tensor.item() for tensor in found]


def answers(members: list[Performer], method: str) -> list[object]:
    for member in members:
        member.tell(method)
    return [member.answer() for member in members]


def test_groups_that_are_made_after_a_join() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    members = [Performer(Member, number, ()) for number in range(3)]
    try:
        for rank in range(2):
            members[rank].tell("start", store.port, rank, 2)
        [run] = {members[rank].answer() for rank in range(2)}
        members[2].ask("join", run)
        assert answers(members, "sync") == [3, 3, 3]
        assert answers(members, "sums") == [[7.0, 5.0, 7.0, 7.0, 7.0], [7.0, 2.0, 7.0, 7.0, 7.0], [7.0, 5.0, 7.0, 7.0, 7.0]]
        assert answers(members[:2], "sum_before") == [[2.0] * 3] * 2
    finally:
        for member in members:
            member.kill()
