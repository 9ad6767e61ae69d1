"""Finds everything in a module, its optimizer and its surroundings that decides how training goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from pccl._tensors import is_numpy_array, is_torch_tensor
from pccl._types import TensorInfo


class Scalar:
    """Something that is no tensor, in a tensor: `load` copies it in before a sync, `store` back after it."""

    def __init__(self, tensor: torch.Tensor, get: Callable[[], torch.Tensor], put: Callable[[torch.Tensor], None]) -> None:
        self.tensor = tensor
        self._get = get
        self._put = put

    def load(self) -> None:
        self.tensor.copy_(self._get())

    def store(self) -> None:
        if not torch.equal(self.tensor, self._get()):
            self._put(self.tensor)


class Extra(MutableMapping[str, Any]):
    """Tensors and numbers by name. A number lives in a tensor of one element."""

    def __init__(self) -> None:
        self._tensors: dict[str, Any] = {}
        self._kinds: dict[str, type] = {}

    def add(self, name: str, value: Any) -> Any:
        """Takes a value in; gives the tensor that it lives in."""
        if is_torch_tensor(value) or is_numpy_array(value):
            self._tensors[name] = value
        elif isinstance(value, (bool, int, float)):
            self._tensors[name] = torch.tensor([value], dtype=torch.float64 if isinstance(value, float) else torch.int64)
            self._kinds[name] = type(value)
        else:
            raise TypeError(f"extra {name!r} must be a tensor, an array or a number, not {type(value).__name__}")
        return self._tensors[name]

    def __getitem__(self, name: str) -> Any:
        kind = self._kinds.get(name)
        return self._tensors[name] if kind is None else kind(self._tensors[name].item())

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._tensors:
            raise KeyError(f"{name!r} is not part of the shared state: give it to from_module")
        if name in self._kinds:
            self._tensors[name][0] = value
        else:
            self._tensors[name][...] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("what is part of a shared state cannot be taken out of it")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state that an optimizer otherwise makes in its first step, with the values that it has before that step."""
    fresh = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
    if not fresh:
        return
    without = [p for p in fresh if p.grad is None]
    for p in without:
        p.grad = torch.zeros_like(p)
    try:
        for group in optimizer.param_groups:
            _make_group(optimizer, group)
    finally:
        for p in without:
            p.grad = None


def _make_group(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    if isinstance(optimizer, torch.optim.SGD):
        for p in group["params"] if group["momentum"] != 0 else []:
            if not optimizer.state.get(p):  # the first step adds to zero; with `dampening` it would not, but copy
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return
    init = getattr(optimizer, "_init_group", None)
    if init is None:
        name = type(optimizer).__name__
        raise ValueError(f"the state of {name} is not there yet: make a step with it before from_module, on all peers alike")
    init(group, *([] for _ in list(inspect.signature(init).parameters)[1:]))


def _numbers(groups: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str, int | None, type]]:
    """Where the numbers of the param groups are: learning rates, betas, ..."""
    found: list[tuple[dict[str, Any], str, int | None, type]] = []
    for group in groups:
        for key in sorted(group):
            value = group[key]
            if isinstance(value, (bool, int, float)):
                found.append((group, key, None, type(value)))
            elif isinstance(value, tuple) and all(isinstance(one, (int, float)) for one in value):
                found += [(group, key, at, type(one)) for at, one in enumerate(value)]
    return found


class Collector:
    """The entries of a shared state, in an order that is the same on all peers."""

    def __init__(self) -> None:
        self.infos: list[TensorInfo] = []
        self.scalars: list[Scalar] = []
        self.extra = Extra()

    def _add(self, name: str, tensor: Any, current: Callable[[], Any] | None = None) -> None:
        made = TensorInfo.from_torch(tensor, name) if is_torch_tensor(tensor) else TensorInfo.from_numpy(tensor, name)
        made.current = current
        self.infos.append(made)

    def _add_scalar(self, name: str, get: Callable[[], torch.Tensor], put: Callable[[torch.Tensor], None]) -> None:
        tensor = get().clone()
        self._add(name, tensor)
        self.scalars.append(Scalar(tensor, get, put))

    def add_module(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters():
            self._add(f"parameter/{name}", parameter.detach(), lambda name=name: module.get_parameter(name).detach())  # type: ignore[misc]
        for name, buffer in module.named_buffers():
            self._add(f"buffer/{name}", buffer, lambda name=name: module.get_buffer(name))  # type: ignore[misc]

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        make_state(optimizer)
        number = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._add_parameter_state(optimizer, parameter, number)
                number += 1
        places = _numbers(optimizer.param_groups)

        def get() -> torch.Tensor:
            values = [group[key] if at is None else group[key][at] for group, key, at, _ in places]
            return torch.tensor(values, dtype=torch.float64)

        def put(values: torch.Tensor) -> None:
            for (group, key, at, kind), value in zip(places, values.tolist(), strict=True):
                if at is None:
                    group[key] = kind(value)
                else:
                    group[key] = (*group[key][:at], kind(value), *group[key][at + 1 :])

        if places:
            self._add_scalar("optimizer/numbers", get, put)

    def _add_parameter_state(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, number: int) -> None:
        state = optimizer.state.get(parameter) or {}
        for key in sorted(state):
            name = f"optimizer/{number}/{key}"
            value = state[key]
            if is_torch_tensor(value):
                self._add(name, value, lambda key=key: optimizer.state[parameter][key])  # type: ignore[misc]
            elif isinstance(value, (bool, int, float)):
                kind = type(value)

                def get(key: str = key) -> torch.Tensor:
                    return torch.tensor([optimizer.state[parameter][key]], dtype=torch.float64)

                def put(tensor: torch.Tensor, key: str = key, kind: type = kind) -> None:
                    optimizer.state[parameter][key] = kind(tensor.item())

                self._add_scalar(name, get, put)
            elif value is not None:
                raise TypeError(f"{name} is a {type(value).__name__}: only tensors and numbers can be shared")

    def add_rng(self) -> None:
        self._add_scalar("rng/torch", torch.get_rng_state, torch.set_rng_state)

    def add_extra(self, extra: Mapping[str, Any]) -> None:
        for name, value in extra.items():
            self._add(f"extra/{name}", self.extra.add(name, value))
