"""Outer parameters and their momentum: flat, in fp32, beside the model that the inner optimizer trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pccl.state._entries import COMPILED
from pccl.state._local.module import Collector, make_state

OuterOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""A class of `torch.optim`, or a function that makes an optimizer for the outer parameters it is given."""

CHUNK = 1 << 18
"""Elements that an outer step works on at a time, so that they stay in the cache."""


class Part(NamedTuple):
    """A parameter and its place in the flat tensors."""

    name: str
    parameter: Tensor
    begin: int
    end: int


def named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters, by the names that they have before the model is compiled."""
    for name, parameter in model.named_parameters():
        yield name.replace(COMPILED, ""), parameter


def trained_parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters that take part in outer steps: those that require a gradient, each once where modules share it.

    TypeError for parameters that are not of a floating-point type, ValueError when there is none or one has no memory.
    """
    found: list[tuple[str, Tensor]] = []
    for name, parameter in named_parameters(model):
        if not parameter.requires_grad:
            continue
        if not parameter.is_floating_point():
            raise TypeError(f"parameter {name} is {parameter.dtype}: convert it, or freeze it with requires_grad_(False)")
        if parameter.dtype is torch.float64:
            raise TypeError(f"parameter {name} is torch.float64, and outer parameters are float32: convert the model to float32")
        if parameter.is_meta:
            raise ValueError(f"parameter {name} is on the meta device; allocate it first, with model.to_empty(device=...)")
        found.append((name, parameter))
    if not found:
        raise ValueError("the model has no parameter that requires a gradient: there is nothing to average")
    return found


