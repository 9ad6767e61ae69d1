"""What is used of FSDP2 beside its public names, and the check that this version of torch has it."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

_FSDP = "torch.distributed.fsdp._fully_shard."
_PRIVATE = {
    "FSDPState": _FSDP + "_fsdp_state",
    "FSDPStateContext": _FSDP + "_fsdp_state",
    "TrainingState": _FSDP + "_fsdp_common",
    "FSDPMeshInfo": _FSDP + "_fsdp_common",
    "FSDPParamGroup": _FSDP + "_fsdp_param_group",
    "FSDPCommContext": _FSDP + "_fsdp_param_group",
    "ProcessGroupAllocAllGather": _FSDP + "_fsdp_collectives",
    "SymmMemAllGather": _FSDP + "_fsdp_collectives",
    "ShardedState": _FSDP + "_fsdp_param",
    "_get_module_fsdp_state": _FSDP + "_fsdp_state",
    "_get_mesh_info": _FSDP + "_fsdp_init",
    "_get_post_forward_mesh_info": _FSDP + "_fsdp_init",
    "_clear_sharding_prop_cache": "torch.distributed.tensor.debug",
    "clear_redistribute_planner_cache": "torch.distributed.tensor._redistribute",
}
"""What is used of torch beside its public names, and the module that has it."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SETTINGS = _words(
    "_all_gather_comm _all_reduce_hook _all_reduce_hook_stream _reduce_scatter_comm all_reduce_grads "
    "force_sum_reduction_for_comms gradient_divide_factor reduce_grads reduce_scatter_max_input_buffers "
    "reduce_scatter_unused_params reshard_after_backward unshard_async_op unshard_in_backward"
)
"""Attributes of an FSDPParamGroup that a program sets, and that a new one takes over."""

_ATTRIBUTES = {
    "FSDPState": _words(
        "_auto_reshard_after_forward _comm_ctx _device _device_handle _fsdp_param_groups _is_root _modules "
        "_modules_to_run_forward _mp_policy _post_forward_hook_handle _pre_forward_hook_handle _state_ctx "
        "_states_to_backward_prefetch _states_to_forward_prefetch _training_state"
    ),
    "FSDPStateContext": _words(
        "all_states is_last_backward iter_forward_root post_backward_final_callback_queued post_optim_event"
    ),
    "FSDPParamGroup": SETTINGS
    | _words(
        "_all_gather_output _all_gather_result _all_reduce_state _module_fqn _module_to_pre_load_state_dict_hook_handle "
        "_module_to_pre_save_state_dict_hook_handle _num_param_groups _param_group_index _partial_reduce_output "
        "_post_forward_indices _post_reduce_event _reset_sharded_params _reshard_after_forward_event _sharded_state "
        "_training_state comm_ctx device device_handle fsdp_params mesh_info modules mp_policy offload_policy "
        "post_forward_mesh_info"
    ),
}
"""All attributes of these objects. One that is missing or new may be a setting that would be lost, or a state that would stay."""

_ADDED_LATER = frozenset(("_orig_dtype", "_reduce_dtype"))
"""Attributes of an FSDPParamGroup that the first forward pass adds."""

_PARAMETER = _words(
    "_module_info _post_load_hook_handle _setattr_on_modules _sharded_param_data _sharding_spec fsdp_placement is_dtensor "
    "padded_sharded_param_size pin_memory sharded_param sharded_size sharded_state"
)
"""Attributes of an FSDPParam that are used."""

_MESH = ("_dim_group_names", "_flatten_mapping", "_hash", "_root_mesh", "_thread_id")
"""Attributes of a DeviceMesh that are used."""


@functools.cache
def internals() -> SimpleNamespace:
    """Returns the names of `_PRIVATE`."""
    found = {}
    for name, module in _PRIVATE.items():
        try:
            found[name] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            raise unsupported(f"{module} has no {name}") from None
    return SimpleNamespace(**found)


def check_attributes(state: Any, group: Any) -> None:
    for one in (state, state._state_ctx, group):
        name = type(one).__name__
        there = vars(one).keys() - _ADDED_LATER
        missing, added = _ATTRIBUTES[name] - there, there - _ATTRIBUTES[name]
        if missing or added:
            raise unsupported(f"{name} {'lacks' if missing else 'has'} {', '.join(sorted(missing or added))}")
    for name in _MESH:
        if not hasattr(group.mesh_info.mesh, name):
            raise unsupported(f"DeviceMesh lacks {name}")


def check_parameter(one: Any) -> None:
    missing = [name for name in sorted(_PARAMETER) if not hasattr(one, name)]
    if missing:
        raise unsupported(f"FSDPParam lacks {', '.join(missing)}")


def unsupported(what: str) -> RuntimeError:
    return RuntimeError(f"torch {torch.__version__} is not supported by pccl.distributed for sharded models: {what}")


def fsdp_states(model: nn.Module) -> list[Any]:
    """The states of FSDP in the model, each once."""
    known = internals()
    found: dict[int, Any] = {}
    for name, module in model.named_modules():
        state = known._get_module_fsdp_state(module)
        if state is None:
            continue
        if type(state) is not known.FSDPState:
            raise TypeError(f"{name or 'the model'} is wrapped by {type(state).__name__}, which remesh does not know")
        found[id(state)] = state
    for state in found.values():
        if any(id(other) not in found for other in state._state_ctx.all_states):
            raise ValueError("the model is a part of a larger one under FSDP; call remesh with the larger one")
    return list(found.values())
