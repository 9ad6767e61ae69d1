"""Sharded models go on after losses and joins: the same objects on a new mesh, with the losses of an undisturbed run."""

from __future__ import annotations

from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from sharded_trainers import Job, Kind, Training, ask, undisturbed
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from pccl.distributed._dtensors import box_of, entries, local_part
from pccl.distributed._remesh import remesh, replica_size

KINDS = [
    Kind("sgd", ends="forward"),
    Kind("adamw", low_precision=True),
    Kind("adamw", replicas=True, ends=""),
]


def check(kind: Kind, losses: list[list[float]], before: dict, after: dict, first: int) -> None:
    expected = ranks.run(undisturbed, len(losses), kind, before, first, 2)
    rounding = 1e-3 if kind.low_precision else 1e-5
    torch.testing.assert_close(torch.tensor(losses), torch.tensor([one[0] for one in expected]), rtol=rounding, atol=rounding)
    torch.testing.assert_close(after, expected[0][1], rtol=rounding, atol=rounding)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.optimizer}-{'replicas' if kind.replicas else kind.ends}")
def test_training_goes_on_with_fewer_ranks_and_then_with_more(kind: Kind) -> None:
    with Job(kind) as job:
        four = job.start(4)
        ask(four, "sync", 4)
        ask(four, "steps", 0, 2)
        kept = ask(four, "keep")[0]
        four[1].tell("steps", 2, 1, True)
        three = [four[0], four[2], four[3]]
        whole_parameters = ask(three, "lose", 2, 1000)
        if kind.ends:  # the step was cut short where these were whole
            assert {"forward": "0.weight", "backward": "1.wide.weight"}[kind.ends] in whole_parameters[0]
        assert ask(three, "remesh", kept) == [{(1, 3) if kind.replicas else (3,)}] * 3
        losses = ask(three, "steps", 2, 2)
        after = ask(three, "keep")[0]
        check(kind, losses, kept, after, 2)

        again = [*three, job.join(three[0])]
        ask(again, "sync", 4)
        shape = (2, 2) if kind.replicas else None
        assert ask(again, "remesh", after, shape) == [{shape or (4,)}] * 4
        losses = ask(again, "steps", 4, 2)
        check(kind, losses, after, ask(again, "keep")[0], 4)
        ask(again, "leave")


