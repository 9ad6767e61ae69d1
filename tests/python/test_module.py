"""What `SharedState.from_module` covers, and what it says when that was changed behind its back."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pccl import SharedState, UsageError  # noqa: E402  # after the skip

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIMIZERS: dict[str, Callable[[list[Any]], Any]] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "SGD momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "SGD momentum foreach": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adam": ADAM,
    "Adam amsgrad": lambda p: ADAM(p, amsgrad=True),
    "AdamW foreach": lambda p: ADAMW(p, foreach=True),
    "AdamW fused": lambda p: ADAMW(p, fused=True),
    "AdamW with a tensor as rate": lambda p: ADAMW(p, lr=torch.tensor(0.1)),
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adadelta": torch.optim.Adadelta,
    "ASGD foreach": lambda p: torch.optim.ASGD(p, foreach=True),
    "Rprop": torch.optim.Rprop,
}


def made(kind: str = "AdamW foreach") -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    return model, OPTIMIZERS[kind](list(model.parameters()))


def train(model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(4, 5)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    """As from a checkpoint: nothing shares memory with the original."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file)
    return read


def refused(state: SharedState) -> str:
    with pytest.raises(UsageError) as caught:
        state.hash()
    return caught.value.detail


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 1])
def test_training_replaces_nothing_and_sharing_changes_no_training(kind: str, before: int) -> None:
    ends = []
    for share in (False, True):
        model, optimizer = made(kind)
        train(model, optimizer, before)
        state = SharedState.from_module(model, optimizer) if share else None
        for _ in range(3):
            train(model, optimizer, 1)
            if state is not None:
                assert state.hash() != torch.nn.utils.parameters_to_vector(model.parameters())  # and it is not refused
        ends.append(torch.nn.utils.parameters_to_vector(model.parameters()))
    assert torch.equal(*ends)


@pytest.mark.parametrize("kind", ["SGD momentum", "Adam", "AdamW foreach"])
def test_a_loaded_optimizer_state_is_refused_and_a_new_shared_state_helps(kind: str) -> None:
    model, optimizer = made(kind)
    train(model, optimizer, 2)
    checkpoint = loaded(optimizer.state_dict())
    state = SharedState.from_module(model, optimizer)
    state.revision = 7
    before = state.hash()
    optimizer.load_state_dict(checkpoint)
    text = refused(state)
    assert "'optimizer/0/" in text
    assert "was replaced" in text
    assert "with the revision of this one" in text
    again = SharedState.from_module(model, optimizer)
    assert again.hash() == before


@pytest.mark.parametrize("kind", ["SGD momentum", "Adam"])
def test_the_state_of_an_untrained_optimizer_is_told_apart(kind: str) -> None:
    model, optimizer = made(kind)
    state = SharedState.from_module(model, optimizer)
    optimizer.load_state_dict(made(kind)[1].state_dict())
    assert "load_state_dict of another optimizer" in refused(state)


def test_numbers_are_those_of_the_optimizer_after_load_state_dict_too() -> None:
    model, optimizer = made("SGD")
    state = SharedState.from_module(model, optimizer)
    before = state.hash()
    optimizer.load_state_dict(optimizer.state_dict())  # makes new param groups
    assert state.hash() == before
    optimizer.param_groups[0]["lr"] = 0.5
    assert state.hash() != before


def number_received(optimizer: Any, state: SharedState, old: float, new: float) -> float:
    """The learning rate of `optimizer` when another peer's was `new`."""
    state.hash()  # copies what lies elsewhere into the tensors
    numbers = next(scalar.tensor for scalar in state._scalars if old in scalar.tensor.tolist())
    numbers[numbers.tolist().index(old)] = new
    state._restore()
    rate: float = optimizer.param_groups[0]["lr"]
    return rate


def test_a_rate_that_began_as_an_int_arrives_as_the_fraction_that_it_has_become() -> None:
    model = made()[0]
    optimizer = SGD(model.parameters(), lr=3)
    state = SharedState.from_module(model, optimizer)
    assert number_received(optimizer, state, 3.0, 0.5) == 0.5


def test_a_rate_in_a_tensor_is_shared() -> None:
    model, optimizer = made("AdamW with a tensor as rate")
    state = SharedState.from_module(model, optimizer)
    before = state.hash()
    optimizer.param_groups[0]["lr"].fill_(0.2)
    assert state.hash() != before
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
    assert "'optimizer/group 0/lr' was replaced" in refused(state)


