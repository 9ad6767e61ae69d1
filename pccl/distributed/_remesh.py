"""Puts a model that `fully_shard` (FSDP2) has sharded on a new mesh, after the group of all members has got other members.

`remesh` moves no data. The caller keeps what it needs of the old shards, and fills the new ones:

    old = {name: (box_of(tensor), local_part(tensor)) for name, tensor in entries(model, optimizers).items()}
    remesh(model, optimizers)
    new = {name: (box_of(tensor), local_part(tensor)) for name, tensor in entries(model, optimizers).items()}

**What stays.** Modules, parameters, param groups and the keys of optimizer states are the same objects. Forward hooks, prefetch
lists and all settings of FSDP stay, because its states stay on the modules. Only its groups of parameters are made again.

**What is stale in torch.** Two meshes of the same ranks are equal for torch. Its caches of sharding decisions therefore answer
for a new mesh with results for an old one, whose coordinates and process groups are those of former members. So `remesh` makes
the old meshes unequal to all others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

from pccl.distributed._dtensors import box, parameters_of, plain, sharded_parameter, states_of_optimizers
from pccl.distributed._fsdp import SETTINGS, check_attributes, check_parameter, fsdp_states, internals, unsupported
from pccl.distributed._training import listed

_OWN = "_pccl_made"
"""An attribute of the meshes that `remesh` makes by itself. With such a mesh its process groups end."""

_retired = itertools.count(1)
_asked: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What the program has asked for and a mesh could not give: the placement of an FSDPParam, the int `reshard_after_forward` of an
FSDPParamGroup. A later mesh may give it."""


# ---- the new mesh ----


@torch.no_grad()
def remesh(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer] | None = None,
    *,
    shards: int | None = None,
    tensors: Mapping[str, DTensor] = MappingProxyType({}),
) -> None:
    """Puts a model and its optimizers on a new mesh. All members call it, after the group of all has got its new members.

    Afterwards sharded parameters, buffers and optimizer states are DTensors on the new mesh, and their content is undefined.
    Other tensors keep theirs. Parameters stay the same objects; DTensors of optimizer states are new ones under the same keys.
    Further DTensors, `tensors` by name, stay the same objects.
    Local tensors that the caller holds keep their content. Gradients are dropped. A step may have been cut short anywhere.

    A mesh of one dimension becomes one over all members. The last dimension of one of two, by which it shards, gets the smallest
    size that is a divisor of the world size and at least `shards`, by default the old size; if there is none, the world size.
    Both keep the type of device and the names of dimensions.

    A parameter that is sharded by a dimension other than 0, and that the new mesh cannot cut evenly, is sharded by dimension 0.
    An int `reshard_after_forward` that does not divide the new mesh becomes True. Both return with a mesh that allows them.

    TypeError, ValueError: the model has something that this cannot do, which the error names; nothing has been changed.
    """
    states = fsdp_states(model)
    meshes = _Meshes(shards)
    names = {parameter: name for name, parameter in parameters_of(model).items()}
    plans = [_Plan(names, state, group, meshes) for state in states for group in state._fsdp_param_groups]
    placements: dict[Any, tuple[_Placements, _Placements]] = {}
    for one in (one for plan in plans for one in plan.parameters):
        placements[one.parameter] = placements[one.parameter.shape] = one.old_placements, one.placements
    moved = [(one, meshes.of(one.tensor.device_mesh)) for one in movable(model, listed(optimizers), tensors)]
    for device in {state._device for state in states if state._device.type != "cpu"}:
        torch.accelerator.synchronize(device)  # kernels of a step that was cut short use the memory until then
    meshes.retire()
    for state in states:
        _reset(state)
    _share_contexts(states)
    while plans:  # one by one, so that there are never all of the old shards and all of the new ones
        plans.pop().carry_out()
    while moved:
        _move(*moved.pop(), placements)
    for parameter in model.parameters():
        parameter.grad = None


