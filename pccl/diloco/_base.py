"""What all methods have in common: when an outer step is due, the state of the run, and entering and leaving it."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import numbers
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypedDict
from uuid import UUID

import torch
from torch import Tensor, nn

from pccl._core.results import Contributors
from pccl._core.types import TensorInfo
from pccl._exports import publish
from pccl._peer.communicator import Communicator
from pccl._peer.shared_state import SharedState
from pccl.diloco import _checkpoint
from pccl.diloco._average import Averaged, Averager
from pccl.diloco._compression import Compression
from pccl.diloco._membership import Meeting, Membership
from pccl.diloco._outer import Outer, OuterOptimizer, local_memory, named_parameters, trained_parameters
from pccl.diloco._settings import ENTRY, NAMES, Setting, Settings, checked, require_whole
from pccl.diloco._state import State, Welcome
from pccl.diloco._terms import terms_of
from pccl.state import load, save
from pccl.state._local.agreement import Terms, joined, terms_of_values

_log = logging.getLogger("pccl.diloco")

Weight = float | Callable[[], float]

OUTER = (0.7, 0.9)
"""Learning rate and momentum of outer steps, unless they are given: those of arXiv 2311.08105."""

SPARSE_OUTER = (2.0, 0.0)
"""The same with sparse averages, whose error feedback takes the place of the momentum. Measured: docs/diloco-results.md."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """An outer step, and the inner steps before it. Times in seconds; bytes are those of this peer."""

    outer_step: int
    """Its number, from 1 on."""
    inner_steps: int
    """Steps of this peer's inner optimizer since the outer step before."""
    contributors: tuple[Contributors, ...]
    """Whose pseudo-gradients are in which elements of the average that was applied; empty if none was."""
    world_size: int
    """Members of the group after it."""
    admitted: bool
    """Whether newcomers were let in before or after it."""
    repaired_bytes: int
    """State of this peer that was not the same as that of most members, and was replaced. The outer state never has to be."""
    tx_bytes: int
    """Sent for the average."""
    rx_bytes: int
    """Received for the average."""
    reduce_seconds: float
    """Waiting for the average."""
    meet_seconds: float
    """For the check of parity, and for newcomers."""
    seconds: float
    """All of the outer step."""
    not_finite: frozenset[UUID] = frozenset()
    """Members whose pseudo-gradient was not finite, and counted with weight 0. Sparse averages tell of this peer alone."""

    def __str__(self) -> str:
        moved = f"{self.tx_bytes / 1e6:.2f} MB sent"
        wrong = f", {len(self.not_finite)} not finite" if self.not_finite else ""
        return f"outer step {self.outer_step}: {self.world_size} members, {moved}, {self.seconds:.2f} s{wrong}"


class Made(NamedTuple):
    """What a member has done of an outer step before the meeting that ends it."""

    averaged: Averaged
    began: float
    reduce_seconds: float
    early: Meeting | None = None
    """How members were let in before the average."""
    lost: bool = False
    """Whether the samples of a lost member are to be dealt out again."""


SYNC_EVERY = 100
"""Inner steps of a round, unless they are given."""


class Arguments(TypedDict, total=False):
    """The arguments of `Trainer` by name, for type checkers."""

    sync_every: int
    outer_lr: Setting | None
    outer_momentum: Setting | None
    outer_optimizer: OuterOptimizer | None
    compression: str | Compression | None
    weight: Weight | None
    sync_seconds: float | None
    state: Mapping[str, Any] | None
    device: torch.device | str
    peers: int
    shards: int
    begin: bool | None