class Two(nn.Module):
    """Two layers, of which `fully_shard` makes states of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.second = nn.Linear(4, 3)
        self.order: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(x)

    def read(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(x))
        return found


def sharded_two(mesh: DeviceMesh, **options: Any) -> Any:
    torch.manual_seed(3)
    model: Any = Two()
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()


def made_of(tensor: torch.Tensor) -> list[Any]:
    return [tensor + 1, tensor.clone(), torch.zeros_like(tensor)]


def settings_after_a_remesh(used: bool) -> dict[str, bool]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("members",))
    columns = {(4, 6)}
    model = sharded_two(
        mesh,
        reshard_after_forward=False,
        shard_placement_fn=lambda parameter: Shard(1) if tuple(parameter.shape) in columns else None,
        mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64),
    )
    register_fsdp_forward_method(model, "read")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.first.register_forward_hook(lambda *_: model.order.append("before"), prepend=True)
    model.first.register_forward_hook(lambda *_: model.order.append("after"))
    model.register_state_dict_post_hook(lambda *_: model.order.append("state"))
    model.set_modules_to_forward_prefetch([model.first, model.second])
    model.second.set_modules_to_backward_prefetch([model.first])
    model.first.set_gradient_divide_factor(3.0)
    model.first.set_reshard_after_backward(False)
    model.second.set_requires_all_reduce(False)
    model.second.set_reduce_scatter_unused_params(True)
    model.set_reduce_scatter_max_input_buffers(2)
    model.second.set_separate_reduce_scatter_group()
    apart = model.second._get_fsdp_state()._fsdp_param_groups[0].mesh_info.reduce_scatter_process_group
    model.set_is_last_backward(True)
    if used:
        step(model, optimizer)
        model.first.unshard()  # as in the middle of a forward pass
    hooks = [list(model.first._forward_hooks), list(model.first._forward_pre_hooks)]
    old_weight, old_mesh, states = model.first.weight, mesh, [layer._get_fsdp_state() for layer in (model, model.first)]
    weights = entries(model)["model.first.weight"]
    assert all(one.device_mesh is old_mesh for one in made_of(weights))  # torch keeps how these are sharded
    remesh(model, optimizer)
    first, second = (layer._get_fsdp_state()._fsdp_param_groups[0] for layer in (model.first, model.second))
    new_mesh = model.first.weight.device_mesh
    found = {
        "parameter": model.first.weight is weights and (used or weights is old_weight),
        "mesh": new_mesh is not old_mesh and new_mesh != old_mesh and new_mesh.mesh_dim_names == ("members",),
        "group of all": new_mesh.get_group() is dist.GroupMember.WORLD,
        "equal mesh": new_mesh == init_device_mesh("cpu", (2,), mesh_dim_names=("members",)),
        "results": all(one.device_mesh is new_mesh for one in made_of(weights)),
        "placement": model.first.weight.placements == (Shard(1),) and model.second.weight.placements == (Shard(0),),
        "hooks": hooks == [list(model.first._forward_hooks), list(model.first._forward_pre_hooks)],
        "states": states == [layer._get_fsdp_state() for layer in (model, model.first)],
        "prefetch": [one._modules[0] for one in states[0]._states_to_forward_prefetch] == [model.first, model.second],
        "reshard": first.post_forward_mesh_info is None and not first.reshard_after_backward,
        "divide": first.gradient_divide_factor == 3.0 and second.gradient_divide_factor is None,
        "reduce": first.all_reduce_grads and not second.all_reduce_grads and second.reduce_scatter_unused_params,
        "buffers": second.reduce_scatter_max_input_buffers == 2,
        "own group": second.mesh_info.reduce_scatter_process_group not in (None, apart, dist.GroupMember.WORLD),
        "policy": first.mp_policy.reduce_dtype == torch.float64,
    }
    with torch.no_grad():
        for tensor in entries(model, optimizer).values():
            local_part(tensor).fill_(0.5)
    model.order.clear()
    step(model, optimizer)
    model.read(torch.ones(2, 6))
    model.load_state_dict(model.state_dict())
    found["order"] = model.order == ["before", "after"] * 2 + ["state"]
    found["trained"] = bool((model.first.weight.full_tensor() < 0.5).all())
    return found


@pytest.mark.parametrize("used", [False, True], ids=["before-the-first-pass", "in-a-pass"])
def test_settings_hooks_and_objects_stay(used: bool) -> None:
    for found in ranks.run(settings_after_a_remesh, 2, used):
        assert [name for name, right in found.items() if not right] == []


def cuts() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    whole = torch.arange(42.0).view(6, 7)
    for on, placements in [
        (mesh, [Shard(0)]),
        (mesh, [Shard(1)]),
        (mesh, [Shard(-1)]),
        (mesh, [Replicate()]),
        (square, [Replicate(), Shard(0)]),
        (square, [Shard(0), Shard(1)]),
        (square, [Shard(1), Shard(1)]),
    ]:
        for tensor in (whole, whole[:2], whole[:0]):
            part = box_of(distributed := distribute_tensor(tensor, on, placements))
            window = tuple(slice(start, start + size) for start, size in zip(part.offset, part.shape, strict=True))
            assert torch.equal(local_part(distributed), tensor[window]), (placements, part)
            size, offset = compute_local_shape_and_global_offset(tensor.shape, on, placements)
            assert part.shape == size
            assert 0 in size or part.offset == offset
    assert box_of(whole) == ((0, 0), (6, 7))
    assert box_of(torch.tensor(1.0)) == ((), ())
    for placement in (Partial(), _StridedShard(0, split_factor=2)):
        with pytest.raises(TypeError, match=f"placed by {type(placement).__name__} "):
            box_of(DTensor.from_local(torch.ones(4, 4), mesh, [placement], run_check=False))
    if rank < 2:
        return
    with pytest.raises(ValueError, match="is not in"):
        box_of(DTensor.from_local(torch.ones(4), DeviceMesh("cpu", [0, 1], _init_backend=False), [Shard(0)], run_check=False))


def test_slices_are_what_each_rank_has() -> None:
    ranks.run(cuts, 4)


def returned_settings() -> None:
    """A mesh that cannot give what was asked for, and then one that can."""
    rank = dist.get_rank()
    asked = Shard(1)
    mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(3)
    model: Any = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    fully_shard(model[0], mesh=mesh, shard_placement_fn=lambda _: asked, reshard_after_forward=2)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if rank == 1:
        ranks.die()
    while dist.get_world_size() == 4:
        dist.barrier()
    group: Any = dist.GroupMember.WORLD
    group.attach(group.communicator, group.members, 7)
    remesh(model)
    (first,) = model[0]._get_fsdp_state()._fsdp_param_groups
    assert model[0].weight.placements == (Replicate(), Shard(0))
    assert first.post_forward_mesh_info is first.mesh_info
    model(torch.ones(2, 4)).sum().backward()
    remesh(model, shards=1)
    assert model[0].weight.placements == (Replicate(), Shard(1))
    (first,) = model[0]._get_fsdp_state()._fsdp_param_groups
    assert first.post_forward_mesh_info is first.mesh_info
    with torch.no_grad():
        for parameter in model.parameters():
            local_part(parameter).fill_(dist.get_rank())
    model(torch.ones(2, 4)).sum().backward()
    gradient: Any = model[0].weight.grad
    assert gradient.device_mesh is model[0].weight.device_mesh


def test_what_a_mesh_cannot_give_returns_later() -> None:
    ranks.run(returned_settings, 4, dead=(1,))


def refusals() -> None:
    mesh = init_device_mesh("cpu", (2,))

    def refused(model: Any, *arguments: Any, error: type[Exception], match: str) -> None:
        weight = model.first.weight
        before = weight._spec, weight._local_tensor
        with pytest.raises(error, match=match):
            remesh(model, *arguments)
        assert model.first.weight is weight
        assert weight._spec is before[0]
        assert weight._local_tensor is before[1]

    model = sharded_two(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alien = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    refused(model, alien, error=ValueError, match="a parameter of shape .3,. that is not in the model")
    optimizer.state[model.first.weight]["moment"] = torch.zeros(2, 6)
    refused(model, optimizer, error=TypeError, match="optim0.first.weight.moment is a plain tensor of the shape of a shard")
    optimizer.state[model.first.weight]["moment"] = DTensor.from_local(torch.zeros(4, 6), mesh, [Partial()], run_check=False)
    refused(model, optimizer, error=TypeError, match="optim0.first.weight.moment has the placements")
    optimizer.state.clear()
    model(torch.ones(2, 6)).sum().backward()
    with pytest.raises(ValueError, match="a part of a larger one"):
        remesh(model.first)
    group = model.second._get_fsdp_state()._fsdp_param_groups[0]
    group.novelty = 1
    refused(model, optimizer, error=RuntimeError, match=rf"torch {torch.__version__[:4]}.* is not supported.*has novelty")
    del group.novelty
    remesh(model, optimizer)

    square = init_device_mesh("cpu", (2, 1), mesh_dim_names=("shard", "tensor"))
    refused(sharded_two(square["tensor"]), error=ValueError, match="has not all members")
    cut = parallelize_module(Two(), square["tensor"], {"first": ColwiseParallel()})
    fully_shard(cut, mesh=square["shard"])
    refused(cut, error=TypeError, match="first.weight was a DTensor before")


def test_what_cannot_be_done_is_named_and_changes_nothing() -> None:
    ranks.run(refusals, 2)


def groups_after_each_remesh() -> list[int]:
    model = sharded_two(init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard")))
    counts = []
    for _ in range(3):
        remesh(model)
        model(torch.ones(2, 6)).sum().backward()
        counts.append(len(distributed_c10d._world.pg_map))
    return counts


def test_process_groups_end_with_the_mesh_that_they_were_made_for() -> None:
    assert [len(set(counts)) for counts in ranks.run(groups_after_each_remesh, 2)] == [1, 1]


class CutShortError(Exception):
    """Ends a step in the middle."""


def cut_short_everywhere() -> int:
    """Ends a step before and after each of its collectives, and trains on; gives how many there are."""
    training = Training(Kind("adamw"))
    model, optimizer = training.model, training.optimizer
    before = training.whole()
    expected, after = training.steps(0, 1), training.whole()
    calls, ends = 0, -1

    def counted(call: Any) -> Any:
        def replaced(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 2
            if ends == calls - 1:
                raise CutShortError
            result = call(*arguments, **named)
            if ends == calls:
                raise CutShortError
            return result

        return replaced

    for name in ("all_gather_single", "reduce_scatter_single"):
        setattr(dist, name, counted(getattr(dist, name)))
    training.fill(before)
    assert training.steps(0, 1) == expected
    places = calls
    for place in range(1, places + 1):
        calls, ends = 0, place
        with pytest.raises(CutShortError):
            training.steps(0, 1)
        ends = -1
        remesh(model, optimizer)
        training.fill(before)
        assert training.steps(0, 1) == expected, f"cut short at place {place} of {places}"
        torch.testing.assert_close(training.whole(), after, rtol=0, atol=0)
    return places


def test_a_step_may_be_cut_short_anywhere() -> None:
    first, second = ranks.run(cut_short_everywhere, 2)
    assert first == second > 10


def test_a_replica_has_no_fewer_members_than_asked_for_if_there_are_so_many():
    found = {
        (size, least): replica_size(size, least) for size, least in ((7, 2), (6, 2), (15, 4), (14, 4), (8, 8), (3, 8), (1, 2))
    }
    assert found == {(7, 2): 7, (6, 2): 2, (15, 4): 5, (14, 4): 7, (8, 8): 8, (3, 8): 3, (1, 2): 1}
