"""Sets of whole numbers as sorted ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
"""A first number, and the one after the last."""


def runs_of(numbers: Iterable[int]) -> list[Run]:
    """Returns the ranges of distinct numbers in any order."""
    found: list[Run] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


class Ranges:
    """A set of whole numbers that consists of few ranges."""

    __slots__ = ("_starts", "_stops", "_sums")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        """`runs` are sorted and disjoint. ValueError: they are not."""
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._sums: list[int] | None = None
        for start, stop in runs:
            if stop <= start or (self._stops and start < self._stops[-1]):
                raise ValueError(f"ranges must be sorted, disjoint and not empty; {start} to {stop} is not")
            if self._stops and start == self._stops[-1]:
                self._stops[-1] = stop
            else:
                self._starts.append(start)
                self._stops.append(stop)

    @property
    def runs(self) -> list[Run]:
        """The ranges, sorted."""
        return list(zip(self._starts, self._stops, strict=True))

    def copy(self) -> Ranges:
        """Returns a copy."""
        return Ranges(self.runs)

    def __len__(self) -> int:
        return self._sums[-1] if self._sums else sum(self._stops) - sum(self._starts)

    def __iter__(self) -> Iterator[int]:
        for start, stop in zip(self._starts, self._stops, strict=True):
            yield from range(start, stop)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.runs == other.runs

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"Ranges({self.runs})"

    def _summed(self) -> list[int]:
        """How many numbers there are up to the end of each range, after a 0."""
        if self._sums is None:
            self._sums = [0]
            for start, stop in zip(self._starts, self._stops, strict=True):
                self._sums.append(self._sums[-1] + stop - start)
        return self._sums

    def at(self, place: int) -> int:
        """Returns the number with so many smaller ones."""
        sums = self._summed()
        run = bisect_right(sums, place) - 1
        return self._starts[run] + place - sums[run]

    def slice(self, first: int, last: int) -> list[Run]:
        """Returns the ranges of the numbers from the place `first` up to the one before `last`."""
        sums = self._summed()
        found: list[Run] = []
        run = bisect_right(sums, first) - 1
        while first < last and run < len(self._starts):
            size = min(last, sums[run + 1]) - first
            start = self._starts[run] + first - sums[run]
            found.append((start, start + size))
            first += size
            run += 1
        return found

    def add(self, run: Run) -> None:
        """Adds a range that begins after all others."""
        if run[0] < run[1]:
            added = Ranges([*self.runs, run])
            self._starts, self._stops, self._sums = added._starts, added._stops, None

    def remove(self, run: Run) -> None:
        """Takes out what is there of a range."""
        start, stop = run
        first = bisect_right(self._stops, start)
        last = first
        left: list[Run] = []
        while last < len(self._starts) and self._starts[last] < stop:
            if self._starts[last] < start:
                left.append((self._starts[last], start))
            if self._stops[last] > stop:
                left.append((stop, self._stops[last]))
            last += 1
        self._starts[first:last] = [one for one, _ in left]
        self._stops[first:last] = [one for _, one in left]
        self._sums = None
