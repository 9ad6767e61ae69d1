"""Calls that one rank cannot make: the other ranks hear of each of them at once, and the calls after it still meet."""

from __future__ import annotations

import datetime
import os

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import pccl.distributed
from pccl.distributed import CollectiveError, CollectiveTimeoutError, PeerLostError, _as
from pccl.lab.ports import free_ports

LIMIT = 60.0


def refused(call) -> str:
    """Makes a call that has to fail at once. Gives the kind of its error."""
    try:
        call()
    except CollectiveTimeoutError:
        return "timeout"
    except Exception as error:
        return "core" if isinstance(error, CollectiveError) else "own"
    return "none"


def halfway(kind: str) -> tuple[str, float]:
    """Rank 0 fails in one of several calls that a method makes."""
    bad = dist.get_rank() == 0
    size = dist.get_world_size()
    one, whole = torch.ones(2), torch.ones(2 * size)
    wrong = torch.ones(2, device="meta") if bad else one
    group = dist.group.WORLD
    calls = {
        "all_reduce": lambda: group.allreduce_coalesced([one, wrong.double(), one.int()]).wait(),
        "broadcast": lambda: group.broadcast([one, wrong, one], 1).wait(),
        "all_gather": lambda: group.all_gather_single_coalesced([whole, whole, whole], [one, wrong, one]).wait(),
        "reduce_scatter": lambda: group.reduce_scatter_single_coalesced([one, wrong, one], [whole, whole, whole]).wait(),
        "all_gather lists": lambda: group.allgather_coalesced([[one, wrong] for _ in range(size)], [one, wrong]).wait(),
    }
    found = refused(calls[kind])
    check = torch.ones(1)
    dist.all_reduce(check)
    return found, check.item()


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_gather lists"])
def test_all_ranks_hear_of_a_call_that_fails_halfway(kind):
    assert ranks.run(halfway, 2, kind, timeout=LIMIT) == [("own", 2.0), ("core", 2.0)]


def cause(call: str) -> str:
    """What rank 1 hears of a call that rank 0 refuses, or that rank 0 has no barrier for."""
    tensor = torch.ones(2, device="meta" if call == "all_reduce" and dist.get_rank() == 0 else "cpu")
    with pytest.raises((CollectiveError, TypeError)) as caught:
        dist.barrier() if call == "barrier" and dist.get_rank() == 1 else dist.all_reduce(tensor)
    dist.barrier()  # rank 0 stays until rank 1 has its error
    return str(caught.value)


def test_an_error_names_both_causes_of_a_barrier():
    text = "called barrier, or refused its caller's arguments (see its own error)"
    assert text in ranks.run(cause, 2, "all_reduce", timeout=LIMIT)[1]
    own = ranks.run(cause, 2, "barrier", timeout=LIMIT)[1]
    assert "called barrier" in own
    assert "refused" not in own