class _Meshes:
    """The new mesh of each old one."""

    def __init__(self, shards: int | None) -> None:
        self._shards = shards
        self._made: dict[DeviceMesh, DeviceMesh] = {}
        self._old: dict[int, DeviceMesh] = {}
        self._after_forward: dict[tuple[int, int], Any] = {}
        self.reduce_scatter_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        """Groups of their own that reduce-scatters have, by their ranks; torch fills it."""

    def of(self, old: DeviceMesh) -> DeviceMesh:
        """Returns the new mesh of an old one; makes it at the first call. Equal ones have the same."""
        self.note(old)
        if old not in self._made:
            self._made[old] = _new_mesh(old, self._shards)
        return self._made[old]

    def note(self, old: DeviceMesh | None) -> None:
        """Remembers an old mesh, which is to be retired, and those that it was cut out of or that were made of it."""
        if old is not None and id(old) not in self._old:
            self._old[id(old)] = old
            self.note(old._root_mesh)
            for other in old._flatten_mapping.values():
                self.note(other)

    def after_forward(self, info: Any, asked: bool | int) -> Any:
        """Returns what parameters are resharded to after forward; the groups of an int are made once."""
        if isinstance(asked, bool):
            return internals()._get_post_forward_mesh_info(asked, info)
        key = id(info.mesh), asked
        if key not in self._after_forward:
            made = internals()._get_post_forward_mesh_info(asked, info)
            self._after_forward[key] = info if made is info else made
        return self._after_forward[key]

    def retire(self) -> None:
        """Makes the old meshes unequal to all others, so that no cache of any thread answers for a new mesh with an old one."""
        for old in self._old.values():
            vars(old)["_thread_id"], vars(old)["_hash"] = -next(_retired), None
            if hasattr(old, _OWN):
                for group in old.get_all_groups():
                    if group is not dist.GroupMember.WORLD:
                        dist.destroy_process_group(group)
        for old in self._old.values():
            if any(old == new for new in self._made.values()):
                raise unsupported("DeviceMesh._thread_id does not tell meshes apart")
        internals()._clear_sharding_prop_cache()  # these entries are of no more use
        internals().clear_redistribute_planner_cache()


def _new_mesh(old: DeviceMesh, shards: int | None) -> DeviceMesh:
    whole = old._root_mesh or old
    if whole.size() != old.size() or sorted(whole.mesh.flatten().tolist()) != list(range(old.size())):
        raise ValueError(f"{old} has not all members, as remesh needs it")
    size = dist.get_world_size()
    shape: tuple[int, ...] = (size,)
    if old.ndim == 2:
        last = replica_size(size, shards or old.size(1))
        shape = size // last, last
    mesh = init_device_mesh(old.device_type, shape, mesh_dim_names=old.mesh_dim_names)
    vars(mesh)[_OWN] = True
    return mesh


def replica_size(size: int, least: int) -> int:
    """Returns of how many of `size` members a replica consists: the smallest divisor of at least `least`, else all of them."""
    return next(count for count in range(min(least, size), size + 1) if size % count == 0)


def _sharded_by(dim: int, mesh: DeviceMesh) -> tuple[Placement, ...]:
    """The placements of FSDP: replicas along the first dimension of a mesh of two."""
    return (Shard(dim),) if mesh.ndim == 1 else (Replicate(), Shard(dim))


# ---- groups of parameters ----


class _Parameter(NamedTuple):
    """What is to become of a parameter."""

    old: Any
    """Its FSDPParam."""
    parameter: nn.Parameter
    asked: Shard
    placement: Shard
    old_placements: tuple[Placement, ...]
    placements: tuple[Placement, ...]