class Trainer(ABC):
    """A part in a run in which members average their models by outer steps. The base of all methods."""

    _lag = 0
    """After how many outer steps all averages have what the inner steps before one of them have learned."""
    _one_of_both = True
    """Whether `sync_seconds` makes `sync_every` meaningless."""

    def __init_subclass__(cls) -> None:
        """Shows the arguments of this class, too, in the signature of a method's constructor."""
        base, own = inspect.signature(Trainer.__init__), inspect.signature(cls.__init__)
        if "arguments" in own.parameters:
            shown = dict(base.parameters) | {name: one for name, one in own.parameters.items() if name != "arguments"}
            cls.__init__.__signature__ = base.replace(parameters=list(shown.values()))  # type: ignore[attr-defined]

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int = SYNC_EVERY,
        outer_lr: Setting | None = None,
        outer_momentum: Setting | None = None,
        outer_optimizer: OuterOptimizer | None = None,
        compression: str | Compression | None = None,
        weight: Weight | None = None,
        sync_seconds: float | None = None,
        state: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
        peers: int = 1,
        shards: int = 1,
        begin: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if not isinstance(communicator, Communicator):
            raise TypeError(f"communicator must be a pccl.Communicator, not {type(communicator).__name__}")
        if not isinstance(inner_optimizer, torch.optim.Optimizer):
            raise TypeError(f"inner_optimizer must be a torch.optim.Optimizer, not {type(inner_optimizer).__name__}")
        held = {_storage(parameter) for group in inner_optimizer.param_groups for parameter in group["params"]}
        self._trained = dict(trained_parameters(model))
        if not any(_storage(parameter) in held for parameter in self._trained.values()):
            text = "inner_optimizer has no parameter of the model that requires a gradient"
            raise ValueError(f"{text}: make it from model.parameters(), after the model was sharded or moved")
        for name, whole in (("sync_every", sync_every), ("peers", peers), ("shards", shards)):
            require_whole(name, whole)
            if whole < 1:
                raise ValueError(f"{name} must be 1 or more, not {whole}")
        if sync_seconds is not None and not isinstance(sync_seconds, numbers.Real):
            raise TypeError(f"sync_seconds must be a number, not {sync_seconds!r}")
        if sync_seconds is not None and not 0 < sync_seconds < math.inf:
            raise ValueError(f"sync_seconds must be more than 0 seconds, not {sync_seconds}")
        if sync_seconds is not None and sync_every != SYNC_EVERY and self._one_of_both:
            raise ValueError(f"pass sync_every={sync_every} or sync_seconds={sync_seconds:g}, not both")
        if begin is not None and not isinstance(begin, bool):
            raise TypeError(f"begin must be True, False or None, not {begin!r}")
        self._begin = begin
        self.model = model
        self.communicator = communicator
        self.inner_optimizer = inner_optimizer
        self.compression = Compression.of(compression)
        if outer_optimizer is not None:
            if not callable(outer_optimizer):
                kind = type(outer_optimizer).__name__
                raise TypeError(f"outer_optimizer must be a class or function that makes an optimizer, not {kind}")
            if outer_lr is not None or outer_momentum is not None:
                raise ValueError(
                    "outer_lr and outer_momentum cannot be combined with outer_optimizer; set them in that optimizer"
                )
        self._outer_of = functools.partial(Outer, device=device, optimizer=outer_optimizer)
        usual = SPARSE_OUTER if self.compression.method == "sparse" else OUTER
        given: dict[str, Setting] = {
            "outer_lr": usual[0] if outer_lr is None else outer_lr,
            "outer_momentum": usual[1] if outer_momentum is None else outer_momentum,
            "sync_every": sync_every,
            "sync_seconds": sync_seconds or 0,
            "peers": peers,
        }
        self._settings = Settings(given, optimizer=outer_optimizer is not None)
        self.state = State(state)
        """What the user adds to the state of the run: see `state=` of the class."""
        self.last: Round | None = None
        """The last outer step of this peer."""
        self._outer_step = torch.zeros(1, dtype=torch.int64, device="cpu")
        if weight is not None and not callable(weight):
            checked("weight", weight)
        self._weight = weight
        self._shards = shards
        self._callbacks: list[Callable[[Round], object]] = []
        self._inside = self._closes = self._warned_of_batch_norm = False
        if self.state.data:
            inner_optimizer.register_step_post_hook(lambda *_: self.state.seal())
        self._loaded: int | None = None  # the outer step of a checkpoint
        self._begin_round()

    # ---- for the user ----

    def step(self) -> Round | None:
        """Counts a step of the inner optimizer, and makes an outer step when one is due. To be called after each of them.

        The outer step, if it was one; then the parameters of the model are others than before. Raises what `synchronize` does.
        """
        self._require_inside()
        self._inner_steps += 1
        if self._seconds is None:
            if self._inner_steps < self._every:
                return None
        elif time.monotonic() - self._began < self._seconds:
            return None
        return self.synchronize()

    def synchronize(self) -> Round:
        """Makes an outer step now. All members have to call it at the same outer step, as `step` does by itself.

        Waits for all members. Their deaths are no errors, and neither is the loss of the master while one comes back, or a
        standby takes over. ConnectionFailedError: this peer is no longer part of the run. UsageError: the members' models or
        settings differ. ValueError names a trained parameter of the model that has changed; nothing was averaged then.
        TooFewPeersError: the outer step is made, and in `min_members_timeout` too few members came; a repeated call waits on.
        After any other error, and after Ctrl-C, the outer state is unspecified: leave the `with` block, and join anew.
        """
        self._require_inside()
        self._require_same_model()
        if self._unmet is None:
            self._settings.follow(self.outer_step + 1)
        self.last = self._outer_step_made(self._average)
        self._begin_round()
        for callback in list(self._callbacks):
            callback(self.last)
        return self.last

    def start(self) -> Self:
        """Joins the run, as the beginning of the `with` block does: for programs that have no place for one. See `close`."""
        return self.__enter__()

    def close(self) -> None:
        """Leaves the run, as the end of the `with` block does. Does nothing if `start` was not called, or the run was left."""
        if self._inside:
            self.__exit__(None, None, None)

    # ---- checkpoints ----

    def state_dict(self, *, inner_optimizer: bool = True) -> dict[str, Any]:
        """What a peer needs to begin the run again after the loss of all: plain values, and copies of tensors on the CPU.

        The outer parameters, their momentum or the state of the outer optimizer, the number of outer steps, the settings, what
        compression has left out, frozen parameters and buffers of the model, the user's state, and the state of the inner
        optimizer unless `inner_optimizer` is False. It lacks inner steps since the last outer step, and averages under way:
        save after an outer step. No other peer takes part.
        """
        found: dict[str, Any] = _checkpoint.copied(self._described(inner_optimizer))
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned, before the `with` block, and sets the model to the outer parameters.

        When a run begins, the members go on from the state with the highest outer step, whoever has it and whoever connects
        first; a run under way goes on with its own. A peer whose loaded state gives way logs a warning. Give all peers
        `peers=n`, so that the run does not begin before all have come.

        The settings of the checkpoint replace those that this was made with, except `peers`. RuntimeError: inside of the `with`
        block. ValueError names what the checkpoint has of another kind, shape or data type: nothing was loaded then. An error of
        an object's own `load_state_dict` leaves this unspecified.
        """
        if self._inside or self._membership.joined:
            raise RuntimeError("this peer has joined the run; load a checkpoint before the with block")
        kind = type(self).__name__
        if state.get("kind") != kind:
            raise ValueError(f"this is a {kind}, and the state is of {state.get('kind')}")
        outer = _checkpoint.outer_tensors(self._outer_state, ENTRY)
        _checkpoint.require_same(outer, state["outer"], "outer state")
        _checkpoint.require_model(self.model, state["model"])
        _checkpoint.require_user_state(self.state, state["state"])
        if state["inner_optimizer"] is not None:
            self.inner_optimizer.load_state_dict(copy.deepcopy(state["inner_optimizer"]))
        _checkpoint.load_user_state(self.state, state["state"])
        _checkpoint.load_model_state(self.model, state["model"])
        for name, tensor in outer.items():
            tensor.copy_(state["outer"][name])
        self._outer_state._restore()
        self._shared.mark_restored()
        for name in NAMES:
            own, saved = self._settings[name], state["settings"][name]
            if name != "peers" and own != saved:
                _log.warning("%s is %g, as in the checkpoint, not %g", name, saved, own)
                self._settings[name] = saved
        _checkpoint.load_residuals(self._averagers, state["residuals"])
        for part in self._outers:
            part.from_host()
            part.write_model()
        self._loaded = self.outer_step
        self._begin_round()

    def save(self, path: str | os.PathLike[str], *, inner_optimizer: bool = True) -> None:
        """Writes `state_dict` to the folder `path`, in the format of `torch.distributed.checkpoint`: see `pccl.state.save`.

        Each peer that saves needs a folder of its own. After a crash the folder is the old one or the new one.
        `inner_optimizer`: whether the state of the inner optimizer is saved, too.
        """
        save(self._described(inner_optimizer), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads what `save` has written, as `load_state_dict` does.

        FileNotFoundError: there is no checkpoint. pccl.state.CheckpointError: it is damaged.
        """
        self.load_state_dict(load(path))

    def _described(self, inner_optimizer: bool) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "outer_step": self.outer_step,
            "settings": self._settings.as_dict(),
            "outer": _checkpoint.outer_tensors(self._outer_state, ENTRY),
            "residuals": _checkpoint.residuals(self._averagers),
            "model": _checkpoint.model_state(self.model),
            "state": _checkpoint.user_state(self.state),
            "inner_optimizer": self.inner_optimizer.state_dict() if inner_optimizer else None,
        }

    def on_round(self, callback: Callable[[Round], object]) -> Callable[[], None]:
        """Calls `callback` with the Round after each outer step of this peer. Returns a function that ends this.

        An exception of the callback leaves `step` or `synchronize`; the outer step was made by then.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def outer_step(self) -> int:
        """Outer steps that the run has made."""
        return int(self._outer_step)

    @property
    def inner_steps(self) -> int:
        """Steps of this peer's inner optimizer since the last outer step."""
        return self._inner_steps

    @property
    def parity(self) -> str:
        """The hash of the outer state: 32 hex digits, the same on all members after the same outer step."""
        return self._outer_state.hash()

    @property
    def outer_lr(self) -> float:
        """The learning rate of outer steps.

        To change it in a run, give a function of the number of the outer step as `outer_lr`: then a joiner has it, too. If it is
        set here, all members have to set it after the same outer step, and one that joins there makes its first step with the
        value before, which the check of parity repairs.
        """
        return self._settings["outer_lr"]

    @outer_lr.setter
    def outer_lr(self, value: float) -> None:
        self._settings.set("outer_lr", value)

    @property
    def outer_momentum(self) -> float:
        """The Nesterov momentum of outer steps; what is said of `outer_lr` holds for it."""
        return self._settings["outer_momentum"]

    @outer_momentum.setter
    def outer_momentum(self, value: float) -> None:
        self._settings.set("outer_momentum", value)

    @property
    def weight(self) -> Weight | None:
        """How much this peer counts in the next average, at least 0: a number, or what gives one. None: all count alike.

        RuntimeError: it was not given to the class, so that the members do not exchange weights.
        """
        return self._weight

    @weight.setter
    def weight(self, value: Weight) -> None:
        if self._weight is None:
            raise RuntimeError("the members exchange no weights; pass weight= when making all of them")
        if not callable(value):
            checked("weight", value)
        self._weight = value

    def __enter__(self) -> Self:
        if self._inside:
            raise RuntimeError(f"this {type(self).__name__} is already in use")
        self._require_same_model()
        before = self._settings.as_dict()
        if self._loaded is None and self.outer_step == 0:  # the model may have been loaded since this was made
            for outer in self._outers:
                outer.read_model()
        try:
            self._closes = self._membership.enter(self._settings.tensor[NAMES.index("peers")], self._begin)
            self._deal_data()  # as the members do after the meeting that has let this peer in
            self._tell_if_overridden()
            self._from_host()
            self._adopt()
        except BaseException:
            self.communicator.close()  # it may be a member already, for whom the others would wait
            raise
        for name, theirs in self._settings.changes(before):
            _log.warning("%s is %g, as in the run that this peer has joined, not %g", name, theirs, before[name])
        self._inside = True
        self._warn_of_batch_norm()
        self._begin_round()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        closes = True  # also where leaving fails: the others would wait for this peer
        try:
            if kind is None:
                self._leave()
                closes = self._closes
        finally:
            self._inside = False
            if closes:
                self.communicator.close()
            else:
                self._membership.leave()

    # ---- for the methods ----

    def _copies_beside(self) -> bool:
        """Whether a joiner copies the outer state while it waits: not where all of that changes right before it is let in."""
        return True

    @abstractmethod
    def _average(self) -> Made:
        """Makes an outer step, but for the meeting that ends it."""

    def _go_on(self, *, finishes: bool) -> None:
        """After the meeting: sets the model to what the next inner steps begin with."""
        self._write_model()

    def _adopt(self) -> None:
        """After the state of the run was received: begins to train from it."""
        self._write_model()

    def _leave(self) -> None:
        """Ends what is in flight, before this peer leaves. All members end with the outer parameters."""
        if self._inner_steps:
            text = "%d inner steps since the last outer step are dropped; call synchronize() on all members to average them"
            _log.warning(text, self._inner_steps)
        self._write_model()

    def _write_model(self) -> None:
        for outer in self._outers:
            outer.write_model()

    def _tell_if_overridden(self) -> None:
        """Where the state that was loaded from a checkpoint is not that of the run."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and (self._membership.joined or loaded != self.outer_step):
            text = "the state loaded from a checkpoint (outer step %d) is replaced by that of the run (outer step %d)"
            _log.warning(text, loaded, self.outer_step)
            _checkpoint.load_residuals(self._averagers, None)

    def _require_same_model(self) -> None:
        """ValueError: a parameter that is trained now was not when this was made, or the other way round, or was replaced."""
        now = {name: one for name, one in named_parameters(self.model) if one.requires_grad}
        changed = sorted(name for name in self._trained.keys() | now.keys() if self._trained.get(name) is not now.get(name))
        if not changed:
            return
        name = changed[0]
        what = "is no longer trained" if name not in now else "was replaced" if name in self._trained else "is trained now"
        others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        kind = type(self).__name__
        raise ValueError(
            f"parameter {name} {what}{others}, unknown to this {kind}; leave the run on all members, and make a new {kind}"
        )

    def _warn_of_batch_norm(self) -> None:
        """Tells once that running statistics are each peer's own."""
        kept = (name for name, module in self.model.named_modules() if getattr(module, "running_mean", None) is not None)
        names = [] if self._warned_of_batch_norm else [*kept]
        self._warned_of_batch_norm = True
        if names:
            text = "the running statistics of %d normalisation layers, such as %r, are not averaged: each peer has its own"
            _log.warning(text, len(names), names[0])

    def _require_inside(self) -> None:
        if not self._inside:
            name = type(self).__name__
            raise RuntimeError(f"this {name} works only inside its with block: with {name}(...) as diloco:")

    def _begin_round(self) -> None:
        """Counts inner steps, and the time for them, from here on, with the settings of the run."""
        self._every = max(1, int(self._settings["sync_every"]))
        self._seconds = self._settings["sync_seconds"] or None
        self._inner_steps = 0
        self._unmet: Made | None = None  # an outer step whose meeting is to come
        self._began = time.monotonic()

    def _share(
        self,
        parts: Sequence[tuple[str, Outer, Averager]],
        settings: Mapping[str, Tensor] | None = None,
        terms: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the shared state of the outer parameters of all parts of the model.

        Each has a prefix for its names. `settings`: more numbers that all members hold alike. `terms`: more arguments that all
        give alike.
        """
        self._outers = [outer for _, outer, _ in parts]
        self._averagers = [averager for _, _, averager in parts]
        given = self._settings.terms()
        given |= {"class": type(self).__name__, "weights": "equal" if self._weight is None else "given", "shards": self._shards}
        given |= {f"{key} of compression": one for key, one in vars(self.compression).items()} | dict(terms or {})
        outers = {prefix: outer for prefix, outer, _ in parts}
        self._same = terms_of(self.model, self.inner_optimizer, outers, self.state, given)
        self._shared_settings = dict(settings or {})
        own = [
            TensorInfo.from_torch(self._settings.tensor, ENTRY),
            TensorInfo.from_torch(self._outer_step, "outer step"),
        ]
        shared = dict(self._shared_settings)
        for prefix, outer, _ in parts:
            shared |= outer.entries(prefix)
        own += [TensorInfo.from_torch(tensor, name) for name, tensor in shared.items()]
        collectors = [outer.optimizer_entries(prefix) for prefix, outer, _ in parts]
        own += [info for one in collectors for info in one.infos]
        self._outer_state = SharedState(own)
        self._shared = SharedState([*own, *self.state.entries()])
        numbers = [one for one in self.state.entries() if one.name.removeprefix("state/") in self.state._shared._kinds]
        SharedState([*own, *numbers]).mark_restored()  # all are new, but their memory may be that of an interrupted sync
        for state in (self._outer_state, self._shared):
            state._scalars = [scalar for one in collectors for scalar in one.scalars]
            state._checks = [check for one in collectors for check in one.checks]
        welcome = Welcome(self.model, self.state)
        self._membership = Membership(
            self.communicator,
            self._shared,
            welcome,
            self._outer_step,
            self._terms,
            self._shards,
            copies=self._copies_beside(),
        )

    def _terms(self) -> Terms:
        """What members need alike; where a run begins also the settings in which a joiner's own give way, but for `peers`."""
        settings: dict[str, Any] = {name: one for name, one in self._settings.as_dict().items() if name != "peers"}
        settings |= {name: one.tolist() for name, one in self._shared_settings.items()}
        return joined([self._same, Terms({}, settings), terms_of_values(self.state.objects)])

    def _outer_step_made(self, average: Callable[[], Made], *, finishes: bool = False) -> Round:
        """Makes an outer step, which ends in a meeting: all members get to the same state, those that come in here, too.

        `finishes`: nobody comes in. After a TooFewPeersError of the meeting a repeated call goes on with that.
        """
        if self._unmet is None:
            made = average()
            self._outer_step += 1
            lost = [one.commit_step(self.communicator, lag=self._lag) for one in self.state.data]  # before anybody is let in
            self._unmet = made._replace(lost=any(lost))
        made = self._unmet
        meeting_began = time.monotonic()
        meeting = self._membership.part() if finishes else self._membership.meet()
        self._unmet = None
        if made.lost or meeting.admitted:
            self._deal_data()
        if meeting.rx_bytes:
            _log.warning("%d bytes of the state differed from those of most members and were replaced", meeting.rx_bytes)
            self._from_host()
        met = time.monotonic()
        self._go_on(finishes=finishes)
        return Round(
            outer_step=self.outer_step,
            inner_steps=self._inner_steps,
            contributors=made.averaged.contributors,
            world_size=self.communicator.world_size,
            admitted=meeting.admitted or made.early is not None,
            repaired_bytes=meeting.rx_bytes + (made.early.rx_bytes if made.early else 0),
            tx_bytes=made.averaged.tx_bytes,
            rx_bytes=made.averaged.rx_bytes,
            reduce_seconds=made.reduce_seconds,
            meet_seconds=met - meeting_began,
            seconds=time.monotonic() - made.began,
            not_finite=made.averaged.not_finite,
        )

    def _from_host(self) -> None:
        """Copies the outer state, which was received on the host, to the devices."""
        for outer in self._outers:
            outer.from_host()

    def _deal_data(self) -> None:
        """Deals out the samples that are left among the members who are there now."""
        for one in self.state.data:
            one.sync(self.communicator)

    def _own_weight(self) -> float | None:
        if self._weight is None:
            return None
        return checked("weight", self._weight() if callable(self._weight) else self._weight)


def _storage(parameter: Tensor) -> int:
    return local_memory(parameter).untyped_storage().data_ptr()


publish(globals())
