"""Real trainings whose processes are killed and joined: each sample of two epochs is in one committed step."""

from __future__ import annotations

import contextlib

import pytest
from data_trainers import Job, Performer, Reader, check
from performers import MasterProcess

SIZE = 61


def kill_and_join(job: Job, dies_at: int, where: str) -> None:
    """Three members train, of which one dies at this step, and another one joins them."""
    first = job.start(3)
    newcomer = job.join(first[0])
    for rank, member in enumerate(first):
        member.tell("train", dies_at if rank == 1 else None, where, 4)
    newcomer.tell("train", None, "", 4)
    check([member.answer() for member in (first[0], first[2], newcomer)])


@pytest.mark.parametrize(
    ("kind", "where", "ahead"), [("ddp", "forward", 0), ("ddp", "backward", 2), ("ddp", "step", 3), ("stream", "backward", 0)]
)
def test_data_parallel_with_a_kill_and_a_join(kind, where, ahead):
    with Job(kind, SIZE, ahead=ahead) as job:
        kill_and_join(job, 3, where)


WORKERS = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "multiprocessing_context": "fork"}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"loader": WORKERS}, "backward"),
        ({"second": 23, "loader": WORKERS}, "forward"),
        ({"second": 90, "ahead": 2}, "step"),
        ({"accumulate": 3, "ahead": 1}, "backward"),
        ({"global": 24, "loader": {}}, "step"),
    ],
)
def test_loaders_and_steps_of_all_kinds_with_a_kill_and_a_join(options, where):
    with Job("ddp", SIZE, **options) as job:
        kill_and_join(job, 2, where)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_replicas_read_different_samples(where):
    """Of 2 x 2 members with a kill: no step is lost, so each gradient is the average over 4 or 3 members.

    After a kill in the forward pass one member may commit while another one still waits in its backward pass.
    """
    with Job("hsdp", SIZE, ahead=2) as job:
        members = job.start(4)
        assert "num_replicas=2, but the group has 4 ranks" in members[0].ask("share", 2)
        assert members[0].ask("share", 4) == ""
        for rank, member in enumerate(members):
            member.tell("train", 4 if rank == 3 else None, where, 4)
        told = [member.answer() for member in members[:3]]
        check(told)
        allowed = {round(one + other, 6) for one in (1 / 4, 1 / 3) for other in (1 / 4, 1 / 3)}
        assert set(told[0]["weights"]) <= allowed


@pytest.mark.parametrize("where", ["forward", "step"])
def test_a_sharded_model_goes_back_with_its_data(where):
    """A gradient is averaged over the ranks. A sample in two steps of an epoch would have the sum of their numbers."""
    with Job("fsdp", SIZE, ahead=2) as job:
        members = job.start(3)
        for rank, member in enumerate(members):
            member.tell("train", 7 if rank == 2 else None, where, 3)
        told = [member.answer() for member in members[:2]]
        check(told)
        allowed = {round(one + other, 6) for one in (1 / 2, 1 / 3) for other in (1 / 2, 1 / 3)}
        assert set(told[0]["weights"]) <= allowed


def test_a_newcomer_reads_for_a_sharded_model():
    with Job("fsdp", SIZE) as job:
        first = job.start(2)
        newcomer = job.join(first[0])
        for member in (*first, newcomer):
            member.tell("train", None, "", 3)
        told = [member.answer() for member in (*first, newcomer)]
        check(told)
        assert told[0]["weights"] == [round(2 / 3, 6)]


@pytest.mark.parametrize(("kind", "where"), [("DiLoCo", "inner"), ("DiLoCo", "meeting"), ("AsyncDiLoCo", "inner")])
def test_outer_steps_commit_with_a_kill_and_a_join(kind, where):
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterProcess(heartbeat_limit=30))
        peers = []
        for number in range(4):
            peers.append(Performer(Reader, number, ("diloco", SIZE, {"ahead": 2})))
            stack.callback(peers[-1].kill)
        for number, peer in enumerate(peers[:3]):
            peer.tell("outer", master.address, kind, 3, 4, 2 if number == 1 else None, where)
        peers[3].tell("outer", master.address, kind, 1, 4, None, "")
        check([peer.answer() for number, peer in enumerate(peers) if number != 1])
