"""The ledger of samples, and the sets of ranges in it, against plain sets and lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pccl.data._ledger import Ledger
from pccl.data._ranges import Ranges, runs_of

numbers = st.sets(st.integers(0, 40))


@given(numbers, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12))), st.integers(0, 45), st.integers(0, 45))
def test_ranges_are_a_set(members, removed, first, last):
    ranges = Ranges(runs_of(members))
    for start, size in removed:
        ranges.remove((start, start + size))
        members = members - set(range(start, start + size))
    left = sorted(members)
    assert list(ranges) == left
    assert len(ranges) == len(left)
    assert [ranges.at(place) for place in range(len(left))] == left
    assert [number in ranges for number in range(50)] == [number in members for number in range(50)]
    first, last = min(first, len(left)), min(last, len(left))
    assert list(Ranges(ranges.slice(first, last))) == left[first:last]
    ranges.add((50, 53))
    assert list(ranges) == [*left, 50, 51, 52]
    assert Ranges(ranges.runs) == ranges == ranges.copy()


@pytest.mark.parametrize("runs", [[(3, 3)], [(3, 2)], [(0, 4), (3, 5)], [(4, 5), (0, 1)]])
def test_ranges_that_are_none_are_refused(runs):
    with pytest.raises(ValueError, match="sorted"):
        Ranges(runs)


class Plain:
    """What the ledger is to do, without any thought of time and memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = set(range(size))
        self.epoch = 0
        self.rows: list[list[int]] = []
        self.taken: list[int] = []

    def begin(self, count: int, flights: list[list[int]]) -> None:
        claimed: set[int] = set()
        self.rows = []
        for told in flights:
            row = []
            for one in told:
                row.append(one if one in self.left and one not in claimed else None)
                claimed.add(one)
            self.rows.append(row)
        self.taken = [0] * count
        self.deal(sorted(self.left - claimed))

    def deal(self, pool: list[int]) -> None:
        while pool:
            shortest = min(len(row) for row in self.rows)
            for row in self.rows:
                if len(row) == shortest:
                    row.append(pool.pop(0) if pool else None)
        most = max(len(row) for row in self.rows)
        for row in self.rows:
            row += [None] * (most - len(row))

    def extend(self) -> None:
        self.epoch += 1
        new = range(self.epoch * self.size, (self.epoch + 1) * self.size)
        self.left |= set(new)
        self.deal(list(new))

    def commit(self, counts: dict[int, int]) -> None:
        for place, count in counts.items():
            self.left -= set(self.rows[place][self.taken[place] : self.taken[place] + count])
            self.taken[place] += count


@given(st.integers(0, 30), st.data())
def test_the_ledger_is_what_it_should_be(size, data):
    ledger, plain = Ledger(size), Plain(size)
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(1, 4))
        flights = [data.draw(st.lists(st.integers(-1, 2 * size), max_size=4)) for _ in range(count)]
        ledger.begin(range(count), flights)
        plain.begin(count, flights)
        for _ in range(data.draw(st.integers(0, 4))):
            if plain.epoch == 0 and data.draw(st.booleans()):
                ledger.extend(1)
                plain.extend()
            length = ledger.length
            assert {len(row) for row in plain.rows} == {length}
            found = [[ledger.at(place, number) for number in range(length)] for place in range(count)]
            assert [[one if one >= 0 else None for one in row] for row in found] == plain.rows
            counts = {place: data.draw(st.integers(0, length - plain.taken[place])) for place in range(count)}
            if data.draw(st.booleans()):  # in step, as it mostly is
                counts = dict.fromkeys(counts, min(counts.values()))
            ledger.commit(counts)
            plain.commit(counts)
            assert set(ledger.left) == plain.left
        again = Ledger(size)
        again.load(ledger.state())
        assert again.digest() == ledger.digest()
        assert again.left == ledger.left


def test_commits_of_more_than_there_is_are_refused():
    ledger = Ledger(10)
    ledger.begin(["a", "b"], [[], []])
    with pytest.raises(ValueError, match="member b cannot commit 6 of 5 samples"):
        ledger.commit({"b": 6})
    with pytest.raises(ValueError, match="member a cannot commit -1"):
        ledger.commit({"a": -1})


def test_a_state_of_other_data_is_refused():
    with pytest.raises(ValueError, match="10 samples, and the data set has 11"):
        Ledger(11).load(Ledger(10).state())


def test_a_state_is_small_after_many_steps_of_many_members():
    ledger = Ledger(1_000_000)
    ledger.begin(range(64), [[] for _ in range(64)])
    for _ in range(50):
        ledger.commit(dict.fromkeys(range(64), 32))
    ledger.commit({3: 5})
    assert ledger.left.runs[0][0] == 50 * 64 * 32
    assert len(ledger.state()["left"]) <= 7
