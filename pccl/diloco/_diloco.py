"""DiLoCo (arXiv 2311.08105)."""

from __future__ import annotations

import time
from typing import Unpack
from uuid import UUID

import torch
from torch import nn

from pccl._exports import publish
from pccl._peer.communicator import Communicator
from pccl.diloco._average import Averager
from pccl.diloco._base import Arguments, Made, Trainer
from pccl.diloco._membership import Meeting
from pccl.diloco._outer import trained_parameters


class DiLoCo(Trainer):
    """Trains a model with others: each peer by itself, with an outer step of all after every `sync_every` inner steps.

    An outer step averages what the peers' inner steps have changed (the pseudo-gradient: outer parameters before minus the
    parameters now) over those that are there, and applies it with Nesterov momentum to the outer parameters, from which all go
    on. Afterwards the outer state is the same bits on all members, which is checked by hash every time. The state of the inner
    optimizer stays with its peer.

        with DiLoCo(model, pccl.Communicator("host:48148"), optimizer) as diloco:
            for batch in batches:
                ...  # zero_grad, loss, backward
                optimizer.step()
                diloco.step()

    `inner_optimizer` works on the parameters of `model`. ValueError, TypeError: arguments out of range, or that do not fit.

    The `with` block joins the run: it connects the communicator unless that was done, waits for the next outer step of the
    others, and takes over their state; who is first begins the run with its own model. Peers join and die as they like. A
    communicator that was connected here is closed at its end; after an exception any is. `start` and `close` take the place of
    the block in programs that have none. `save` and `load` are for the loss of all peers. Inner steps since the last outer step
    are dropped at the end of the block, with a warning.

    The members train on while a joiner copies the outer state. They wait for the copy if `state` has samplers, and with
    AsyncDiLoCo; with StreamingDiLoCo they wait for the last fragments.

    `sync_seconds` takes the place of `sync_every`: an outer step is due so many seconds after the last one, so that slower
    peers make fewer inner steps. `outer_lr`, `outer_momentum`, `sync_every`, `sync_seconds` and `peers` are those of the run:
    a joiner's own give way. `weight`: how much this peer counts in the average, for example the tokens it has seen since the
    last outer step: a number, or a function that is called once per outer step; all peers give one, or none does.
    `compression`: see `Compression`. `outer_lr` and `outer_momentum` are 0.7 and 0.9 unless given, and 2 and 0 with sparse
    averages, in which what was left out before takes the place of the momentum.

    `outer_optimizer`: another optimizer for outer steps, as a class of `torch.optim` or a function that makes one for the list of
    outer parameters, such as `lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)`. Its state is part of
    the outer state. Processors of different kinds may round its results differently; the check of parity repairs that.

    `state` is what a joiner needs beyond the model: tensors, arrays and numbers by name, which all members hold alike after each
    outer step, and objects with `state_dict` and `load_state_dict`, which a joiner loads. They are used through `diloco.state`.

    `device` has outer parameters and momentum, 8 bytes for each parameter; with another one than the CPU there is a copy of them
    on the CPU. The average takes 4 more bytes there, error feedback and sparse averages another 8.

    `peers`: a new run begins when so many are there. `begin=False`: this peer joins a run or fails, as in `Communicator.connect`.
    `shards`: how many processes hold a model together (`fully_shard`), each in a peer group of its own, in which its shard is
    averaged; they join together.

    Only parameters that require a gradient are averaged, each once where modules share it; a joiner gets frozen ones and
    buffers of the longest-standing member. Running statistics of batch norm are not averaged. A parameter that is frozen,
    unfrozen or replaced later is an error.
    """

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        inner_optimizer: torch.optim.Optimizer,
        **arguments: Unpack[Arguments],
    ) -> None:
        super().__init__(model, communicator, inner_optimizer, **arguments)
        self.outer = self._outer_of(trained_parameters(model))
        """The outer parameters and their momentum."""
        self._buffer = self.outer.buffer()
        self._averager = Averager(self.outer.size, self.compression)
        self._share([("", self.outer, self._averager)])

    def _copies_beside(self) -> bool:
        return self._admits_early()

    def _admits_early(self) -> bool:
        """Whether joiners are let in before an outer step. With samples they cannot be: those of the step are committed first."""
        return not self.state.data

    def _average(self) -> Made:
        began = time.monotonic()
        here = frozenset(self.communicator.members)
        early = self._membership.admit() if self._admits_early() else None
        joiners = frozenset(self.communicator.members) - here if early else frozenset()
        if early and early.rx_bytes:
            self._from_host()
        self.outer.pseudo_gradient(self._buffer)
        return self._average_with(began, self._own_weight(), early, joiners)

    def _average_with(self, began: float, weight: float | None, early: Meeting | None, joiners: frozenset[UUID]) -> Made:
        """`early`: how members were let in before, who take part with weight 0; `joiners` are those among them that are known."""
        reducing = time.monotonic()
        averaged = self._averager.launch(self.communicator, self._buffer, weight, joiners=early is not None).wait()
        reduced = time.monotonic()
        self.outer.step(self._buffer, self.outer_lr, self.outer_momentum)
        self.outer.to_host()
        return Made(averaged.without(joiners), began, reduced - reducing, early)

    def _adopt(self) -> None:
        if self._membership.early:
            self._buffer.zero_()
            self._outer_step_made(lambda: self._average_with(time.monotonic(), 0.0, Meeting(True, 0), frozenset()))
        else:
            super()._adopt()


publish(globals())
