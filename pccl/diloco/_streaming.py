"""Streaming DiLoCo (arXiv 2501.18512): fragments of the model are averaged one after another, while the inner steps go on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Unpack
from uuid import UUID

import torch
from torch import nn

from pccl._core.results import Contributors
from pccl._exports import publish
from pccl._peer.communicator import Communicator
from pccl.diloco._average import Average, Averaged, Averager, exchange
from pccl.diloco._base import SYNC_EVERY, Arguments, Made, Round, Trainer
from pccl.diloco._fragments import Fragments, fragments_of, layers_of
from pccl.diloco._outer import Outer
from pccl.diloco._settings import require_whole

FRAGMENTS, OVERLAP = 4, 5
"""Unless they are given, or the model has fewer layers, or a round has no more steps."""


@dataclass
class Fragment:
    """Parameters that are averaged together, once in every round."""

    outer: Outer
    """The outer parameters and their momentum."""
    averager: Averager
    buffer: torch.Tensor
    """The pseudo-gradient, and then the average: fp32 of shape (outer.size,) on the CPU."""
    under_way: Average | None = None

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.outer.parts]


class StreamingDiLoCo(Trainer):
    """DiLoCo whose averages are spread over the inner steps: the model is averaged in fragments, each at a time of its own.

    Used as `DiLoCo` is, with the same arguments and these. Every fragment is averaged once in `sync_every` inner steps: its
    pseudo-gradient is launched at its own step of the round, and `overlap` inner steps later its average is applied to its outer
    parameters, and they are mixed into what the inner steps have made meanwhile:

        inner = mixing * inner + (1 - mixing) * outer

    (arXiv 2501.18512, algorithm 2: tau is `overlap`, alpha is `mixing`). The launches are spread evenly over a round such that
    all averages are applied at its end. There, where nothing is in flight, the members meet: newcomers are let in, and the hash
    of the outer state is compared. That is an outer step for `outer_step`, `step` and `Round`; `Round.contributors` has the
    elements of the fragments one after another.

    `fragments`: a number, or for each fragment the names of its modules and parameters, or its modules. A number is dealt out in
    whole layers by `pattern`: "strided" (neighbours in different fragments), "sequential" (neighbours together), or "balanced"
    (by size alone). Layers are the children of the largest nn.ModuleList or nn.Sequential. The default is 4, or as many as there
    are layers if these are fewer; that of `overlap` is 5, or `sync_every` - 1 if that is less.

    With `sync_seconds` a round is that long, and `overlap` is the share of it that it is of `sync_every`. `weight` is asked for
    once per round, at the first launch. `compression` is any but "sparse". A joiner begins with the outer parameters. The end of
    the `with` block applies what is under way, if it comes in the middle of a round, and sets the model to the outer parameters,
    as on all members.
    """

    _lag = 1
    _one_of_both = False  # overlap is a share of sync_every

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        inner_optimizer: torch.optim.Optimizer,
        *,
        fragments: Fragments | None = None,
        pattern: str = "strided",
        overlap: int | None = None,
        mixing: float = 0.5,
        **arguments: Unpack[Arguments],
    ) -> None:
        super().__init__(model, communicator, inner_optimizer, **arguments)
        sync_every = arguments.get("sync_every", SYNC_EVERY)
        if self.compression.method == "sparse":
            raise ValueError("compression 'sparse' does not work with StreamingDiLoCo; use 'int8', 'int4' or 'e3m0'")
        if fragments is None:
            fragments = min(FRAGMENTS, sum(map(len, layers_of(model))))
        if overlap is None:
            overlap = min(OVERLAP, sync_every - 1)
        require_whole("overlap", overlap)
        if not 0 <= overlap < sync_every:
            raise ValueError(f"overlap must be from 0 to {sync_every - 1} inner steps, less than sync_every, not {overlap}")
        if not 0 <= mixing <= 1:
            raise ValueError(f"mixing must be from 0 to 1, not {mixing}")
        self._own_settings = torch.tensor([overlap, mixing], dtype=torch.float64, device="cpu")
        self.fragments: list[Fragment] = []
        """In the order of their launches."""
        for at, parameters in enumerate(fragments_of(model, fragments, pattern)):
            outer = self._outer_of(parameters)
            self.fragments.append(Fragment(outer, Averager(outer.size, self.compression, tag=at), outer.buffer()))
        parts = [(f"fragment {at}/", one.outer, one.averager) for at, one in enumerate(self.fragments)]
        self._share(parts, {"overlap and mixing": self._own_settings})

    @property
    def overlap(self) -> int:
        """Inner steps from the launch of an average to its outer step; that of the run, in which a joiner's own gives way."""
        return int(self._own_settings[0])

    @property
    def mixing(self) -> float:
        """The share of the inner parameters that stays where outer ones are mixed in; that of the run, like `overlap`."""
        return float(self._own_settings[1])

    def schedule(self) -> list[tuple[int, int]]:
        """For each fragment the inner step of a round after which its average is launched, and that after which it is applied."""
        room = max(0, self._every - self.overlap)
        launches = [max(1, (at + 1) * room // len(self.fragments)) for at in range(len(self.fragments))]
        return [(launch, launch + self.overlap) for launch in launches]

    def step(self) -> Round | None:
        """Counts a step of the inner optimizer, and launches and applies the averages that are due. To be called after each step.

        The round, if this was the end of one. The parameters of the model may be others than before, also inside of a round.
        Raises what `synchronize` does.
        """
        done = super().step()
        if done is None:
            self._advance(self._progress())
        return done

    # ---- a round ----

    def _begin_round(self) -> None:
        super()._begin_round()
        self._made = 0  # events of this round so far
        self._averaged: list[Averaged] = []
        self._waited = self._spent = 0.0
        self._weight_now: float | None = None
        self._weights: dict[UUID, float] | None = None

    def _progress(self) -> float:
        """How far this round is, in inner steps of all that it is planned for."""
        if self._seconds is None:
            return self._inner_steps
        return (time.monotonic() - self._began) / self._seconds * self._every

    def _advance(self, progress: float) -> None:
        """Makes what is due, in the order that is the same on all members."""
        began = time.monotonic()
        plan = self.schedule()
        events = [(launch, 0, at) for at, (launch, _) in enumerate(plan)] + [(apply, 1, at) for at, (_, apply) in enumerate(plan)]
        for due, applies, at in sorted(events)[self._made :]:
            if due > progress:
                break
            self._made += 1
            if applies:
                self._apply(self.fragments[at])
            else:
                self._launch(self.fragments[at])
        self._spent += time.monotonic() - began

    def _launch(self, fragment: Fragment) -> None:
        self._require_same_model()
        if self._made == 1:  # the first of the round: until its end nobody comes in, so that this is done once
            self._weight_now = self._own_weight()
            if self._weight_now is not None:
                self._weights = exchange(self.communicator, self._weight_now)
        fragment.outer.pseudo_gradient(fragment.buffer)
        fragment.under_way = fragment.averager.launch(self.communicator, fragment.buffer, self._weight_now, self._weights)

    def _apply(self, fragment: Fragment) -> None:
        assert fragment.under_way is not None
        began = time.monotonic()
        self._averaged.append(fragment.under_way.wait())
        fragment.under_way = None
        self._waited += time.monotonic() - began
        fragment.outer.step(fragment.buffer, self.outer_lr, self.outer_momentum)
        fragment.outer.to_host()
        fragment.outer.mix_into_model(self.mixing)

    def _average(self) -> Made:
        self._advance(math.inf)
        done = self._averaged
        averaged = Averaged(
            self._contributors(),
            sum(one.tx_bytes for one in done),
            sum(one.rx_bytes for one in done),
            frozenset().union(*(one.not_finite for one in done)),
        )
        return Made(averaged, time.monotonic() - self._spent, self._waited)

    def _go_on(self, *, finishes: bool) -> None:
        """The fragments were mixed into the model one by one."""

    def _contributors(self) -> tuple[Contributors, ...]:
        found, begin = [], 0
        for fragment, averaged in zip(self.fragments, self._averaged, strict=True):
            found += [Contributors(begin + one.start, begin + one.stop, one.peers) for one in averaged.contributors]
            begin += fragment.outer.size
        return tuple(found)

    def _leave(self) -> None:
        for fragment in self.fragments:
            if fragment.under_way is not None:
                self._apply(fragment)
        super()._leave()


publish(globals())
