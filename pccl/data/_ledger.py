"""The ledger of an epoch: which samples are left, which member reads which of them, and which are committed. Pure.

**Positions.** Sample number i in the order of epoch e has the position e * size + i. `left` has the positions of all epochs that
have begun, without those that are committed. Nothing else is the state of a run.

**Eras.** An era has fixed members. At its beginning they tell each other which positions they have in flight, that is, read ahead
and not committed; these stay theirs. The rest of `left` is dealt out: member i of k gets the numbers i, i + k, i + 2k and so on.
So each member has one *sequence* of positions that only grows, and all members know all sequences. Sequences are equally long:
where the numbers do not divide, the last entry of some is padding, which is a negative number and no position.

**Commits.** A member commits the next entries of its sequence, and all know how many. What a lost member has not committed is
still in `left`, and is dealt out in the next era. Hence the invariant: each position of a begun epoch is either in `left` or was
committed exactly once, and no position is in two sequences, or twice in one.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from pccl.data._ranges import Ranges, Run, runs_of


class _Segment(NamedTuple):
    """A part of all sequences."""

    epoch: int
    first: int
    length: int
    pool: Ranges
    """What is dealt out; empty where there are rows."""
    rows: list[list[int]]
    """The entries by member, of the part that members had in flight."""


class Ledger:
    """What all members know alike of the samples of a run."""

    def __init__(self, size: int, *, drop_last: bool = False) -> None:
        self.size = size
        self.drop_last = drop_last
        """Whether the entries of an epoch that do not divide among the members are left out, instead of padded."""
        self.epoch = 0
        """The last epoch that has begun."""
        self.members: tuple[Hashable, ...] = ()
        self.taken: list[int] = []
        """How many entries of each sequence are committed."""
        self._folded: list[int] = []
        self._left = Ranges([(0, size)] if size else [])
        self._segments: list[_Segment] = []
        self.pause = 0
        """Where the pass ends that was under way, and had ended at some member, when the era began."""

    # ---- what is left ----

    @property
    def left(self) -> Ranges:
        """The positions of begun epochs that are not committed."""
        for segment in self._segments:
            self._fold(segment)
        self._folded = list(self.taken)
        return self._left

    def _fold(self, segment: _Segment) -> None:
        """Takes out of `left` what was committed of a part since the last time."""
        spans = [
            (max(before - segment.first, 0), min(now - segment.first, segment.length))
            for before, now in zip(self._folded, self.taken, strict=True)
        ]
        if all(stop <= start for start, stop in spans):
            return
        count = len(self.members)
        first, last = (0, 0) if segment.rows else (max(one for one, _ in spans), min(one for _, one in spans))
        if first < last:  # what all have committed is contiguous
            for run in segment.pool.slice(first * count, min(last * count, len(segment.pool))):
                self._left.remove(run)
        else:
            first = last = 0
        single: list[int] = []
        for place, (start, stop) in enumerate(spans):
            for number in (*range(start, min(stop, first)), *range(max(start, last), stop)):
                entry = self._entry(segment, place, number)
                if entry >= 0:
                    single.append(entry)
        for run in runs_of(single):
            self._left.remove(run)

    # ---- eras ----

    def begin(
        self,
        members: Sequence[Hashable],
        in_flight: Sequence[Sequence[int]],
        given: Sequence[int] | None = None,
        *,
        ended: bool = False,
    ) -> None:
        """Begins an era.

        `in_flight` has the positions that each member has read ahead, in its order; negative ones are padding. The first so many
        of them, as `given` says, were given to its program already. A position that is not left, or that a member
        before has in flight, becomes padding. All members have equally many entries to come,
        from the same place of their sequences on.
        `ended`: some member has seen the end of its pass. Then the pass of nobody gets longer; the rest is for the next one.
        """
        pool = self.left.copy()
        rows: list[list[int]] = []
        for told in in_flight:
            rows.append([])
            for position in told:
                rows[-1].append(position if position in pool else -1)
                pool.remove((position, position + 1))
        given = [0] * len(rows) if given is None else given
        before = max(given, default=0)
        self.members = tuple(members)
        self.taken = [before - one for one in given]
        self._folded = list(self.taken)
        for row, one in zip(rows, given, strict=True):
            row[:0] = [-1] * (before - one)
        most = max((len(row) for row in rows), default=0)
        dealt = 0
        for number in range(before, most):
            for row in rows:
                if len(row) <= number:
                    takes = dealt < len(pool)
                    row.append(pool.at(dealt) if takes else -1)
                    dealt += takes
        self._segments = [_Segment(self.epoch, 0, most, Ranges(), rows)] if most else []
        self.pause = most if ended else 0
        self._deal(Ranges(pool.slice(dealt, len(pool))))

    def extend(self, epoch: int) -> None:
        """Begins the epochs up to this one, where they have not begun."""
        while self.epoch < epoch:
            if self.drop_last and not self.pause:
                for segment in self._segments:
                    for run in segment.pool.slice(segment.length * len(self.members), len(segment.pool)):
                        self._left.remove(run)
            self.epoch += 1
            run = self.epoch * self.size, (self.epoch + 1) * self.size
            self._left.add(run)
            if self.members:
                self._deal(Ranges([run] if self.size else []))

    def start_at(self, epoch: int) -> None:
        """Makes this epoch the first one, before anything was handed out."""
        self.epoch = epoch
        self._left = Ranges([(epoch * self.size, (epoch + 1) * self.size)] if self.size else [])
        if self.members:
            self.begin(self.members, [[] for _ in self.members])

    def _deal(self, pool: Ranges) -> None:
        quotient, rest = divmod(len(pool), len(self.members))
        length = quotient + (rest > 0 and not self.drop_last)
        self._segments.append(_Segment(self.epoch, self.length, length, pool, []))

    @property
    def length(self) -> int:
        """The number of entries of each sequence."""
        return self._segments[-1].first + self._segments[-1].length if self._segments else 0

    @property
    def dropped(self) -> int:
        """How many positions are left over to no member, with `drop_last`."""
        return sum(max(len(one.pool) - one.length * len(self.members), 0) for one in self._segments)

    def end(self, epoch: int, cursor: int) -> int:
        """Returns where a pass ends in a sequence that begins at `cursor` in this epoch."""
        if cursor < self.pause:
            return self.pause
        return max((one.first + one.length for one in self._segments if one.epoch <= epoch), default=0)

    def at(self, place: int, number: int) -> int:
        """Returns an entry of the sequence of a member: a position, or a negative number."""
        for segment in reversed(self._segments):
            if segment.first <= number:
                return self._entry(segment, place, number - segment.first)
        raise IndexError(number)

    def epoch_of(self, number: int) -> int:
        """Returns the epoch in which an entry was dealt out."""
        return next(one.epoch for one in reversed(self._segments) if one.first <= number)

    def _entry(self, segment: _Segment, place: int, number: int) -> int:
        if segment.rows:
            return segment.rows[place][number]
        at = number * len(self.members) + place
        return segment.pool.at(at) if at < len(segment.pool) else len(segment.pool) - at - 1

    def commit(self, counts: Mapping[Hashable, int]) -> None:
        """Commits the next so many entries of members. ValueError: one has not as many."""
        for place, member in enumerate(self.members):
            count = counts.get(member, 0)
            if not 0 <= count <= self.length - self.taken[place]:
                raise ValueError(f"member {member} cannot commit {count} of {self.length - self.taken[place]} samples")
            self.taken[place] += count

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """What `load` takes: plain values. What is in flight is not in it."""
        return {"size": self.size, "epoch": self.epoch, "left": [[start, stop] for start, stop in self.left.runs]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads a state; there are no members then. ValueError: it is of another number of samples."""
        if state["size"] != self.size:
            raise ValueError(f"the state is of {state['size']} samples, and the data set has {self.size}")
        runs: list[Run] = [(start, stop) for start, stop in state["left"]]
        self._left = Ranges(runs)
        self.epoch = state["epoch"]
        self.members, self.taken, self._folded, self._segments, self.pause = (), [], [], [], 0

    def digest(self) -> int:
        """Returns a number that differs where ledgers differ."""
        return zlib.crc32(repr(self.state()).encode())
