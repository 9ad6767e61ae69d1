"""Replacements with fixed membership: they take the lost rank, and the averages are those over the contributors."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import trainers
from data_trainers import EPOCHS, Account, Counts, Reader, check
from performers import PATIENCE, Performer
from torch.nn.parallel import DistributedDataParallel
from trainers import Job

import pccl.distributed

ENDLESS = 1_000_000

FIXED = {"PCCL_MEMBERSHIP": "fixed"}


class Grouped(trainers.Trainer):
    """A trainer with groups that it makes at the start, as frameworks do."""

    def _make(self) -> None:
        self.numbers = dist.get_rank(), dist.get_world_size()  # a framework reads them once, at the start
        self.groups: list[Any] = [dist.new_group([0, 1]), dist.new_group([1, 2])]
        super()._make()

    def seen(self) -> tuple[Any, ...]:
        """The rank and size at the start and now, the lost ranks, and sums in the groups; all members call it."""
        sums = []
        for group in self.groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                tensor = torch.tensor([1.0 + dist.get_rank()])
                dist.all_reduce(tensor, group=group)
                sums.append((dist.get_rank(group), dist.get_process_group_ranks(group), tensor.item()))
        return self.numbers, (dist.get_rank(), dist.get_world_size()), pccl.distributed.lost_ranks(), sums


def all_of(members: list[Performer], method: str, *arguments: Any) -> list[Any]:
    for member in members:
        member.tell(method, *arguments)
    return [member.answer() for member in members]


GROUPS = [[(0, [0, 1], 3.0)], [(1, [0, 1], 3.0), (0, [1, 2], 5.0)], [(1, [1, 2], 5.0)]]


@pytest.mark.parametrize(("victim", "moment"), [(0, "backward"), (1, "forward")])
def test_a_replacement_takes_the_lost_rank(tmp_path, victim, moment):
    with Job(tmp_path, environment=FIXED, options={"bucket_cap_mb": 0.01}, role=Grouped) as job:
        members = job.start(3)
        assert all_of(members, "seen") == [((rank, 3), (rank, 3), (), GROUPS[rank]) for rank in range(3)]
        left = [member for rank, member in enumerate(members) if rank != victim]
        members[victim].tell("train", 9, (2, moment))
        assert all_of(left, "train", 4) == [3, 3]
        seen = all_of(left, "seen")
        assert [one[:3] for one in seen] == [((rank, 3), (rank, 3), (victim,)) for rank in range(3) if rank != victim]
        masters = left[0].ask("masters")
        members[victim] = job.join(masters, RANK=str(victim), WORLD_SIZE="3")
        for member in members:
            member.tell("train", 9, None, 0.02)
        assert [member.answer() for member in members] == [3, 3, 3]
        assert all_of(members, "seen") == [((rank, 3), (rank, 3), (), GROUPS[rank]) for rank in range(3)]
        steps = job.steps()
        assert list(steps) == list(range(9))
        for told in steps.values():
            assert {one["size"] for one in told} == {3}
        assert sorted(one["rank"] for one in steps[3]) == [rank for rank in range(3) if rank != victim]
        assert sorted(one["rank"] for one in steps[8]) == [0, 1, 2]
        assert steps[8][0]["contributors"] == [3] * 8
        assert [told[0]["loss"] for told in steps.values()] == pytest.approx(trainers.reference(64, steps), rel=1e-4)
        all_of(members, "leave")


def wait_for(job: Job, ranks: list[int], count: int) -> None:
    """Waits until `count` steps were made by these ranks."""
    end = time.monotonic() + PATIENCE
    while sum(sorted(one["rank"] for one in told) == ranks for told in job.steps().values()) < count:
        assert time.monotonic() < end, job.steps()
        time.sleep(0.02)


def test_two_replacements_take_the_ranks_of_their_launcher_or_the_lowest(tmp_path):
    with Job(tmp_path, environment=FIXED) as job:
        members = job.start(4)
        all_of(members, "train", 2)
        for rank in (0, 3):
            members[rank].kill()
        left = members[1:3]
        assert all_of(left, "train", 4) == [4, 4]
        masters = left[0].ask("masters")
        joins = [job.join(masters), job.join(masters, RANK="3", WORLD_SIZE="4")]
        for member in [*left, *joins]:
            member.tell("train", ENDLESS, None, 0.02)
        wait_for(job, [0, 1, 2, 3], 1)
        stranger = job.join(masters, RANK="1", WORLD_SIZE="4")  # nobody is lost any more
        stranger.tell("train", ENDLESS)
        with pytest.raises(AssertionError, match="none of the 4 ranks is free"):
            stranger.answer()
        before = len(job.steps())
        wait_for(job, [0, 1, 2, 3], before)
        ranks = [{json.loads(line)["rank"] for line in (tmp_path / f"log {at}").read_text().splitlines()[:-1]} for at in (4, 5)]
        assert ranks == [{0}, {3}]


def test_a_replacement_with_another_membership_is_refused(tmp_path):
    with Job(tmp_path, environment=FIXED) as job:
        members = job.start(2)
        stranger = job.join(job.masters(), PCCL_MEMBERSHIP="elastic")
        stranger.tell("train", ENDLESS)
        for member in members:
            member.tell("train", ENDLESS, None, 0.02)
        with pytest.raises(AssertionError, match=r"membership is fixed at rank 0 .* and elastic at rank 2 "):
            stranger.answer()
        wait_for(job, [0, 1], len(job.steps()) + 3)


class FixedReader(Reader):
    """Trains with an ElasticSampler, and waits for a replacement at a step."""

    def read(self, die_at: int | None, where: str) -> dict[str, Any]:
        sampler, loader = self._loader(self.size)
        self.account = Account(sampler)
        plain = Counts(self.size)
        model = DistributedDataParallel(plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run = pccl.distributed.Elastic(model, optimizer, step=0, data=sampler)
        run.sync()
        for _ in sampler.epochs(EPOCHS):
            for indices in loader():
                optimizer.zero_grad()
                loss = model(self._learnt(sampler, indices))
                if run.step == die_at and where == "forward":
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                if run.step == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                run.step += 1
                run.sync()
                while run.step == 4 and pccl.distributed.lost_ranks():
                    run.sync()
        return self._told(run.step, plain.weight)


@pytest.mark.parametrize(("victim", "where", "ahead"), [(1, "forward", 2), (0, "backward", 0)])
def test_an_elastic_sampler_with_fixed_membership_loses_no_sample(victim, where, ahead):
    """The survivors read what the lost rank has not committed, and the replacement gets a share again."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    members: list[Performer] = []

    def add(**environment: str) -> Performer:
        environment = {"PCCL_LOG_LEVEL": "ERR", **FIXED, **environment}
        members.append(Performer(FixedReader, len(members), ("ddp", 61, {"ahead": ahead}), environment))
        return members[-1]

    try:
        first = [add() for _ in range(3)]
        for rank, member in enumerate(first):
            member.tell("start", store.port, rank, 3)
        for member in first:
            member.answer()
        run = first[0].ask("run")
        for rank, member in enumerate(first):
            member.tell("read", 2 if rank == victim else None, where)
        assert first[victim].answer() is None
        newcomer = add(RANK=str(victim), WORLD_SIZE="3")
        newcomer.ask("join", *run)
        newcomer.tell("read", None, "")
        check([member.answer() for member in members if member is not first[victim]])
    finally:
        for member in members:
            member.kill()
