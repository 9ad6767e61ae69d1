"""Gathers in a group of fixed membership, in which some ranks are lost.

The next living rank stands in for a lost one: its part is in the result twice. All members fill results alike, and parts that
belong together, such as predictions and labels, come from one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import torch

from pccl.distributed._calls import Call, Followed
from pccl.distributed._view import View


class Parts:
    """Where the parts of a gather among `living` members go; the result is `whole`, None where there is none.

    `sizes` are the numbers of elements of the parts, by rank; none: they are equal.
    """

    def __init__(self, view: View, living: Sequence[UUID], whole: torch.Tensor | None, sizes: Sequence[int] = ()) -> None:
        self._whole = whole
        self._sources = _sources(view, living) if view.fixed and len(living) < view.size else []
        self._sizes = list(sizes)
        self.memory = whole
        """What the core fills."""
        self.sizes = sizes
        """The sizes of the parts that it fills."""
        if self._sources:
            here = [rank for rank, source in enumerate(self._sources) if source == rank]
            if whole is not None and not sizes:
                self._sizes = [whole.numel() // view.size] * view.size
            if sizes:
                self.sizes = [sizes[rank] for rank in here]
            if whole is not None:
                self.memory = whole.new_empty(sum(self._sizes[rank] for rank in here))

    def fit(self) -> bool:
        """Whether each part has the size of the one that takes its place."""
        return all(self._sizes[rank] == self._sizes[source] for rank, source in enumerate(self._sources) if self._sizes)

    def filled(self, call: Call) -> Call:
        """The call that ends when all parts of the result are there."""
        return Followed(call, self._fill) if self._sources and self._whole is not None else call

    def _fill(self) -> None:
        assert self._whole is not None
        assert self.memory is not None
        here = [rank for rank, source in enumerate(self._sources) if source == rank]
        got = dict(zip(here, torch.split(self.memory, [self._sizes[rank] for rank in here]), strict=True))
        for target, source in zip(torch.split(self._whole.detach().view(-1), self._sizes), self._sources, strict=True):
            target.copy_(got[source])


def _sources(view: View, living: Sequence[UUID]) -> list[int]:
    """For each rank the one whose part it gets: itself if it lives, or else the next that does."""
    ranks = [rank for rank, member in enumerate(view.members) if member in living]
    return [next((one for one in ranks if one >= rank), ranks[0]) for rank in range(view.size)]
