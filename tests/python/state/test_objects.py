"""What an object has after it has loaded the state of another one through bytes: schedules above all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel

from pccl.state import decode, encode, load_object_state, object_state

Optimizer = torch.optim.Optimizer


class Power:
    def __call__(self, step: int) -> float:
        return float(0.9**step)


class Wrapper:
    """Holds a schedule, and no optimizer of its own."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.inside = {"schedule": [schedules.ExponentialLR(optimizer, 0.9)]}

    def step(self) -> None:
        self.inside["schedule"][0].step()

    def state_dict(self) -> dict[str, Any]:
        return self.inside["schedule"][0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inside["schedule"][0].load_state_dict(state)


def two(optimizer: Optimizer) -> list[Any]:
    return [schedules.LinearLR(optimizer), schedules.CosineAnnealingWarmRestarts(optimizer, 4)]


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "lambda object": lambda o: schedules.LambdaLR(o, Power()),
    "multiplicative": lambda o: schedules.MultiplicativeLR(o, lambda _: 0.9),
    "step": lambda o: schedules.StepLR(o, 3),
    "steps": lambda o: schedules.MultiStepLR(o, [3, 6, 9]),
    "constant": schedules.ConstantLR,
    "linear": schedules.LinearLR,
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "polynomial": lambda o: schedules.PolynomialLR(o, 20),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 20),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 5),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "cyclic": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "cyclic scaled": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 3, scale_fn=lambda x: 1 / (1 + x), scale_mode="iterations"),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=50),
    "average": lambda o: SWALR(o, 0.01),
    "average linear": lambda o: SWALR(o, 0.01, anneal_strategy="linear"),
    "sequence": lambda o: schedules.SequentialLR(o, two(o), milestones=[3]),
    "chain": lambda o: schedules.ChainedScheduler([schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)]),
    "chain of two": lambda o: schedules.ChainedScheduler(two(o), optimizer=o),
    "wrapper": Wrapper,
}


def made(name: str) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    return optimizer, SCHEDULES[name](optimizer)


def run(optimizer: Any, schedule: Any, steps: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(steps):
        optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
        optimizer.step()
        schedule.step(*((1.0,) if isinstance(schedule, schedules.ReduceLROnPlateau) else ()))
        found.append({key: value for key, value in optimizer.param_groups[0].items() if key != "params"})
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_alone_brings_the_numbers_of_its_optimizer(name: str) -> None:
    optimizer, schedule = made(name)
    now = run(optimizer, schedule, 7)[-1]
    other_optimizer, other = made(name)
    load_object_state(other, decode(encode(object_state(schedule))), name)
    assert {key: value for key, value in other_optimizer.param_groups[0].items() if key != "params"} == now
    assert run(other_optimizer, other, 8) == run(optimizer, schedule, 8)


def test_objects_of_torch() -> None:
    model = AveragedModel(nn.Linear(2, 2))
    model.update_parameters(nn.Linear(2, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for value, other in ((model, AveragedModel(nn.Linear(2, 2))), (scaler, torch.amp.GradScaler("cpu"))):
        load_object_state(other, decode(encode(object_state(value))), "value")
        assert str(other.state_dict()) == str(value.state_dict())


def test_generators() -> None:
    makers: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (lambda: torch.Generator().manual_seed(random.getrandbits(30)), lambda one: torch.rand(3, generator=one).tolist()),
        (random.Random, lambda one: one.random()),
        (np.random.default_rng, lambda one: one.random()),
    ]
    for make, draw in makers:
        value, other = make(), make()
        draw(value)
        load_object_state(other, decode(encode(object_state(value))), "generator")
        assert draw(other) == draw(value)


def test_another_number_of_optimizers_is_refused() -> None:
    _, schedule = made("cosine")
    with pytest.raises(ValueError, match="the schedule changes 0 optimizers here, and 1"):
        load_object_state(nn.Linear(1, 1), object_state(schedule), "the schedule")
