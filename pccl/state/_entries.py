"""Tensors as the named, hashed entries of a shared state: only blocks that differ travel, to the peers that lack them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pccl._core.types import TensorInfo
from pccl._exports import publish
from pccl._peer.shared_state import SharedState
from pccl.state._local.module import _shareable, require_same_names
from pccl.state._local.objects import COMPILED as COMPILED

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator


class Entries:
    """Tensors that all members are to hold alike, by name. They are received where they are.

    Members and newcomers must have the same names, shapes and data types before they sync: a newcomer calls `take_layout` with
    what a member's `layout` returned. Then all call `sync_shared_state(entries.state)`, and `restore`. The tensors must stay
    where they are until then; make new entries for each sync, so that a replaced tensor is never missed.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        for name, tensor in self._tensors.items():
            if hasattr(tensor, "full_tensor"):  # a DTensor
                raise TypeError(f"{name} is sharded, and a newcomer can only copy what every member holds whole; use checkpoints")
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._state: SharedState | None = None

    def layout(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        """The data type and shape of each tensor, a plain tree."""
        return {name: (tensor.dtype, tensor.shape) for name, tensor in self._tensors.items()}

    def take_layout(self, told: Mapping[str, Any]) -> None:
        """At a newcomer, before the sync: compares its tensors with a member's `layout`, and resizes buffers of another shape.

        ValueError names the tensor that only some peers have, whose data type differs, or that cannot be resized.
        """
        require_same_names(self._tensors, told, "tensor")
        for name, tensor in self._tensors.items():
            dtype, shape = told[name]
            if tensor.dtype != dtype:
                raise ValueError(f"{name} is {tensor.dtype} here, and {dtype} on the other members")
            if tensor.shape != shape:
                resize(tensor, shape, name)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def fitted(self, told: Mapping[str, Any], *, copy: bool = False) -> Entries:
        """Returns entries of the members' `layout`: its own tensors, or copies of them, where they fit, and else new ones."""
        found = {}
        for name, (dtype, shape) in told.items():
            own = self._tensors.get(name)
            if own is None or own.dtype != dtype or own.shape != shape:
                own = torch.empty(shape, dtype=dtype, device="cpu")
            elif copy:
                own = own.clone()
            found[name] = own
        return Entries(found)

    @property
    def state(self) -> SharedState | None:
        """The shared state; None if no tensor has elements. Tensors on a GPU, or not contiguous, are in it as copies."""
        if self._state is None:
            infos = [
                TensorInfo.from_torch(_shareable(self._plain(tensor.detach())), name)
                for name, tensor in self._tensors.items()
                if tensor.numel()
            ]
            self._state = SharedState(infos) if infos else None
        return self._state

    def sync(self, comm: Communicator, revision: int, timeout: float | None = None) -> int | None:
        """Brings the tensors to `revision`; 0: this peer lacks them. Returns the revision then; None: no tensor has elements.

        Raises what `Communicator.sync_shared_state` does.
        """
        if self.state is None:
            return None
        self.state.revision = revision
        if comm.sync_shared_state(self.state, timeout=timeout).rx_bytes:
            self.restore()
        return self.state.revision

    @torch.no_grad()
    def restore(self) -> None:
        """After a sync that has received bytes: writes the copies to their tensors."""
        for tensor, copy in self._copies:
            tensor.copy_(copy)

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu and tensor.is_contiguous():
            return tensor
        copy = tensor.cpu().contiguous()
        if copy.data_ptr() != tensor.data_ptr():
            self._copies.append((tensor, copy))
        return copy


def module_tensors(module: nn.Module, *, trained: bool = True) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by the names of their entries. `trained`: also those that require a gradient."""
    found: dict[str, torch.Tensor] = {}
    found |= {f"parameter/{name}": one for name, one in module.named_parameters() if trained or not one.requires_grad}
    found |= {f"buffer/{name}": one for name, one in module.named_buffers()}
    return {name.replace(COMPILED, ""): tensor for name, tensor in found.items()}


@torch.no_grad()
def resize(tensor: torch.Tensor, shape: torch.Size, name: str) -> None:
    """Gives a newcomer's buffer the shape that it has at the members. ValueError: it is a parameter, or cannot be resized."""
    why = "only buffers can change their shape"
    if not isinstance(tensor, nn.Parameter):
        try:
            tensor.resize_(shape)
            return
        except RuntimeError as error:
            why = str(error)
    shapes = f"has the shape {tuple(tensor.shape)} here, and {tuple(shape)} on the other members"
    raise ValueError(f"{name} {shapes}: {why}")


publish(globals())
