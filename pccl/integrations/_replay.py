"""Lets a restarted process join a run whose script calls nothing of pccl, with fixed membership.

Only the script knows where its loops are. So the restarted process runs it from the beginning without the work: loaders hand out
one batch again and again, wrapped models return the same result, and backward passes, optimizers, collectives and checkpoints do
nothing. When it has made as many steps as the members, it is at their place of the script. The invariants:

- All ranks count the same calls: each outermost `step` of an optimizer, a scaler or an engine that trains a wrapped module. After
  the call with a given number all ranks are at one place of the script. There, and nowhere else, members let newcomers in.
- The members begin to let newcomers in after some steps. So a newcomer, which joins after its first step, has fetched no batch
  yet that it will train on.
- From when it has joined until it has caught up, no call of the newcomer reaches another member. They wait for it in their next
  collective. If it dies, they go on without it.
- Whatever the script changes in this time is set again at its end: buffers, parameter groups, schedules, scalers. So are random
  generators that all ranks have alike. Others, which the script has seeded by rank, stay as the newcomer has used them.

The newcomer prints and logs once more what it has passed. Metrics and callbacks of a Trainer are handed over, other values of the
script are its own.
"""

from __future__ import annotations

import atexit
import copy
import functools
import hashlib
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedules
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

import pccl.distributed
from pccl.data import ElasticSampler
from pccl.distributed._group import FIXED
from pccl.distributed._this_run import is_joining, this_run
from pccl.integrations._loaders import Batches, random_states, set_random_states, undisturbed
from pccl.state import encode
from pccl.state._local.objects import groups_of, load_groups

FIRST = 8
"""The step after which the members let newcomers in for the first time."""

_log = logging.getLogger("pccl.integrations")