class Outer:
    """Outer parameters and momentum for some parameters of a model: fp32 of shape (size,), on `device`.

    They begin as the parameters of the model, and zeros. `host_parameters` and `host_momentum` are what is shared with the
    other members: the same memory if `device` is the CPU, and copies otherwise (`to_host`, `from_host`).
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Tensor]],
        device: torch.device | str = "cpu",
        optimizer: OuterOptimizer | None = None,
    ) -> None:
        self.device = torch.empty(0, device=device).device  # with its index, as parameters have it
        self.parts: list[Part] = []
        self.size = 0
        for name, parameter in parameters:
            begin = self.size
            self.size += local_memory(parameter).numel()
            self.parts.append(Part(name, parameter, begin, self.size))
        self._pinned = self.device.type == "cuda" or any(part.parameter.is_cuda for part in self.parts)
        self.parameters = self._on_device()
        self.momentum = self._on_device()
        if optimizer is not None:
            self.momentum = self.momentum[:0].clone()
        self.host_parameters = self.parameters if self.device.type == "cpu" else self.buffer()
        self.host_momentum = self.momentum if self.device.type == "cpu" else self.buffer()[: self.momentum.numel()].clone()
        self.read_model()
        self.leaves: list[nn.Parameter] = []
        self.optimizer: torch.optim.Optimizer | None = None
        """The outer optimizer; None: Nesterov momentum."""
        if optimizer is not None:
            views = ((self.parameters[part.begin : part.end].view(inner.shape)) for part, inner in self._inner())
            self.leaves = [nn.Parameter(view) for view in views]
            self.optimizer = _made(optimizer, self.leaves)

    def buffer(self) -> Tensor:
        """Zeros of shape (size,) in fp32 on the CPU, pinned if the model or the outer parameters are on a GPU."""
        return torch.zeros(self.size, dtype=torch.float32, device="cpu", pin_memory=self._pinned)

    def entries(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """What all members hold alike, by name and shape: views of `host_parameters`, and `host_momentum`."""
        for part, inner in self._inner():
            yield f"{prefix}parameter/{part.name} {tuple(inner.shape)}", self.host_parameters[part.begin : part.end]
        if self.optimizer is None:
            yield f"{prefix}momentum", self.host_momentum

    def optimizer_entries(self, prefix: str = "") -> Collector:
        """The state and the numbers of the outer optimizer, which all members hold alike; no entries without one."""
        collector = Collector()
        if self.optimizer is not None:
            collector.add_optimizer(self.optimizer)
            for info in collector.infos:
                info.name = f"{prefix}outer {type(self.optimizer).__name__}/{info.name.removeprefix('optimizer/')}"
        return collector

    # ---- between the model and the flat tensors ----

    @torch.no_grad()
    def pseudo_gradient(self, out: Tensor, start: Tensor | None = None) -> None:
        """Writes what the inner steps have taken away from the parameters: `start` - inner, to `out`, a `buffer`.

        `start`, fp32 of shape (size,) on `device`, is what the inner steps began with: by default the outer parameters, as
        `write_model` has rounded them to the data type of each parameter.
        """
        for part, inner in self._inner():
            target = out[part.begin : part.end].view(inner.shape)
            if inner.device == self.device:
                began = self._start_of(part, inner, start)
                if inner.is_cpu:
                    torch.sub(began, inner, out=target)
                else:
                    target.copy_(torch.sub(began, inner), non_blocking=True)
            else:
                target.copy_(inner, non_blocking=True)
        self._wait_for_copies()
        for part, inner in self._inner():
            if inner.device != self.device:  # the model is on a GPU, the outer parameters are on the CPU
                target = out[part.begin : part.end].view(inner.shape)
                torch.sub(self._start_of(part, inner, start).to(target.device), target, out=target)

    @torch.no_grad()
    def read_model(self) -> None:
        """Sets the outer parameters to those of the model, but for those that the model has already, rounded to its data type."""
        for part, inner in self._inner():
            outer = self.parameters[part.begin : part.end].view(inner.shape)
            if not torch.equal(outer.to(inner.device, inner.dtype), inner):
                outer.copy_(inner)
        self.to_host()

    @torch.no_grad()
    def write_model(self, source: Tensor | None = None) -> None:
        """Sets the parameters of the model to `source`, fp32 of shape (size,): by default the outer parameters."""
        flat = self.parameters if source is None else source
        for part, inner in self._inner():
            inner.copy_(flat[part.begin : part.end].view(inner.shape), non_blocking=True)
        self._wait_for_copies()

    @torch.no_grad()
    def mix_into_model(self, mixing: float) -> None:
        """Sets the parameters of the model to mixing * their own + (1 - mixing) * the outer ones, computed in fp32.

        alpha * theta_m + (1 - alpha) * OuterOpt(...) of arXiv 2501.18512, algorithm 2. Each operation rounds by itself.
        """
        if mixing == 0:
            self.write_model()
            return
        for part, inner in self._inner():
            outer = self.parameters[part.begin : part.end].view(inner.shape).to(inner.device)
            inner.copy_(inner.float().mul(mixing).add_(outer * (1 - mixing)))

    @torch.no_grad()
    def rounded(self, flat: Tensor) -> Tensor:
        """Rounds `flat`, fp32 of shape (size,), in place to what the parameters of the model can hold."""
        for part, inner in self._inner():
            if inner.dtype is not torch.float32:
                view = flat[part.begin : part.end]
                view.copy_(view.to(inner.dtype))
        return flat

    def _start_of(self, part: Part, inner: Tensor, start: Tensor | None) -> Tensor:
        if start is not None:
            return start[part.begin : part.end].view(inner.shape)
        view = self.parameters[part.begin : part.end].view(inner.shape)
        return view if inner.dtype is torch.float32 else view.to(inner.dtype).float()

    # ---- outer steps ----

    @torch.no_grad()
    def step(self, gradient: Tensor, lr: float, momentum: float) -> None:
        """An outer step with the averaged pseudo-gradient, fp32 of shape (size,) on the CPU, which is used up.

        An outer optimizer has its own `lr` and `momentum`. Without one it is Nesterov momentum by the formula of
        torch.optim.SGD(nesterov=True): m = momentum * m + g, p = p - lr * (g + momentum * m).
        Each operation rounds by itself, so that all processors and GPUs end with the same bits.
        """
        gradient = gradient.to(self.device)
        if self.optimizer is not None:
            for part, leaf in zip(self.parts, self.leaves, strict=True):
                leaf.grad = gradient[part.begin : part.end].view(leaf.shape)
            self.optimizer.step()
            for leaf in self.leaves:
                leaf.grad = None
            return
        scratch = torch.empty(min(CHUNK, self.size), dtype=torch.float32, device=self.device)
        for begin in range(0, self.size, CHUNK):
            chunk = slice(begin, min(begin + CHUNK, self.size))
            g, m, p = gradient[chunk], self.momentum[chunk], self.parameters[chunk]
            m.mul_(momentum).add_(g)
            change = torch.mul(m, momentum, out=scratch[: g.numel()])
            p.sub_(change.add_(g).mul_(lr))

    def to_host(self) -> None:
        """Brings the outer parameters and the momentum to their copies on the CPU, if they have some."""
        if self.device.type != "cpu":
            self.host_parameters.copy_(self.parameters, non_blocking=True)
            self.host_momentum.copy_(self.momentum, non_blocking=True)
            self._wait_for_copies()

    def from_host(self) -> None:
        if self.device.type != "cpu":
            self.parameters.copy_(self.host_parameters)
            self.momentum.copy_(self.host_momentum)

    def _on_device(self) -> Tensor:
        if self.device.type == "cpu":
            return self.buffer()
        return torch.zeros(self.size, dtype=torch.float32, device=self.device)

    def _inner(self) -> Iterator[tuple[Part, Tensor]]:
        for part in self.parts:
            yield part, local_memory(part.parameter)

    def _wait_for_copies(self) -> None:
        """For those between GPUs and the CPU alone: what else a GPU has to do goes on. torch copies in the current stream."""
        copied = []
        for device in {self.device, *(part.parameter.device for part in self.parts)}:
            if device.type == "cuda":
                copied.append(torch.cuda.current_stream(device).record_event())
        for event in copied:
            event.synchronize()


def _made(optimizer: OuterOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An outer optimizer with its state. TypeError, ValueError: it is none, or not one for exactly these parameters."""
    made = optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"outer_optimizer must return a torch.optim.Optimizer, not {type(made).__name__}")
    held = [parameter for group in made.param_groups for parameter in group["params"]]
    if {id(one) for one in held} != {id(one) for one in parameters}:
        raise ValueError("outer_optimizer must make an optimizer for exactly the parameters that it is given")
    if hasattr(made, "_init_group"):
        make_state(made)
        return made
    # Other optimizers make their state in their first step: that of a gradient of 0, which is undone in the parameters.
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()  # weight decay adds nothing to the state then
            parameter.grad = torch.zeros_like(parameter)
        try:
            made.step()
        except TypeError as error:
            raise ValueError(f"outer_optimizer {type(made).__name__} cannot make a step without a closure: {error}") from None
        finally:
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
                parameter.grad = None
    return made


def local_memory(tensor: Tensor) -> Tensor:
    """The memory of a parameter or buffer: of one that is sharded (`fully_shard`), the shard of this process."""
    local = tensor.detach()
    shard: Tensor = local.to_local() if hasattr(local, "to_local") else local
    return shard
