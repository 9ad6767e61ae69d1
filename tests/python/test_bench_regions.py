"""The matrix of sites of bench/clouds.py, what its links allow, and when a rate is steady."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import regions  # of bench
from harness import BenchError
from regions import Span


def test_a_matrix():
    matrix = regions.read("""
              Here   There
        There  3/20
        Far  130/1.5  90/2
    """)
    assert matrix.names == ["Here", "There", "Far"]
    assert {pair: (2 * link.delay_ms, link.megabits) for pair, link in matrix.links.items()} == {
        (0, 1): (3, 20),
        (0, 2): (130, 1.5),
        (1, 2): (90, 2),
    }


@pytest.mark.parametrize("text", [regions.CLOUD, regions.PAIR])
def test_the_matrices_of_the_benchmark(text):
    matrix = regions.read(text)
    assert set(matrix.links) == set(itertools.combinations(range(len(matrix.names)), 2))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "two sites at least"),
        ("A", "two sites at least"),
        ("A\nB 1/2\nC 1/2 1/2", "the columns of a matrix"),
        ("A B\nB 1/2\nB 1/2 1/2", "the columns of a matrix"),
        ("A B\nB 1/2\nC 1/2", "C has 1 links in place of 2"),
        ("A\nB 1", "'1' is not MS/MBIT"),
        ("A\nB x/1", "'x/1' is not MS/MBIT"),
        ("A\nB 1/0", "'1/0' is not MS/MBIT"),
        ("A\nB -1/1", "'-1/1' is not MS/MBIT"),
        ("A\nB 1/nan", "'1/nan' is not MS/MBIT"),
        ("A\nB inf/1", "'inf/1' is not MS/MBIT"),
    ],
)
def test_what_is_no_matrix(text, words):
    with pytest.raises(BenchError, match=words):
        regions.read(text)


def test_bounds_of_equal_links():
    for count in range(2, 6):
        rates = dict.fromkeys(itertools.combinations(range(count), 2), 10.0)
        assert regions.bound(count, rates) == pytest.approx(10 * count / 2)
        assert regions.bound_by_shares(count, rates) == pytest.approx(10 * count / 2)


def test_bounds_of_a_thin_link():
    """The tree around site 1 does without the link between 0 and 2, which shares of 0 and 2 need."""
    rates = {(0, 1): 10.0, (1, 2): 10.0, (0, 2): 0.0}
    assert regions.bound(3, rates) == pytest.approx(10)
    assert regions.bound_by_shares(3, rates) == pytest.approx(10)
    four = {(0, 1): 10.0, (1, 2): 10.0, (2, 3): 10.0, (0, 2): 0.0, (1, 3): 0.0, (0, 3): 0.0}
    assert regions.bound(4, four) == pytest.approx(10)
    assert regions.bound_by_shares(4, four) == pytest.approx(0)


def test_shares_never_beat_the_bound():
    rng = random.Random(1)
    for _ in range(20):
        count = rng.randint(2, 5)
        rates = {pair: rng.uniform(0, 50) for pair in itertools.combinations(range(count), 2)}
        assert regions.bound_by_shares(count, rates) <= regions.bound(count, rates) + 1e-6


def spans(*rates: float) -> list[Span]:
    """Of a second each."""
    return [Span(second, second + 1, rate) for second, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "seconds"),
    [
        ((10, 10, 10, 10), 0.0),
        ((20, 10, 10, 10), 0.5),
        ((20, 14, 10.9, 9.1, 10, 10), 1.5),
        ((20, 10, 14, 10, 10, 10, 10), 2.5),
        ((10, 10, 10, 10, 10, 20), None),
    ],
)
def test_seconds_to_steady(rates, seconds):
    assert regions.seconds_to_steady(spans(*rates), change=0.5) == seconds


def test_averages_weigh_by_time():
    made = regions.averaged([Span(0, 1, 10), Span(1, 4, 30), Span(5, 6, 50)], 2)
    assert made == [Span(0, 4, 25), Span(1, 6, 35)]
    assert regions.averaged(spans(1, 2), 3) == []
