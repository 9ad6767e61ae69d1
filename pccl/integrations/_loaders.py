"""Iterators of torch's DataLoader in a run that a restarted process may join, and the states of random generators."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import _utils as data_utils
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

AHEAD = 32
"""Batches of each open loader that a process loads before it has caught up: a wrapper may have fetched them in advance."""

_DEPTH = 4
"""How many samplers wrap each other, at most."""


def random_states() -> dict[str, Any]:
    """Returns the states of the generators that the process has without making one."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state(legacy=False)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any], names: Collection[str]) -> None:
    """Sets what `random_states` returned, in this process or another one, for the generators of these names."""
    setters: dict[str, Callable[[Any], None]] = {"torch": torch.set_rng_state, "python": random.setstate}
    if "numpy" in sys.modules:
        setters["numpy"] = sys.modules["numpy"].random.set_state
    if torch.cuda.is_available():
        setters["cuda"] = torch.cuda.set_rng_state
    for name in setters.keys() & states.keys() & set(names):
        setters[name](states[name])


def _generators(loader: Any) -> list[torch.Generator]:
    """Returns the generators of a loader and of its samplers, which may wrap each other."""
    found: list[torch.Generator] = []

    def look(at: Any, depth: int) -> None:
        one = getattr(at, "generator", None)
        if isinstance(one, torch.Generator) and all(one is not other for other in found):
            found.append(one)
        for inner in (getattr(at, name, None) for name in ("sampler", "batch_sampler") if depth):
            if inner is not None:
                look(inner, depth - 1)

    look(loader, _DEPTH)
    return found


class Batches:
    """An iterator of a loader that counts its batches. In a process that catches up it hands out one batch again and again."""

    def __init__(
        self,
        loader: DataLoader[Any],
        make: Callable[[Any], Iterator[Any]],
        record: dict[str, Any] | None,
        alike: Collection[str],
        *,
        replays: Callable[[], bool],
    ) -> None:
        """`make` is `iter` of torch. `record` is what `described` told at a member of the iterator that this one repeats.

        `alike` names the random generators that are taken over from there; "loaders" are those of the loader.
        """
        self._loader, self._make, self._replays = loader, make, replays
        self._is_dry = replays() and not isinstance(loader.dataset, IterableDataset)
        self._kept: dict[int, Any] = {}
        self.count = 0
        self.is_open = True
        self._begin(record, alike)

    def _begin(self, record: dict[str, Any] | None, alike: Collection[str]) -> None:
        self._record = record
        generators = _generators(self._loader)
        if record is not None:
            set_random_states(record["random"], alike)
            for one, state in zip(generators, record["generators"], strict=False) if "loaders" in alike else ():
                one.set_state(state)
        self._random, self._states = random_states(), [one.get_state() for one in generators]
        self._inner: Any = (
            _SingleProcessDataLoaderIter(_in_this_process(self._loader)) if self._is_dry else self._make(self._loader)
        )

    def described(self) -> dict[str, Any]:
        """Returns what a process needs to repeat the iterator: the batches so far, and the generators at the beginning."""
        return {"count": self.count, "is_open": self.is_open, "random": self._random, "generators": self._states}

    def repeat(self, record: dict[str, Any] | None, alike: Collection[str]) -> None:
        """Begins again as the members did. The batches so far stay as they are."""
        if self._is_dry and record is not None:
            with undisturbed():
                set_random_states(self._random, self._random)
                for one, state in zip(_generators(self._loader), self._states, strict=True):
                    one.set_state(state)
                self._begin(record, alike)
                for _ in range(self.count):
                    self._inner._next_index()

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # it is being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if self._is_dry and not self._replays():
            self._load_from_here()
        try:
            batch = self._dry_batch() if self._is_dry else next(self._inner)
        except StopIteration:
            self.is_open = False
            raise
        self.count += 1
        return batch

    def _dry_batch(self) -> Any:
        index = self._inner._next_index()
        size = len(index) if hasattr(index, "__len__") else -1
        soon = self._record is not None and self.count >= self._record["count"] - AHEAD
        if soon or size not in self._kept:
            batch = self._inner._dataset_fetcher.fetch(index)
            if self._inner._pin_memory:
                pin: Any = data_utils.pin_memory.pin_memory
                batch = pin(batch, self._inner._pin_memory_device)
            self._kept[size] = batch
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf), self._kept[size])

    def _load_from_here(self) -> None:
        """Goes on as torch does, with workers if the loader has them."""
        self._is_dry = False
        self._kept.clear()
        if self._loader.num_workers:
            rest = copy.copy(self._loader)
            name = "sampler" if rest.batch_sampler is None else "batch_sampler"
            rest.__dict__.update({name: _Rest(self._inner._sampler_iter), "persistent_workers": False})
            with undisturbed(_generators(self._loader)):
                self._inner = self._make(rest)


class _Rest:
    """What a sampler has left."""

    def __init__(self, left: Iterator[Any]) -> None:
        self._left = left

    def __iter__(self) -> Iterator[Any]:
        return self._left

    def __len__(self) -> int:
        raise TypeError("the number of batches that are left is not known")


def _in_this_process(loader: DataLoader[Any]) -> DataLoader[Any]:
    made = copy.copy(loader)
    made.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
    return made


@contextlib.contextmanager
def undisturbed(generators: Collection[torch.Generator] = ()) -> Iterator[None]:
    """Leaves the random generators as they are, and these."""
    states, more = random_states(), [one.get_state() for one in generators]
    try:
        yield
    finally:
        set_random_states(states, states)
        for one, state in zip(generators, more, strict=True):
            one.set_state(state)
