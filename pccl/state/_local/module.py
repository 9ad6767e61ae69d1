"""Finds everything in a module, its optimizer and its surroundings that decides how training goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from pccl._core.errors import ArgumentError
from pccl._core.tensors import is_numpy_array, is_torch_tensor
from pccl._core.types import TensorInfo
from pccl.state._local.agreement import Terms, joined, layout_of, terms_of_model, terms_of_optimizers

MAKE_ANEW = "make a new SharedState with the revision of this one"


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
            self._tensors[name] = torch.tensor(
                [value], dtype=torch.float64 if isinstance(value, float) else torch.int64, device="cpu"
            )
            self._kinds[name] = type(value)
        else:
            raise TypeError(f"extra {name!r} must be a tensor, an array or a number, not {type(value).__name__}")
        return self._tensors[name]

    def __getitem__(self, name: str) -> Any:
        self._require(name)
        kind = self._kinds.get(name)
        return self._tensors[name] if kind is None else kind(self._tensors[name].item())

    def __setitem__(self, name: str, value: Any) -> None:
        self._require(name)
        kind = self._kinds.get(name)
        if kind is None:
            self._tensors[name][...] = value
            return
        if kind is not float and kind(value) != value:
            raise ValueError(
                f"extra {name!r} is of type {kind.__name__} and cannot hold {value!r}; pass it to from_module as a float"
            )
        self._tensors[name][0] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("an item of a shared state cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _require(self, name: str) -> None:
        if name not in self._tensors:
            raise KeyError(f"{name!r} is not part of the shared state; pass it to from_module in extra")


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
        raise ValueError(f"the state of {name} does not exist yet; make a step with it before from_module, on all peers")
    init(group, *([] for _ in list(inspect.signature(init).parameters)[1:]))


def _numbers(groups: list[dict[str, Any]]) -> list[tuple[int, str, int | None]]:
    """Where the numbers of the param groups are: learning rates, betas, ... Group, key, place in a tuple."""
    found: list[tuple[int, str, int | None]] = []
    for number, group in enumerate(groups):
        for key in sorted(group):
            value = group[key]
            if isinstance(value, (bool, int, float)):
                found.append((number, key, None))
            elif isinstance(value, tuple) and all(isinstance(one, (int, float)) for one in value):
                found += [(number, key, at) for at in range(len(value))]
    return found


def _like(old: Any, value: float) -> Any:
    """`value` as the type of `old`, as far as it fits: a learning rate that began as the int 1 may have become 0.5."""
    if isinstance(old, bool):
        return bool(value)
    return int(value) if isinstance(old, int) and value.is_integer() else value


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {f"parameter/{name}": parameter.detach() for name, parameter in module.named_parameters()}
    return found | {f"buffer/{name}": buffer for name, buffer in module.named_buffers()}


def _layout(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Which parameters an optimizer has, and of what its state and its groups consist."""
    found: list[Any] = list(_numbers(optimizer.param_groups))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            found.append((id(parameter), sorted(key for key, value in state.items() if value is not None)))
    return found


