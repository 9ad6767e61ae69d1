"""DiLoCo whose averages travel while the next inner steps are made."""

from __future__ import annotations

import time
from typing import Unpack

import torch
from torch import nn

from pccl._exports import publish
from pccl._peer.communicator import Communicator
from pccl.diloco._average import Average, Averaged, Averager, is_finite
from pccl.diloco._base import Arguments, Made, Round, Trainer
from pccl.diloco._outer import trained_parameters


class AsyncDiLoCo(Trainer):
    """DiLoCo with a delay of one outer step: the average of a round travels while the inner steps of the next one are made.

    Used as `DiLoCo` is, with the same arguments. At an outer step the average of the round before, which should have come in
    by then, is applied to the outer parameters, and that of the present round is launched. Nobody waits for an average unless it
    takes longer than the inner steps; at an outer step the members still wait for the slowest of them, and for several round
    trips.

    The inner steps go on from the outer parameters minus `eager` times the own pseudo-gradient that is under way: what this
    peer has learned itself is not lost to it until the average brings it back (the local part of the eager updates of
    arXiv 2502.12996). With `eager=0` they go on from the outer parameters.

    A joiner begins with the outer parameters. It takes part in the average that is launched next with weight 0, so it gets
    the result of it without a part in it. At the end of the `with` block, and in `finish`, the average that is under way is
    applied. What the inner steps began with takes another 4 bytes for each parameter than in `DiLoCo`.
    """

    _lag = 1

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        inner_optimizer: torch.optim.Optimizer,
        *,
        eager: float = 1.0,
        **arguments: Unpack[Arguments],
    ) -> None:
        super().__init__(model, communicator, inner_optimizer, **arguments)
        if not 0 <= eager <= 1:
            raise ValueError(f"eager must be from 0 to 1, not {eager}")
        self.eager = eager
        self.outer = self._outer_of(trained_parameters(model))
        """The outer parameters and their momentum."""
        self._start = torch.empty_like(self.outer.parameters)  # what the inner steps begin with
        self._buffer = self.outer.buffer()  # of the average that is under way
        self._averager = Averager(self.outer.size, self.compression)
        self._under_way: Average | None = None
        self._share([("", self.outer, self._averager)], terms={"eager": eager})

    def finish(self) -> Round:
        """Waits for the average that is under way, applies it, and sets the model to the outer parameters, as on all members.

        To be called by all members after the same outer step; the end of the `with` block does it. Inner steps since that outer
        step are lost. It lets nobody in. Raises what `synchronize` does.
        """
        self._require_inside()
        self.last = self._outer_step_made(self._average, finishes=True)
        self._begin_round()
        return self.last

    def _copies_beside(self) -> bool:
        return False

    def _average(self) -> Made:
        began = time.monotonic()
        averaged = self._under_way.wait() if self._under_way else Averaged(())
        self._under_way = None
        reduced = time.monotonic()
        if averaged.contributors:
            self.outer.step(self._buffer, self.outer_lr, self.outer_momentum)
            self.outer.to_host()
        return Made(averaged, began, reduced - began)

    def _go_on(self, *, finishes: bool) -> None:
        if finishes:
            self._start_from_outer()
            return
        weight = self._own_weight()
        self.outer.pseudo_gradient(self._buffer, self._start)
        self._begin_again(1.0 if weight is None else weight)

    def _begin_again(self, weight: float) -> None:
        """Sets the model to what the next inner steps begin with, and launches the average of what is in the buffer."""
        self._start.copy_(self.outer.parameters)
        if is_finite(self._buffer):
            self._start.sub_(self._buffer.to(self.outer.device), alpha=self.eager)
        self.outer.rounded(self._start)
        self.outer.write_model(self._start)
        self._under_way = self._averager.launch(self.communicator, self._buffer, weight)

    def _adopt(self) -> None:
        self._buffer.zero_()
        if self._membership.joined:
            self._begin_again(0.0)  # as the members do after the meeting that has let this peer in
        else:
            self._start_from_outer()

    def _start_from_outer(self) -> None:
        self.outer.rounded(self._start.copy_(self.outer.parameters))
        self.outer.write_model(self._start)

    def _leave(self) -> None:
        super()._leave()
        if self._under_way is not None:
            self.finish()


publish(globals())