class _Plan:
    """What is to become of an FSDPParamGroup. Making it changes nothing, but for the meshes and groups that it makes."""

    def __init__(self, names: dict[nn.Parameter, str], state: Any, group: Any, meshes: _Meshes) -> None:
        known = internals()
        check_attributes(state, group)
        info = group.mesh_info
        if info.shard_mesh_dim is None or info.is_spmd_mesh:
            what = names[sharded_parameter(group.fsdp_params[0])]
            raise TypeError(f"{what} was sharded with dp_mesh_dims or without a shard dimension, which remesh does not know")
        if isinstance(group._all_gather_comm, known.SymmMemAllGather):
            raise TypeError("set_symm_mem_for_comm needs NCCL, and remesh cannot make it again; leave it out")
        self.state, self.old, self.meshes = state, group, meshes
        new = meshes.of(info.mesh)
        for other in (group.post_forward_mesh_info, *group.fsdp_params):
            for name in ("mesh", "_shard_mesh", "_spmd_mesh"):
                meshes.note(getattr(other, name, None))
        self.info = known._get_mesh_info(new)
        self.asked, given = _after_forward(state, group, self.info.shard_mesh_size)
        self.after_forward = meshes.after_forward(self.info, given)
        self.parameters = [self._plan(one, names) for one in group.fsdp_params]

    def _plan(self, one: Any, names: dict[nn.Parameter, str]) -> _Parameter:
        check_parameter(one)
        parameter: Any = sharded_parameter(one)
        name = names[parameter]
        local = getattr(parameter, "_local_tensor", None)
        if one.is_dtensor or getattr(one, "is_spmd_types", False):
            raise TypeError(f"{name} was a DTensor before fully_shard (tensor parallelism), which remesh does not know")
        if local is None:
            raise TypeError(f"{name} is not a DTensor any more; remesh needs parameters as fully_shard makes them")
        _require_plain(local, name)
        asked = _asked.get(one, one.fsdp_placement)
        even = asked.dim == 0 or parameter.shape[asked.dim] % self.info.shard_mesh_size == 0
        placement = asked if even else Shard(0)
        placements = _sharded_by(placement.dim, self.info.mesh)
        return _Parameter(one, parameter, asked, placement, parameter.placements, placements)

    def carry_out(self) -> None:
        """Makes the group again, with its settings, and gives the parameters shards of the new size."""
        _remove_hooks(self.old)
        wholes = [_whole(one) for one in self.parameters]
        placements = {whole: one.placement for whole, one in zip(wholes, self.parameters, strict=True)}
        group = internals().FSDPParamGroup(
            wholes,
            self.old.modules,
            self.info,
            self.after_forward,
            self.old.device,
            placements.__getitem__,
            self.old.mp_policy,
            self.old.offload_policy,
        )
        for name in SETTINGS:
            setattr(group, name, getattr(self.old, name))
        if isinstance(group._all_gather_comm, internals().ProcessGroupAllocAllGather):
            group.set_allocate_memory_from_process_group(True)
        group.comm_ctx = self.state._comm_ctx
        if self.asked is not None:
            _asked[group] = self.asked
        for new, one in zip(group.fsdp_params, self.parameters, strict=True):
            _give_shard(new, one)
        if self.old.mesh_info.reduce_scatter_process_group is not None:
            group._set_separate_reduce_scatter_group(True, self.meshes.reduce_scatter_groups)
        groups = self.state._fsdp_param_groups
        groups[groups.index(self.old)] = group
        for one in (*self.old.fsdp_params, self.old):
            vars(one).clear()  # the graph of a step that was cut short, or a cycle, may still have them and all their memory


def _after_forward(state: Any, group: Any, size: int) -> tuple[int | None, bool | int]:
    """The int `reshard_after_forward` that the program has asked for, if any, and what a mesh of this size is given."""
    there = group.post_forward_mesh_info
    if state._auto_reshard_after_forward:
        return None, True
    if there is None:
        return None, False
    asked = there.shard_mesh_size if there.mesh is not group.mesh_info.mesh else _asked.get(group)
    return asked, asked if asked is not None and size % asked == 0 else True


def _remove_hooks(group: Any) -> None:
    for one in group.fsdp_params:
        one._post_load_hook_handle.remove()
    for hooks in (group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle):
        for handle in hooks.values():
            handle.remove()


def _whole(one: _Parameter) -> nn.Parameter:
    """Puts a parameter of the whole shape, without memory, on the modules, of which FSDP makes a shard. Returns it."""
    parameter = one.parameter
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    whole = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    one.old._setattr_on_modules(whole)
    return whole


def _give_shard(new: Any, one: _Parameter) -> None:
    """Gives the parameter a shard of the new size, and the new FSDPParam the parameter."""
    parameter: Any = one.parameter
    device = parameter._local_tensor.device
    padded = torch.zeros(new.padded_sharded_param_size, dtype=parameter.dtype, device=device)
    if new.pin_memory and device.type == "cpu":
        padded = padded.pin_memory()
    dim = new.fsdp_placement.dim
    parameter._local_tensor = padded.narrow(dim, 0, new.sharded_size[dim])
    parameter._spec = new._sharding_spec
    parameter.grad = None
    new._sharded_param_data = padded.view(-1)
    new.sharded_param = parameter
    new._setattr_on_modules(parameter)
    if one.asked != one.placement:
        _asked[new] = one.asked


# ---- states of FSDP ----


def _reset(state: Any) -> None:
    """Brings a state to that before the first forward pass. What a program sets stays."""
    state._is_root = None
    state._training_state = internals().TrainingState.IDLE
    state._modules_to_run_forward.clear()