def test_loading_a_module_is_fine_in_place_and_refused_otherwise() -> None:
    model, optimizer = made()
    state = SharedState.from_module(model, optimizer)
    model.load_state_dict(loaded(model.state_dict()))
    state.hash()
    model.load_state_dict(loaded(model.state_dict()), assign=True)
    assert "'parameter/0.weight' was replaced" in refused(state)


def add_layer(model: Any, optimizer: Any) -> None:
    model.append(torch.nn.Linear(3, 3))


def drop_weight(model: Any, optimizer: Any) -> None:
    del model[0].weight


def change_type(model: Any, optimizer: Any) -> None:
    model.half()


def replace_parameter(model: Any, optimizer: Any) -> None:
    model[2].bias = torch.nn.Parameter(model[2].bias.clone())


def add_group(model: Any, optimizer: Any) -> None:
    optimizer.add_param_group({"params": torch.nn.Linear(2, 2).parameters()})


def unfreeze(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (add_layer, "also has 'parameter/3.bias'"),
        (drop_weight, "no longer has 'parameter/0.weight'"),
        (change_type, "'parameter/0.weight' was replaced"),
        (replace_parameter, "'parameter/2.bias' was replaced"),
        (add_group, "other parameters, groups or state"),
        (unfreeze, "other parameters, groups or state"),
    ],
)
def test_what_has_changed_is_named(change: Callable[[Any, Any], None], text: str) -> None:
    model, optimizer = made()
    if change is unfreeze:
        model[0].weight.requires_grad_(False)
        optimizer = ADAMW(list(model.parameters()))
    state = SharedState.from_module(model, optimizer)
    state.hash()
    change(model, optimizer)
    refusal = refused(state)
    assert text in refusal
    assert "make a new SharedState with the revision of this one" in refusal


def test_buffers_of_any_type_are_shared() -> None:
    module = torch.nn.Module()
    module.register_buffer("mask", torch.tensor([True, False]))
    module.register_buffer("flag", torch.tensor(True))
    module.register_buffer("phase", torch.tensor([1 + 2j, 3 + 4j]))
    state = SharedState.from_module(module, rng_state=False)
    seen = {state.hash()}
    for name in ("mask", "flag", "phase"):
        getattr(module, name).zero_()
        seen.add(state.hash())
    assert len(seen) == 4
    module.mask = torch.tensor([True, False])
    assert "'buffer/mask' was replaced" in refused(state)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1],), TypeError, "module must be a torch.nn.Module, not list"),
        ((torch.nn.ReLU(), torch.nn.ReLU()), TypeError, "optimizer must be a torch.optim.Optimizer, not ReLU"),
        ((torch.nn.ReLU(), None, ["step"]), TypeError, "extra must be a dict of values by name, not list"),
        ((torch.nn.ReLU(), None, {"name": "x"}), TypeError, "extra 'name' must be a tensor, an array or a number, not str"),
        (
            (torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),),
            AssertionError,
            r"'parameter/weight' must be contiguous; .*; a parameter: parameter.data = parameter.data.contiguous\(\)",
        ),
    ],
)
def test_what_cannot_be_shared_is_named(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        SharedState.from_module(*arguments)


def test_an_optimizer_of_which_nothing_is_known_has_to_make_a_step_first() -> None:
    model = made()[0]
    with pytest.raises(ValueError, match="make a step with it before from_module"):
        SharedState.from_module(model, torch.optim.LBFGS(model.parameters()))


def test_extra_values_are_read_written_and_guarded() -> None:
    array = np.zeros(3)
    state = SharedState.from_module(torch.nn.Linear(1, 1), extra={"step": 0, "best": 1.5, "done": False, "array": array})
    before = state.hash()
    state.extra["step"] += 1
    state.extra["best"] = 2
    state.extra["done"] = True
    state.extra["array"] = 4.0
    assert (state.extra["step"], state.extra["best"], state.extra["done"], array[0]) == (1, 2.0, True, 4.0)
    assert state.hash() != before
    with pytest.raises(ValueError, match=r"'step' is of type int and cannot hold 0\.5; pass it to from_module as a float"):
        state.extra["step"] = 0.5
    for use in (lambda: state.extra["other"], lambda: state.extra.__setitem__("other", 1)):
        with pytest.raises(KeyError, match="pass it to from_module in extra"):
            use()
    assert "other" not in state.extra
