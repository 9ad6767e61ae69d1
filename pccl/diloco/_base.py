"""What all methods have in common: when an outer step is due, the state of the run, and entering and leaving it."""

from __future__ import annotations

import logging
import math
import numbers
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from pccl._communicator import Communicator
from pccl._state import SharedState
from pccl._types import Contributors, TensorInfo
from pccl.diloco._average import Averaged
from pccl.diloco._compression import Compression
from pccl.diloco._membership import Meeting, Membership
from pccl.diloco._outer import Outer, local_memory, trained_parameters
from pccl.diloco._state import State, Welcome

_log = logging.getLogger("pccl.diloco")

Weight = float | Callable[[], float]

SETTINGS = ("outer_lr", "outer_momentum", "sync_every", "sync_seconds", "peers")
"""Those of the run, in which a joiner's own give way."""


OUTER = (0.7, 0.9)
"""Learning rate and momentum of outer steps, unless they are given: those of arXiv 2311.08105."""

SPARSE_OUTER = (2.0, 0.0)
"""The same with sparse averages, whose error feedback takes the place of the momentum. The rate is measured (docs/diloco.md)."""


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
    """Whether newcomers were let in after it."""
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


class Trainer(ABC):
    """A part in a run in which members average their models by outer steps. The base of all methods."""

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        inner_optimizer: torch.optim.Optimizer,
        *,
        sync_every: int,
        sync_seconds: float | None,
        outer_lr: float | None,
        outer_momentum: float | None,
        compression: str | Compression | None,
        weight: Weight | None,
        state: Mapping[str, Any] | None,
        peers: int,
        shards: int,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if not isinstance(communicator, Communicator):
            raise TypeError(f"communicator must be a pccl.Communicator, not {type(communicator).__name__}")
        if not isinstance(inner_optimizer, torch.optim.Optimizer):
            raise TypeError(f"inner_optimizer must be a torch.optim.Optimizer, not {type(inner_optimizer).__name__}")
        held = {_storage(parameter) for group in inner_optimizer.param_groups for parameter in group["params"]}
        if not any(_storage(parameter) in held for _, parameter in trained_parameters(model)):
            text = "inner_optimizer has no parameter of the model that requires a gradient"
            raise ValueError(f"{text}: make it of model.parameters(), after the model was sharded or moved")
        for name, whole in (("sync_every", sync_every), ("peers", peers), ("shards", shards)):
            require_whole(name, whole)
        if sync_seconds is not None and not isinstance(sync_seconds, numbers.Real):
            raise TypeError(f"sync_seconds must be a number, not {sync_seconds!r}")
        if sync_every < 1:
            raise ValueError(f"sync_every must be 1 or more steps of the inner optimizer, not {sync_every}")
        if sync_seconds is not None and not 0 < sync_seconds < math.inf:
            raise ValueError(f"sync_seconds must be more than 0 seconds, not {sync_seconds}")
        if peers < 1:
            raise ValueError(f"peers must be 1 or more, not {peers}")
        if shards < 1:
            raise ValueError(f"shards must be 1 or more, not {shards}")
        self.model = model
        self.communicator = communicator
        self.inner_optimizer = inner_optimizer
        self.compression = Compression.of(compression)
        usual_lr, usual_momentum = SPARSE_OUTER if self.compression.method == "sparse" else OUTER
        lr = usual_lr if outer_lr is None else _checked("outer_lr", outer_lr)
        momentum = usual_momentum if outer_momentum is None else _checked("outer_momentum", outer_momentum)
        self.state = State(state)
        """What the user adds to the state of the run: see `state=` of the class."""
        self.last: Round | None = None
        """The last outer step of this peer."""
        settings = [lr, momentum, sync_every, sync_seconds or 0, peers]
        self._settings = torch.tensor(settings, dtype=torch.float64, device="cpu")
        self._outer_step = torch.zeros(1, dtype=torch.int64, device="cpu")
        if weight is not None and not callable(weight):
            _checked("weight", weight)
        self._weight = weight
        self._shards = shards
        self._inside = self._closes = False
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
        settings differ. After an error, and after Ctrl-C, the outer state is unspecified: leave the `with` block, and join anew.
        """
        self._require_inside()
        self.last = self._round()
        self._begin_round()
        return self.last

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
        """The learning rate of outer steps. To change it, set it on all members after the same outer step."""
        return float(self._settings[0])

    @outer_lr.setter
    def outer_lr(self, value: float) -> None:
        self._settings[0] = _checked("outer_lr", value)

    @property
    def outer_momentum(self) -> float:
        """The Nesterov momentum of outer steps. To change it, set it on all members after the same outer step."""
        return float(self._settings[1])

    @outer_momentum.setter
    def outer_momentum(self, value: float) -> None:
        self._settings[1] = _checked("outer_momentum", value)

    @property
    def weight(self) -> Weight | None:
        """How much this peer counts in the next average, at least 0: a number, or what gives one. None: all count alike.

        RuntimeError: it was not given to the class, so that the members do not exchange weights.
        """
        return self._weight

    @weight.setter
    def weight(self, value: Weight) -> None:
        if self._weight is None:
            raise RuntimeError("the members do not exchange weights: give all of them a weight when they are made")
        if not callable(value):
            _checked("weight", value)
        self._weight = value

    def __enter__(self) -> Self:
        if self._inside:
            raise RuntimeError(f"this {type(self).__name__} is in use already")
        before = self._settings.clone()
        if self.outer_step == 0:  # a checkpoint may have been loaded since this was made
            for outer in self._outers():
                outer.read_model()
        try:
            self._closes = self._membership.enter(self._settings[SETTINGS.index("peers")], self._outer_step)
            self._adopt()
        except BaseException:
            self.communicator.close()  # it may be a member already, for whom the others would wait
            raise
        for name, own, theirs in zip(SETTINGS, before.tolist(), self._settings.tolist(), strict=True):
            if own != theirs:
                _log.warning("%s is %g, as in the run that this peer has joined, not %g", name, theirs, own)
        self._inside = True
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

    # ---- for the methods ----

    @abstractmethod
    def _outers(self) -> Iterable[Outer]:
        """The outer parameters of all parts of the model."""

    @abstractmethod
    def _round(self) -> Round:
        """Makes an outer step."""

    @abstractmethod
    def _adopt(self) -> None:
        """After the state of the run was received: begins to train from it."""

    def _leave(self) -> None:  # noqa: B027  # only some methods have something to bring to its end
        """Ends what is in flight, before this peer leaves."""

    def _require_inside(self) -> None:
        if not self._inside:
            name = type(self).__name__
            raise RuntimeError(f"this {name} works inside of its with block only: with {name}(...) as diloco:")

    def _begin_round(self) -> None:
        """Counts inner steps, and the time for them, from here on, with the settings of the run."""
        self._every = max(1, int(self._settings[2]))
        self._seconds = float(self._settings[3]) or None
        self._inner_steps = 0
        self._began = time.monotonic()

    def _share(self, outer: Mapping[str, Tensor]) -> None:
        """Makes the shared state, of the outer state that the method has, by name."""
        weights = "equal" if self._weight is None else "given"
        method = f"{type(self).__name__}, weights {weights}, compression {self.compression}, shards {self._shards}"
        own = [
            TensorInfo.from_torch(self._settings, f"settings of {method}"),
            TensorInfo.from_torch(self._outer_step, "outer step"),
        ]
        own += [TensorInfo.from_torch(tensor, name) for name, tensor in outer.items()]
        self._outer_state = SharedState(own)
        self._shared = SharedState([*own, *self.state.entries()])
        self._membership = Membership(self.communicator, self._shared, Welcome(self.model, self.state), self._shards)

    def _meet(self, *, finishes: bool = False) -> Meeting:
        """Ends an outer step: all members get to the same state, those that come in here, too. `finishes`: nobody comes in."""
        self._outer_step += 1
        self._shared.push_revision()
        meeting = self._membership.part() if finishes else self._membership.meet()
        if meeting.rx_bytes:
            _log.warning("%d bytes of the state were not those of most members, and were replaced", meeting.rx_bytes)
        return meeting

    def _report(self, averaged: Averaged, meeting: Meeting, *, began: float, reduce_seconds: float, meet_seconds: float) -> Round:
        """What an outer step has done that began at a moment of the monotonic clock, and ends now."""
        return Round(
            outer_step=self.outer_step,
            inner_steps=self._inner_steps,
            contributors=averaged.contributors,
            world_size=self.communicator.world_size,
            admitted=meeting.admitted,
            repaired_bytes=meeting.rx_bytes,
            tx_bytes=averaged.tx_bytes,
            rx_bytes=averaged.rx_bytes,
            reduce_seconds=reduce_seconds,
            meet_seconds=meet_seconds,
            seconds=time.monotonic() - began,
        )

    def _own_weight(self) -> float | None:
        """For the next average."""
        if self._weight is None:
            return None
        return _checked("weight", self._weight() if callable(self._weight) else self._weight)


def require_whole(name: str, value: object) -> None:
    """TypeError: an argument of a class is no whole number."""
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def _checked(name: str, given: float) -> float:
    """`given`, in whatever form numbers have. ValueError: fp32 does not hold it, or it is less than 0."""
    try:
        value = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= torch.finfo(torch.float32).max:
        raise ValueError(f"{name} must be a number from 0 on, not {given!r}")
    return value


def _storage(parameter: Tensor) -> int:
    """The address of its memory."""
    return local_memory(parameter).untyped_storage().data_ptr()