def output(kind: str) -> list[str]:
    bad = torch.zeros(1).expand(4) if kind == "expanded" else torch.zeros(4).to_sparse()
    good, size, bad_here = torch.zeros(4), dist.get_world_size(), dist.get_rank() == 0
    taken = bad if bad_here else good
    return [
        refused(lambda: dist.all_gather([taken] * size, torch.ones(4))),
        refused(lambda: dist.all_gather_into_tensor(taken, torch.ones(4 // size))),
        refused(lambda: dist.broadcast(taken, 1)),
        refused(lambda: dist.scatter(taken, [torch.ones(4)] * size if dist.get_rank() == 1 else None, src=1)),
        refused(lambda: dist.barrier()),
    ]


@pytest.mark.parametrize("kind", ["expanded", "sparse"])
def test_all_ranks_hear_of_an_output_that_takes_no_result(kind):
    assert ranks.run(output, 2, kind, timeout=LIMIT) == [[one] * 4 + ["none"] for one in ("own", "core")]


def message(sends: bool) -> tuple[str, float]:
    rank, bad = dist.get_rank(), torch.ones(2, device="meta") if sends else torch.ones(2).to_sparse()
    tensor = bad if (rank == 0) is sends else torch.ones(2)
    found = refused(lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0))
    after = torch.full((1,), 3.0 - 3.0 * rank)
    if rank == 0:
        dist.send(after, 1)
    else:
        dist.recv(after, 0)
    return found, after.item()


@pytest.mark.parametrize("sends", [True, False])
def test_the_other_side_hears_of_a_message_that_fails(sends):
    assert ranks.run(message, 2, sends, timeout=LIMIT) == [("own" if sends is one else "core", 3.0) for one in (True, False)]


def too_many() -> tuple[str, float]:
    rank, works, found = dist.get_rank(), [], "none"
    for _ in range(4100):
        if rank == 0:
            found = refused(lambda: works.append(dist.all_reduce(torch.ones(1), async_op=True)))
        else:
            found = refused(lambda: dist.all_reduce(torch.ones(1)))
        if found != "none":
            break
    for work in works:
        work.wait()
    check = torch.ones(1)
    dist.all_reduce(check)
    return found, check.item()


def test_all_ranks_hear_of_the_limit_of_calls_in_flight():
    assert ranks.run(too_many, 2, timeout=LIMIT) == [("core", 2.0)] * 2


def mixed(backend: str) -> str:
    with pytest.raises(ValueError, match=r"mixes pccl with gloo.*new_group\(backend=\"gloo\"\)") as raised:
        dist.new_group(backend=backend)
    dist.barrier()
    second = torch.ones(1)
    dist.all_reduce(second, group=dist.new_group(backend="gloo"))
    assert second.item() == dist.get_world_size()
    dist.new_group(backend="cpu:pccl")
    return str(raised.value)


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:pccl", "cpu:pccl,cuda:gloo"])
def test_a_mix_with_another_backend_is_refused(backend):
    assert [backend in text for text in ranks.run(mixed, 2, backend)] == [True, True]


def stale() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Calls with the sizes of before one and two losses."""
    rank = dist.get_rank()
    found = {}
    for victim, size in ((1, 4), (3, 3)):
        if rank == victim:
            ranks.die()
        dist.all_reduce(torch.ones(1))
        one, left = torch.ones(1), dist.get_world_size()
        calls = {
            "all_gather": lambda n=size, one=one: dist.all_gather([torch.ones(1) for _ in range(n)], one),
            "all_gather_into_tensor": lambda n=size, one=one: dist.all_gather_into_tensor(torch.ones(n), one),
            "reduce_scatter": lambda n=size, one=one: dist.reduce_scatter(one, [torch.ones(1) for _ in range(n)]),
            "all_to_all": lambda n=size: dist.all_to_all([torch.ones(1)] * n, [torch.ones(1)] * n),
            "all_to_all_single": lambda n=size: dist.all_to_all_single(torch.ones(n), torch.ones(n), [1] * n, [1] * n),
        }
        for name, call in calls.items():
            with pytest.raises(PeerLostError, match=r"read the world size again.*Connection closed by peer") as raised:
                call()
            found[f"{name} {size}"] = raised.value.ranks
        check = [torch.zeros(1) for _ in range(left)]
        dist.all_gather(check, torch.ones(1))
    return found  # type: ignore[return-value]


def test_sizes_of_before_a_loss_are_an_error_that_names_the_lost():
    results = ranks.run(stale, 4, dead=(1, 3))
    assert results[0] == results[2]
    assert {ranks for name, ranks in results[0].items() if name.endswith("4")} == {(1,)}
    assert {ranks for name, ranks in results[0].items() if name.endswith("3")} == {(2,)}


def losses_of_groups() -> list[tuple[int, int]]:
    rank = dist.get_rank()
    everyone, some = dist.new_group(), dist.new_group([0, 1, 2])
    if rank == 1:
        ranks.die()
    dist.all_reduce(torch.ones(1), group=everyone)
    return [(group.size(), group.rank()) for group in (everyone, dist.group.WORLD, some) if group.rank() >= 0]


def test_groups_whose_members_know_of_a_loss_have_its_ranks():
    results = ranks.run(losses_of_groups, 3, dead=(1,))
    assert results[0] == [(2, 0)] * 3
    assert results[2] == [(2, 1)] * 3


def gather_single() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    options = dist.GatherOptions()
    options.rootRank = 1
    output = torch.zeros(2 * size if rank == 1 else 0)
    dist.group.WORLD.gather_single(output, torch.full((2,), float(rank)), options).wait()
    return output.tolist()


def test_gather_into_one_tensor():
    assert ranks.run(gather_single, 3) == [[], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0], []]


def backend_of_a_device() -> bool:
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="device type mps"):
        group._get_backend(torch.device("mps"))
    x = torch.zeros(1)
    other = 1 - dist.get_rank()
    batch = [dist.P2POp(dist.isend, torch.ones(1), other), dist.P2POp(dist.irecv, x, other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait(datetime.timedelta(seconds=20))
    return backend is group and not backend.supports_splitting and x.item() == 1


def test_the_group_is_the_backend_of_its_devices():
    assert ranks.run(backend_of_a_device, 2) == [True, True]


def wrong_by_name() -> list[str]:
    whole, found = torch.ones(4), []
    strict = pccl.distributed.Options(membership="strict")
    for call in (
        lambda: dist.all_to_all_single(whole, whole.clone(), [5, -1], [5, -1]),
        lambda: dist.new_group([0, 1], pg_options=strict),
    ):
        with pytest.raises(ValueError, match="not") as caught:
            call()
        found.append(str(caught.value))
    dist.barrier()  # else the group is smaller for who calls last
    return found


def test_what_is_refused_by_name():
    for splits, options in ranks.run(wrong_by_name, 2):
        assert "not [5, -1]" in splits
        assert 'the group of all has the membership "elastic"' in options


def mesh_without_a_group() -> str:
    """A script that leaves the default group to DeviceMesh, under `--as gloo`."""
    dist.destroy_process_group()
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_ports(1)[0]))
    _as.take_the_place_of("gloo")
    init_device_mesh("cpu", (1,))
    return str(dist.get_backend())


def test_the_group_that_a_mesh_makes_is_of_pccl_in_the_place_of_gloo():
    assert ranks.run(mesh_without_a_group, 1) == ["pccl"]