class Stateful(Protocol):
    """What a framework keeps beside models, optimizers, schedules and scalers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, told: dict[str, Any]) -> None: ...


class _Hidden(threading.local):
    """Calls under way in this thread that a process that catches up leaves out. Loaders in such a call have no number.

    A thread that writes a checkpoint hides no loader of the main thread.
    """

    depth = 0


class Replay:
    """The steps of this process, and the objects of its script that a newcomer brings to the state of the members."""

    def __init__(self) -> None:
        self.steps = 0
        self.needs_fixed = True
        """Whether it is in vain without fixed membership, which a warning says then."""
        self.hidden = _Hidden()
        self._target: int | None = None
        self._inside = False
        self._elastic: pccl.distributed.Elastic | None = None
        self._models: list[weakref.ref[nn.Module]] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._schedules: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self._others: list[Stateful] = []
        self._trained: frozenset[int] = frozenset()
        self._loaders: weakref.WeakKeyDictionary[DataLoader[Any], list[int]] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()  # a loader that is gone gives its number to no other one
        self._begun: weakref.WeakValueDictionary[tuple[int, int], Batches] = weakref.WeakValueDictionary()
        self._results: dict[Any, Any] = {}
        self._alike: list[str] = []
        self._began = 0.0
        self._told: dict[str, Any] = {}
        self._before: tuple[list[torch.Tensor], list[Any], list[Any]] = ([], [], [])
        self._stepped: weakref.ref[Optimizer] | None = None

    # ---- whether it replays ----

    def replays(self) -> bool:
        """True in a process that is to join, and in a newcomer until it has caught up."""
        return self._target is not None or (is_joining() and self.is_fixed())

    def is_fixed(self) -> bool:
        """Whether the process group is one of pccl with fixed membership."""
        group = dist.GroupMember.WORLD
        return isinstance(group, pccl.distributed.ProcessGroup) and group.membership == FIXED

    # ---- what the script makes ----

    def add_model(self, model: nn.Module) -> None:
        """Notes a model whose gradients are averaged over the ranks."""
        if self.needs_fixed and isinstance(dist.GroupMember.WORLD, pccl.distributed.ProcessGroup) and not self.is_fixed():
            self.needs_fixed = False
            _log.warning("--adapt does nothing without fixed membership; set PCCL_MEMBERSHIP=fixed for all ranks")
        self._models.append(weakref.ref(model))
        self._trained = self._trained.union(map(id, model.parameters()))

    def add_other(self, other: Stateful) -> None:
        """Notes an object whose state a newcomer takes over."""
        self._others.append(other)

    def trains(self, optimizer: Any) -> bool:
        """Whether an optimizer has a parameter of a model that `add_model` was given."""
        groups = getattr(optimizer, "param_groups", ())
        return any(id(parameter) in self._trained for group in groups for parameter in group["params"])

    def _training_optimizers(self) -> list[Optimizer]:
        return [one for one in _living(self._optimizers) if self.trains(one)]

    # ---- loaders ----

    def batches(self, loader: DataLoader[Any], make: Callable[[Any], Any]) -> Any:
        """Returns an iterator in the place of torch's. ValueError: the loader has an ElasticSampler."""
        if self.hidden.depth or not self.is_fixed():
            return make(loader)
        if any(isinstance(getattr(at, "sampler", None), ElasticSampler) for at in (loader, loader.batch_sampler)):
            raise ValueError("--adapt cannot replay an ElasticSampler; call pccl.distributed.Elastic instead of --adapt")
        if loader not in self._loaders:
            self._loaders[loader] = [next(self._numbers), -1]
        counts = self._loaders[loader]
        counts[1] += 1
        key = counts[0], counts[1]
        begun = Batches(loader, make, self._record(key), self._told.get("alike", ()), replays=self.replays)
        self._begun[key] = begun
        return begun

    def _record(self, key: tuple[int, int]) -> dict[str, Any] | None:
        """What the members told of the iterator with this number of the loader with this number, if they still have it."""
        if self._target is None:
            return None
        found: dict[str, Any] | None = next((one for *other, one in self._told["loaders"] if tuple(other) == key), None)
        return found

    # ---- models ----

    def result(self, wrapper: nn.Module, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Returns what the model has returned for arguments of these shapes before, without a graph."""
        shapes = [(one.shape, one.dtype) if isinstance(one, torch.Tensor) else type(one) for one in tree_leaves((args, kwargs))]
        key = id(wrapper), model.training, str(shapes)
        if key not in self._results:
            with torch.no_grad(), undisturbed():
                self._results[key] = model(*args, **kwargs)
        # its containers and tensors are the script's to change
        return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, self._results[key])

    # ---- steps ----

    def step(self, make: Callable[[], Any], instead: Callable[[], Any], optimizer: Optimizer | None = None) -> Any:
        """Makes a step that counts, or in a process that catches up does something instead of it. Returns its result.

        `optimizer`: the one that steps; the others may be about to step with gradients of the same backward pass.
        """
        if self._inside or not self.is_fixed():
            return make()
        self._inside = True
        try:
            result = instead() if self.replays() else make()
        finally:
            self._inside = False
        self.steps += 1
        self._stepped = None if optimizer is None else weakref.ref(optimizer)
        if is_joining():
            self._join()
        elif self._target is None:
            elastic = self._made_elastic()  # in the first step, so that an optimizer that it refuses is an error then
            if self.steps == FIRST:
                self._alike = self._compared()
            dense = (one is None or one.layout == torch.strided for _, own in self._pending() for one in own)
            if self.steps >= FIRST and all(dense):  # the same on all ranks; gradients of sparse layout cannot travel
                elastic.sync()
        if self._target == self.steps:
            self._catch_up()
        return result

    def _compared(self) -> list[str]:
        """Returns the names of the random generators that all ranks have alike; "loaders" are those of the loaders."""
        states: dict[str, Any] = dict.fromkeys(("torch", "python", "numpy", "cuda")) | random_states()
        states["loaders"] = [one.described()["generators"] for _, one in sorted(self._begun.items())]
        digests = [int.from_bytes(hashlib.sha256(bytes(encode(one))).digest()[:7], "little") for one in states.values()]
        limits = torch.tensor([digests, [-one for one in digests]], device="cpu")
        dist.all_reduce(limits, dist.ReduceOp.MAX)
        return [name for name, same in zip(states, (limits.sum(0) == 0).tolist(), strict=True) if same]

    def _made_elastic(self) -> pccl.distributed.Elastic:
        if self._elastic is None:
            models = nn.ModuleList(_living(self._models))
            self._elastic = pccl.distributed.Elastic(models, self._training_optimizers(), replay=_Position(self))
        return self._elastic

    def _join(self) -> None:
        elastic = self._made_elastic()
        elastic.sync()
        self._target, self._began = self._told["steps"], time.monotonic()
        tensors = [one.detach().clone() for one in self._tensors()]  # there are no gradients and activations meanwhile
        groups = [copy.deepcopy(groups_of(one)) for one in self._training_optimizers()]
        states = [{key: copy.deepcopy(one.state[key]) for key in one.state} for one in self._training_optimizers()]
        self._before = tensors, groups, states
        _world().stand_apart()
        for key, begun in list(self._begun.items()):
            if begun.is_open:
                begun.repeat(self._record(key), self._told["alike"])
        _log.warning("joined at step %d; the other ranks wait until this one has caught up", self._target)

    def _tensors(self) -> list[torch.Tensor]:
        return [one for model in _living(self._models) for one in (*model.parameters(), *model.buffers())]

    def _pending(self) -> list[Any]:
        """Gradients with which optimizers may still step that have not stepped last: one backward pass may serve several."""
        stepped = None if self._stepped is None else self._stepped()
        optimizers = self._training_optimizers() if stepped is not None else []
        gradients = [[one.grad for group in other.param_groups for one in group["params"]] for other in optimizers]
        return [[n, own] for n, (other, own) in enumerate(zip(optimizers, gradients, strict=True)) if other is not stepped]

    def _catch_up(self) -> None:
        tensors, groups, states = self._before
        with torch.no_grad():
            for one, before in zip(self._tensors(), tensors, strict=True):
                one.copy_(before)
        optimizers = self._training_optimizers()
        for optimizer, group, state in zip(optimizers, groups, states, strict=True):
            load_groups(optimizer, group, "the optimizer")
            optimizer.state.clear()
            optimizer.state.update(state)
        for number, gradients in self._told["gradients"]:
            own_parameters = [one for group in optimizers[number].param_groups for one in group["params"]]
            for parameter, gradient in zip(own_parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for name, own_objects in (("schedules", _living(self._schedules)), ("others", self._others)):
            for one, state in zip(own_objects, self._told[name], strict=True):
                one.load_state_dict(state)
        for scaler, state in zip(_living(self._scalers), self._told["scalers"], strict=True):
            self._load_scaler(scaler, state)
        set_random_states(self._told["random"], self._told["alike"])
        opened = {key for key, begun in self._begun.items() if begun.is_open}
        if opened != {tuple(key) for *key, one in self._told["loaders"] if one["is_open"]}:
            _log.warning("other loaders are open here than at the others: the order of samples may be another one")
        self._target = None
        self._told, self._before = {}, ([], [], [])
        self._results.clear()
        _world().come_back()
        _log.warning("caught up at step %d after %.1f s", self.steps, time.monotonic() - self._began)

    # ---- what members tell ----

    def described(self) -> dict[str, Any]:
        """Returns what a newcomer needs beside models and optimizers."""
        return {
            "steps": self.steps,
            "alike": self._alike,
            "random": random_states(),
            # ended ones, too: a wrapper that fetches in advance hands out their last batch after their end
            "loaders": [[*key, one.described()] for key, one in sorted(self._begun.items())],
            "schedules": [one.state_dict() for one in _living(self._schedules)],
            "gradients": self._pending(),
            "scalers": [self._scaler_state(one) for one in _living(self._scalers)],
            "others": [one.state_dict() for one in self._others],
        }

    def take(self, told: dict[str, Any]) -> None:
        """At a newcomer: keeps what a member told, until it has caught up. Its script may make further objects until then."""
        self._told, self._alike = told, told["alike"]

    def _scaler_state(self, scaler: Any) -> dict[str, Any]:
        """The state between `step` and `update`: `update` reads which optimizers have met infinite gradients."""
        found = []
        for number, optimizer in enumerate(self._training_optimizers()):
            state = scaler._per_optimizer_states[id(optimizer)]
            if state["found_inf_per_device"]:
                found.append([number, max(float(one) for one in state["found_inf_per_device"].values()), state["stage"].value])
        return {"scale": scaler.state_dict(), "found": found}

    def _load_scaler(self, scaler: Any, told: dict[str, Any]) -> None:
        if not told["scale"]:
            return  # it is not enabled
        scaler.load_state_dict(told["scale"])
        optimizers = self._training_optimizers()
        for number, value, stage in told["found"]:
            device = optimizers[number].param_groups[0]["params"][0].device
            if scaler._scale is None:
                scaler._lazy_init_scale_growth_tracker(device)
            state = scaler._per_optimizer_states[id(optimizers[number])]
            state["stage"] = torch.amp.grad_scaler.OptState(stage)
            state["found_inf_per_device"] = {device: torch.full((), value, dtype=torch.float32, device=device)}

    def end(self) -> None:
        if self._target is not None:
            text = "its control flow depends on more than the number of steps"
            _log.error("the script ended at step %d of %d while it caught up: %s", self.steps, self._target, text)


class _Position:
    """The value of Elastic that stands for a Replay, of which it takes no other state."""

    __slots__ = ("_replay",)

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def state_dict(self) -> dict[str, Any]:
        return self._replay.described()

    def load_state_dict(self, told: dict[str, Any]) -> None:
        self._replay.take(told)


def _living(references: list[Any]) -> list[Any]:
    return [one for one in (reference() for reference in references) if one is not None]


def _world() -> pccl.distributed.ProcessGroup:
    group: Any = dist.GroupMember.WORLD
    assert isinstance(group, pccl.distributed.ProcessGroup)
    return group


# ---- what it changes in torch ----


def replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replaces a method or function by what `make` returns for it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def after(owner: Any, name: str, do: Callable[[Any], object]) -> None:
    """Lets `do` follow each call of a method. It gets the object."""

    def make(original: Any) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            do(self)
            return result

        return call

    replace(owner, name, make)


def instead(run: Replay, owner: Any, name: str, do: Callable[..., Any]) -> None:
    """Lets `do` take the place of a method in a process that catches up."""
    replace(owner, name, lambda original: lambda *args, **kwargs: (do if run.replays() else original)(*args, **kwargs))


def replay_forward(run: Replay, owner: Any) -> None:
    """Lets a wrapper of a model return what the model has returned before, in a process that catches up."""
    instead(run, owner, "forward", lambda self, *args, **kwargs: run.result(self, self.module, args, kwargs))


def silence(run: Replay, owner: Any, *names: str) -> None:
    """Lets functions do nothing in a process that catches up."""

    def make(original: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if run.replays():
                return None
            run.hidden.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                run.hidden.depth -= 1

        return call

    for name in names:
        replace(owner, name, make)


@functools.cache
def installed() -> Replay:
    """The Replay of this process, to which torch's classes report from the first call on."""
    run = Replay()
    atexit.register(run.end)
    this_run.acts_alone = True

    def noting(into: list[Any]) -> Callable[[Any], None]:
        def note(made: Any) -> None:
            if all(one() is not made for one in into):
                into.append(weakref.ref(made))

        return note

    def hook_step(original: Any) -> Callable[..., Any]:
        def wrapped(step: Any) -> Any:
            @functools.wraps(step)
            def counted(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
                given = args if closure is None else (closure, *args)
                if not run.trains(self):
                    return step(self, *given, **kwargs)
                return run.step(lambda: step(self, *given, **kwargs), lambda: None if closure is None else closure(), self)

            return original(counted)

        return wrapped

    def step_scaler(original: Any) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not run.trains(optimizer):
                return original(self, optimizer, *args, **kwargs)
            return run.step(lambda: original(self, optimizer, *args, **kwargs), lambda: None, optimizer)

        return step

    disable: Any = torch.compiler.disable
    after(DistributedDataParallel, "__init__", run.add_model)
    replay_forward(run, DistributedDataParallel)
    replace(DistributedDataParallel, "forward", lambda forward: disable(forward, recursive=False))  # the compiler begins inside
    after(Optimizer, "__init__", noting(run._optimizers))
    Optimizer.profile_hook_step = staticmethod(hook_step(Optimizer.profile_hook_step))  # type: ignore[method-assign]
    for kind in (schedules.LRScheduler, schedules.ReduceLROnPlateau, schedules.SequentialLR, schedules.ChainedScheduler):
        after(kind, "__init__", noting(run._schedules))
    after(torch.amp.GradScaler, "__init__", noting(run._scalers))
    replace(torch.amp.GradScaler, "step", step_scaler)
    replace(DataLoader, "__iter__", lambda make: lambda self: run.batches(self, make))
    silence(run, torch.amp.GradScaler, "unscale_", "update")
    silence(run, torch.Tensor, "backward")
    silence(run, torch, "save")
    return run