def _share_contexts(states: Sequence[Any]) -> None:
    """Gives the states new contexts. States that shared one share the new one."""
    known = internals()
    made: dict[int, Any] = {}
    old = [(state._state_ctx, state._comm_ctx) for state in states]  # whose ids stay theirs
    for state, (context, streams) in zip(states, old, strict=True):
        if id(context) not in made:
            made[id(context)] = known.FSDPStateContext()
            made[id(context)].is_last_backward = context.is_last_backward
        state._state_ctx = made[id(context)]
        state._comm_ctx = made.setdefault(id(streams), known.FSDPCommContext())


# ---- other tensors ----


class Movable(NamedTuple):
    """A DTensor beside the parameters."""

    name: str
    container: Any
    """The dictionary or list that has it under `key`; None: it stays the same object, on another mesh."""
    key: Any
    tensor: DTensor
    parameter: Any = None
    """The one whose state it is, if it is of an optimizer."""


def movable(
    model: nn.Module, optimizers: Sequence[Optimizer], tensors: Mapping[str, DTensor] = MappingProxyType({})
) -> list[Movable]:
    """The DTensors in buffers, in states of optimizers, and in `tensors`. TypeError: one there cannot be placed."""
    parameters = parameters_of(model).values()
    meshes = {parameter.device_mesh for parameter in parameters if isinstance(parameter, DTensor)}
    found = [
        Movable(f"model.{plain(prefix + '.' if prefix else prefix)}{key}", module._buffers, key, buffer)
        for prefix, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if isinstance(buffer, DTensor)
    ]
    for state in states_of_optimizers(model, optimizers):
        tensor = state.container[state.key]
        if isinstance(tensor, DTensor):
            found.append(Movable(state.name, state.container, state.key, tensor, state.parameter))
        elif isinstance(state.parameter, DTensor) and tensor.numel() > 1 and tensor.shape == state.parameter.to_local().shape:
            raise TypeError(
                f"{state.name} is a plain tensor of the shape of a shard of {state.parameter_name}: remesh cannot tell whether "
                "it is one; make it a DTensor"
            )
    known = {id(one) for one in (*parameters, *(one.tensor for one in found))}
    found += [Movable(name, None, None, one) for name, one in tensors.items() if id(one) not in known]
    for name, _, _, tensor, _ in found:
        if tensor.device_mesh not in meshes:
            raise TypeError(f"{name} is a DTensor on {tensor.device_mesh}, on which FSDP has no parameter: remesh cannot move it")
        _require_plain(tensor.to_local(), name)
        cut = [placement for placement in tensor.placements if type(placement) is not Replicate]
        if len(cut) > 1 or any(type(placement) is not Shard for placement in cut):
            raise TypeError(
                f"{name} has the placements {tensor.placements}; remesh knows Replicate, and Shard along one dimension"
            )
    return found


_Placements = tuple[Placement, ...]


def _move(one: Movable, mesh: DeviceMesh, placements: Mapping[Any, tuple[_Placements, _Placements]]) -> None:
    """Puts a DTensor on its new mesh; what is sharded as its parameter was is so again. `placements`: old and new ones."""
    tensor, local = one.tensor, one.tensor.to_local()
    cut = next((placement.dim for placement in tensor.placements if isinstance(placement, Shard)), None)
    if cut is None:
        given: _Placements = (Replicate(),) * mesh.ndim
    else:
        old, new = placements.get(one.parameter) or placements.get(tensor.shape, ((), ()))
        alike = old == tensor.placements and (one.parameter is None or tensor.shape == one.parameter.shape)
        given = new if alike else _sharded_by(cut, mesh)
        local = torch.zeros(box(tuple(tensor.shape), mesh, given).shape, dtype=local.dtype, device=local.device)
    made: Any = DTensor.from_local(local, mesh, given, run_check=False, shape=tensor.shape, stride=tensor.stride())
    if one.container is not None:
        one.container[one.key] = made
    else:
        tensor._local_tensor, tensor._spec = made._local_tensor, made._spec
        tensor.grad = None


def _require_plain(local: torch.Tensor, name: str) -> None:
    if type(local) is not torch.Tensor:
        raise TypeError(f"the shards of {name} are of the type {type(local).__name__}; remesh can only make plain tensors")
