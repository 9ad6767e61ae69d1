"""Buffers whose sums tell who is in them: what is planted in them is found."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")

import numpy as np
from stress.content import CODES, DTYPES, LEAST_COUNT, Constants, Pattern, codes_in


def total(pattern, codes, count, shift):
    result = np.zeros(count, pattern.dtype)
    for code in codes:
        result += pattern.fill(np.empty(count, pattern.dtype), code, shift)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [LEAST_COUNT, 9, 1000, 20_001])
def test_a_sum_tells_who_is_in_it(dtype, count):
    pattern = Pattern(dtype)
    rng = random.Random(count)
    for _ in range(8):
        codes = rng.sample(range(CODES), rng.randint(1, 12))
        shift = rng.getrandbits(30)
        reading = pattern.read(total(pattern, codes, count, shift), shift)
        assert reading.fault == ""
        assert codes_in(reading.who) == sorted(codes)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("members", [2, 3, 5, 7])
def test_an_average_tells_who_is_in_it(dtype, members):
    pattern = Pattern(dtype)
    average = total(pattern, range(members), 5000, 17) / np.dtype(dtype).type(members)
    assert pattern.read(average, 17, members).who == (1 << members) - 1
    assert pattern.read(average, 17, members).fault == ""
    assert pattern.read(average, 17, members + 1).fault != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_piece_of_a_sum_tells_who_is_in_it(dtype):
    pattern = Pattern(dtype)
    first, last = total(pattern, [1, 7, 30], 5000, 23), total(pattern, [1, 30], 5000, 23)
    for start in (1024, 1027, 4992):
        mixed = np.concatenate([first[:start], last[start:]])
        assert codes_in(pattern.read(mixed[:start], 23).who) == [1, 7, 30]
        assert pattern.read(mixed[start:], 23, start=start) == pattern.read(last, 23)
        assert pattern.read(mixed[start:], 23, start=start + 1).fault != ""
        assert pattern.read(mixed, 23).fault != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_everyone_at_once_is_exact(dtype):
    pattern = Pattern(dtype)
    reading = pattern.read(total(pattern, range(CODES), 100, 3), 3)
    assert reading.fault == ""
    assert reading.who == (1 << CODES) - 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda good, stale, twice: np.concatenate([good[:700], good[700:701] + 1, good[701:]]), id="one element"),
        pytest.param(lambda good, stale, twice: np.roll(good, 512), id="shifted"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:512], stale[512:]]), id="stale piece"),
        pytest.param(lambda good, stale, twice: stale, id="stale"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:512], twice[512:]]), id="a piece added twice"),
        pytest.param(lambda good, stale, twice: twice, id="added twice"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:-32], good[-32:] * 0]), id="the end missing"),
    ],
)
def test_planted_errors_are_read(dtype, harm):
    pattern = Pattern(dtype)
    codes = [0, 5, 9]
    good = total(pattern, codes, 2000, 40)
    stale = total(pattern, codes, 2000, 41)
    twice = good + pattern.fill(np.empty_like(good), 5, 40)
    assert pattern.read(good, 40).fault == ""
    assert pattern.read(harm(good, stale, twice).astype(dtype), 40).fault != ""


def test_constants_tell_who_is_in_them():
    constants = Constants()
    good = total(constants, [3, 31], 50, 0)
    assert codes_in(constants.read(good, 0).who) == [3, 31]
    for wrong in (good + 0.5, good * np.nan, good * 0, np.concatenate([good, good[:1] + 1])):
        assert constants.read(wrong, 0).fault != ""
