"""What the methods of `pccl.diloco` compute, in one process without any communication: a simulation, worker by worker.

The training is a toy whose every step is a function of the worker, the outer step and the inner step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)  # the bits of a matrix product may depend on it


def make_model(width: int = 8, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, worker: int, outer: int, step: int) -> float:
    random = torch.Generator().manual_seed(1000003 * worker + 1009 * outer + step)
    x = torch.randn(16 if next(model.parameters()).shape[0] < 1000 else 2, 4, generator=random).to(
        next(model.parameters()).device
    )
    y = x.sum(1, keepdim=True).sin()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().numpy().copy()


def write(model: nn.Module, values: np.ndarray) -> None:
    begin = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(values[begin : begin + p.numel()]).view(p.shape))
            begin += p.numel()


@dataclasses.dataclass
class Nesterov:
    """torch.optim.SGD(nesterov=True) by its formula, each operation in fp32."""

    lr: float
    momentum: float
    buffer: np.ndarray | None = None

    def step(self, outer: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        if self.buffer is None:
            self.buffer = np.zeros_like(outer)
        momentum, lr = np.float32(self.momentum), np.float32(self.lr)
        self.buffer = self.buffer * momentum + gradient
        return outer - (gradient + self.buffer * momentum) * lr


def average(gradients: Sequence[np.ndarray], weights: Sequence[float] | None = None) -> np.ndarray:
    """In the order of the workers, each partial sum rounded to fp32."""
    if weights is None:
        weights, total = [1.0] * len(gradients), float(len(gradients))
    else:
        total = sum(np.float64(np.float32(weight)) for weight in weights)
    done: np.ndarray = gradients[0] * np.float32(weights[0])
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        done = done + gradient * np.float32(weight)
    return done / np.float32(total)


class Worker:
    """A worker of the simulation; it is told what its inner steps begin with."""

    def __init__(self, number: int, width: int = 8) -> None:
        self.number = number
        self.model = make_model(width)
        self.optimizer = make_optimizer(self.model)

    def train(self, start: np.ndarray, outer: int, steps: int) -> np.ndarray:
        """The pseudo-gradient."""
        write(self.model, start)
        for step in range(steps):
            inner_step(self.model, self.optimizer, self.number, outer, step)
        return start - flat(self.model)


def simulate_async(
    rounds: Sequence[Sequence[int]],
    *,
    every: int,
    lr: float = 0.7,
    momentum: float = 0.9,
    eager: float = 1.0,
    width: int = 8,
    finishes: bool = False,
) -> Iterator[np.ndarray]:
    """AsyncDiLoCo: the outer parameters after each outer step.

    `rounds` has, for each of them, the workers that make the inner steps before it and whose pseudo-gradients are launched at it.
    """
    outer = flat(make_model(width))
    nesterov = Nesterov(lr, momentum)
    workers: dict[int, Worker] = {}
    starts: dict[int, np.ndarray] = {}
    under_way: np.ndarray | None = None
    for number, present in enumerate(rounds):
        gradients = []
        for one in present:
            workers.setdefault(one, Worker(one, width))
            gradients.append(workers[one].train(starts.get(one, outer), number, every))
        if under_way is not None:
            outer = nesterov.step(outer, under_way)
        starts = {one: outer - gradient * np.float32(eager) for one, gradient in zip(present, gradients, strict=True)}
        under_way = average(gradients)
        yield outer
    if finishes:
        assert under_way is not None
        yield nesterov.step(outer, under_way)


def simulate_streaming(
    rounds: Sequence[Sequence[Sequence[int]]],
    *,
    every: int,
    fragments: Sequence[slice],
    launches: Sequence[int],
    overlap: int,
    mixing: float,
    lr: float = 0.7,
    momentum: float = 0.9,
    width: int = 8,
    weight: Callable[[int], float] | None = None,
) -> Iterator[tuple[np.ndarray, dict[int, np.ndarray]]]:
    """StreamingDiLoCo: after each round the outer parameters, and the inner ones of each worker.

    `rounds` has, for each round and each fragment, the workers whose pseudo-gradients are in its average. A fragment, a range of
    the flat parameters, is launched after so many inner steps of a round (`launches`).
    """
    outer = flat(make_model(width))
    nesterovs = [Nesterov(lr, momentum) for _ in fragments]
    workers: dict[int, Worker] = {}
    under_way: dict[int, np.ndarray] = {}
    for number, present in enumerate(rounds):
        training = {one for workers_of_one in present for one in workers_of_one}
        for one in training - workers.keys():
            workers[one] = Worker(one, width)
            write(workers[one].model, outer)
        for step in range(every):
            for one in training:
                inner_step(workers[one].model, workers[one].optimizer, one, number, step)
            for at, place in enumerate(fragments):
                if step + 1 == launches[at]:
                    gradients = [outer[place] - flat(workers[one].model)[place] for one in present[at]]
                    under_way[at] = average(gradients, weight and [weight(one) for one in present[at]])
                if step + 1 == launches[at] + overlap:
                    outer = outer.copy()
                    outer[place] = nesterovs[at].step(outer[place], under_way.pop(at))
                    for one in training:
                        inner = flat(workers[one].model)
                        inner[place] = inner[place] * np.float32(mixing) + outer[place] * np.float32(1 - mixing)
                        write(workers[one].model, inner)
        yield outer, {one: flat(workers[one].model) for one in training}


def simulate(
    rounds: Sequence[Sequence[int]],
    *,
    every: int,
    lr: float = 0.7,
    momentum: float = 0.9,
    width: int = 8,
    weight: Callable[[int], float] | None = None,
) -> Iterator[np.ndarray]:
    """DiLoCo: the outer parameters after each outer step, of which `rounds` has the workers in the order of the sum."""
    outer = flat(make_model(width))
    nesterov = Nesterov(lr, momentum)
    workers: dict[int, Worker] = {}
    for number, present in enumerate(rounds):
        for one in present:
            workers.setdefault(one, Worker(one, width))
        gradients = [workers[one].train(outer, number, every) for one in present]
        outer = nesterov.step(outer, average(gradients, weight and [weight(one) for one in present]))
        yield outer