def _shareable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory with a data type that entries can have."""
    if tensor.is_complex() and not tensor.is_conj():
        return torch.view_as_real(tensor)
    if str(tensor.dtype).startswith("torch.float8"):
        return tensor.view(torch.uint8)
    return tensor


class Collector:
    """The entries of a shared state, in an order that is the same on all peers."""

    def __init__(self) -> None:
        self.infos: list[TensorInfo] = []
        self.scalars: list[Scalar] = []
        self.checks: list[Callable[[], str | None]] = []
        self.extra = Extra()

    def _add(self, name: str, tensor: Any, current: Callable[[], torch.Tensor] | None = None) -> None:
        if is_numpy_array(tensor):
            made = TensorInfo.from_numpy(tensor, name)
        else:
            try:
                made = TensorInfo.from_torch(_shareable(tensor), name)
            except AssertionError as error:
                hint = "; a parameter: parameter.data = parameter.data.contiguous()" if name.startswith("parameter/") else ""
                raise ArgumentError(f"{error}{hint}") from None
            made.current = lambda: _shareable(tensor if current is None else current())
        self.infos.append(made)

    def _add_scalar(self, name: str, get: Callable[[], torch.Tensor], put: Callable[[torch.Tensor], None]) -> None:
        tensor = get().clone()
        self._add(name, tensor)
        self.scalars.append(Scalar(tensor, get, put))

    def add_module(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
        known = _tensors_of(module)
        now = known

        def check() -> str | None:
            nonlocal now
            now = _tensors_of(module)
            for names, what in ((known.keys() - now.keys(), "no longer has"), (now.keys() - known.keys(), "also has")):
                if names:
                    return f"the module {what} {min(names)!r} since the shared state was made: {MAKE_ANEW}"
            return None

        self.checks.append(check)
        for name, tensor in known.items():
            self._add(name, tensor, lambda name=name: now[name])  # type: ignore[misc]

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        make_state(optimizer)
        layout = _layout(optimizer)

        def check() -> str | None:
            if _layout(optimizer) == layout:
                return None
            return (
                "the optimizer has other parameters, groups or state than when the shared state was made, as after "
                f"add_param_group or load_state_dict of another optimizer: {MAKE_ANEW}"
            )

        self.checks.append(check)
        number = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._add_parameter_state(optimizer, parameter, number)
                number += 1
        places = _numbers(optimizer.param_groups)

        def get() -> torch.Tensor:
            groups = optimizer.param_groups  # load_state_dict makes new ones
            values = [groups[number][key] if at is None else groups[number][key][at] for number, key, at in places]
            return torch.tensor(values, dtype=torch.float64, device="cpu")

        def put(values: torch.Tensor) -> None:
            for (number, key, at), value in zip(places, values.tolist(), strict=True):
                group = optimizer.param_groups[number]
                old = group[key]
                group[key] = _like(old, value) if at is None else (*old[:at], _like(old[at], value), *old[at + 1 :])

        if places:
            self._add_scalar("optimizer/numbers", get, put)
        for number, group in enumerate(optimizer.param_groups):
            for key in sorted(key for key in group if is_torch_tensor(group[key])):  # such as a learning rate for `capturable`
                current = lambda number=number, key=key: optimizer.param_groups[number][key]  # noqa: E731
                self._add(f"optimizer/group {number}/{key}", group[key], current)

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
                    return torch.tensor([optimizer.state[parameter][key]], dtype=torch.float64, device="cpu")

                def put(tensor: torch.Tensor, key: str = key, kind: type = kind) -> None:
                    optimizer.state[parameter][key] = kind(tensor.item())

                self._add_scalar(name, get, put)
            elif value is not None:
                raise TypeError(f"{name} is a {type(value).__name__}: only tensors and numbers can be shared")

    def add_rng(self) -> None:
        self._add_scalar("rng/torch", torch.get_rng_state, torch.set_rng_state)

    def add_extra(self, extra: Mapping[str, Any]) -> None:
        if not isinstance(extra, Mapping):
            raise TypeError(f"extra must be a dict of values by name, not {type(extra).__name__}")
        for name, value in extra.items():
            self._add(f"extra/{name}", self.extra.add(name, value))


def terms_of_state(module: torch.nn.Module, optimizer: torch.optim.Optimizer | None, extra: Extra, *, rng_state: bool) -> Terms:
    """What peers need alike of what `SharedState.from_module` is given."""
    parameters = dict(module.named_parameters())
    names = {parameter: name for name, parameter in parameters.items()}
    kinds = {f"extra {name!r}": extra._kinds[name].__name__ if name in extra._kinds else layout_of(extra[name]) for name in extra}
    of_optimizer = terms_of_optimizers([] if optimizer is None else [optimizer], names)
    return joined(
        [Terms({"rng_state": rng_state, **kinds}), terms_of_model(dict(module.named_modules()), parameters), of_optimizer]
    )


def require_same_names(own: Mapping[str, Any], told: Mapping[str, Any], what: str) -> None:
    """ValueError names the first thing that only this process or only the other members have."""
    if own.keys() == told.keys():
        return
    name = min(own.keys() ^ told.keys(), key=str)
    where = "in this process only" if name in own else "only on the other members"
    raise ValueError(f"{what} {name!r} is {where}: make the same model and state on all members")


@torch.no_grad()
def copy_by_name(own: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Copies tensors and arrays into those of the same name. ValueError: names, shapes or data types differ; nothing changes."""
    require_same_names(own, told, "tensor")
    for name, tensor in own.items():
        other = told[name]
        if type(other) is not type(tensor) and not (isinstance(other, torch.Tensor) and isinstance(tensor, torch.Tensor)):
            raise ValueError(f"{name} is a {type(tensor).__name__} here, and a {type(other).__name__} there")
        if tensor.dtype != other.dtype or tuple(tensor.shape) != tuple(other.shape):
            raise ValueError(f"{name} is {layout_of(tensor)} here, and {layout_of(other)} there")
    for name, tensor in own.items():
        tensor[...] = told[name]
