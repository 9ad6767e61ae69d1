"""What a run consists of beside the outer parameters, and what a joiner needs of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn

from pccl._core.types import TensorInfo
from pccl.diloco._outer import local_memory, named_parameters
from pccl.state import Entries, encode, load_object_state, object_state
from pccl.state._entries import COMPILED
from pccl.state._local.module import Extra, require_same_names
from pccl.state._local.objects import extra_states, load_extra_states


class State(MutableMapping[str, Any]):
    """The user's part of the state, by name: tensors, arrays and numbers, and objects with `state_dict` and `load_state_dict`.

    Tensors, arrays and numbers are shared: after each outer step all members hold the same ones. Where they differ before it, the
    content that most members hold wins, or that of the one that has been there for longest. Objects are each member's own; a
    joiner loads what the `state_dict` of the longest-standing member gives.
    """

    def __init__(self, values: Mapping[str, Any] | None) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise TypeError(f"state must be a dict of values by name, not {type(values).__name__}")
        self._shared = Extra()
        self.objects: dict[str, Any] = {}
        for name, value in (values or {}).items():
            if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
                self.objects[name] = value
                continue
            try:
                self._shared.add(name, value)
            except TypeError:
                kinds = "a tensor, an array, a number, or an object with state_dict and load_state_dict"
                raise TypeError(f"state {name!r} must be {kinds}, not {type(value).__name__}") from None

    @property
    def data(self) -> list[Any]:
        """The objects that hand out samples (`pccl.data`), in the same order on all members."""
        return [value for _, value in sorted(self.objects.items()) if hasattr(value, "commit_step")]

    def seal(self) -> None:
        """Notes that an inner step was made, with the samples that the program has got by now."""
        for one in self.data:
            one.seal()

    def entries(self) -> Iterator[TensorInfo]:
        for name, tensor in self._shared._tensors.items():
            make = TensorInfo.from_torch if isinstance(tensor, Tensor) else TensorInfo.from_numpy
            yield make(tensor, f"state/{name}")

    def __getitem__(self, name: str) -> Any:
        return self.objects[name] if name in self.objects else self._shared[self._known(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.objects:
            raise TypeError(f"state {name!r} is an object; change it in place")
        self._shared[self._known(name)] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("an item of the state of a run cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        yield from self._shared
        yield from self.objects

    def __len__(self) -> int:
        return len(self._shared) + len(self.objects)

    def _known(self, name: str) -> str:
        if name not in self._shared:
            raise KeyError(f"{name!r} is not part of the state; pass it as state={{{name!r}: ...}}")
        return name


class Welcome:
    """What a joiner gets once, of the longest-standing member: frozen parameters, buffers, and the objects of the state."""

    def __init__(self, model: nn.Module, state: State) -> None:
        self._model = model
        self._state = state
        encode({"objects": self._objects()})  # what cannot be packed is an error here, not when somebody joins

    def frozen(self) -> Entries:
        return Entries(frozen_parameters(self._model))

    def buffers(self) -> Entries:
        return Entries(buffers(self._model))

    def give(self, *, early: bool = False) -> bytes:
        """All but the tensors, for `take` in another process; and whether that is let in before an outer step."""
        own = self.buffers()
        layouts = {"frozen": self.frozen().layout(), "buffers": own.layout(), "digest": digest(own)}
        return bytes(encode({**layouts, "early": early, "objects": self._objects(), "extra": extra_states(self._model)}))

    def prepare(self, told: Mapping[str, Any]) -> None:
        """At a joiner, before it gets the tensors: ValueError names what its model or its state has of another kind."""
        self.frozen().take_layout(told["frozen"])
        self.buffers().take_layout(told["buffers"])
        require_same_names(self._state.objects, told["objects"], "object of the state")

    def take(self, told: Mapping[str, Any]) -> None:
        """At a joiner that has the tensors: loads the rest. ValueError: the content is malformed."""
        for name, value in self._state.objects.items():
            load_object_state(value, told["objects"][name], f"object {name!r} of the state")
        load_extra_states(self._model, told["extra"])

    def _objects(self) -> dict[str, Any]:
        return {name: object_state(value) for name, value in self._state.objects.items()}


def digest(entries: Entries) -> str:
    return "" if entries.state is None else entries.state.hash()


def frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that do not take part in outer steps, by name; of sharded ones the shard of this process."""
    return {name: _local(one) for name, one in named_parameters(model) if not one.requires_grad}


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name.replace(COMPILED, ""): _local(one) for name, one in model.named_buffers()}


def _local(tensor: Tensor) -> Tensor:
    return local_memory(tensor) if hasattr(tensor, "to_local") else tensor
