"""How far a DataLoader is behind the sampler that it reads ahead of."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

_DEPTH = 24
"""How many callers above the sampler are looked at."""


class Reader:
    """The iterator of a DataLoader that draws from a sampler, and how many samples it has given to the program.

    The loader draws indices of whole batches, ahead of what it gives. `origin` is the place of its first
    sample in the sampler's sequence.
    """

    def __init__(self, loader: Any, ahead: Any, origin: int) -> None:
        self.origin = origin
        self._living = weakref.ref(loader)
        self._fields = vars(loader)  # outlives the iterator, whose last count is wanted after a loop
        self._before = int(loader._num_yielded)
        self._ahead = ahead
        sampler = loader._index_sampler
        self._batch = getattr(sampler, "batch_size", None) if loader._auto_collation else 1
        self._drops_last = bool(getattr(sampler, "drop_last", False))
        self._works = bool(getattr(loader, "_num_workers", 0))

    @property
    def is_alive(self) -> bool:
        """Whether what it has read ahead may still come."""
        return self._living() is not None

    @property
    def held_back(self) -> int:
        """How many samples it may draw at most that fill no batch and do not come."""
        return self._batch - 1 if self._drops_last and self._batch else 0

    def given(self, drawn: int) -> int:
        """Returns the place behind the last sample that the program has got, of those up to `drawn`."""
        if self._batch is None:
            if self._works:
                raise RuntimeError(
                    "the DataLoader has workers and a batch_sampler without batch_size, so nobody knows how many samples it "
                    "has given; call commit(samples=...)"
                )
            return drawn
        batches = int(self._fields["_num_yielded"]) - self._before
        if self._ahead is not None and not self._ahead.end_of_dataloader:
            batches -= 1  # accelerate holds a batch back until it has the next one
        return min(drawn, self.origin + max(batches, 0) * self._batch)

    def whole(self, drawn: int) -> int:
        """Returns the place behind the last sample that is to come, once the loader has drawn all up to `drawn`."""
        if not self._drops_last or not self._batch:
            return drawn
        return drawn - (drawn - self.origin) % self._batch


def find(origin: int) -> Reader | None:
    """Returns the iterator of a DataLoader among the callers, or None if the program itself draws."""
    frame: FrameType | None = sys._getframe(1)
    loader = ahead = None
    for _ in range(_DEPTH):
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if loader is None and hasattr(caller, "_num_yielded") and hasattr(caller, "_index_sampler"):
            loader = caller
        elif loader is not None and hasattr(caller, "end_of_dataloader") and hasattr(caller, "remainder"):
            ahead = caller
            break
        frame = frame.f_back
    return None if loader is None else Reader(loader, ahead, origin)
