"""Pseudo-gradients whose average tells who is in it, also through the library's codecs: what is planted in them is found."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")

import numpy as np
from stress.content import CODES, codes_in
from stress.gradient import LEAST_COUNT, Gradient, Slack
from stress.workload import TrainingPlan

from pccl._peer import sparse

SLACK = Slack(rounding=1e-6)


def average(gradient, codes, number):
    weights = [gradient.weight(code) for code in codes]
    total = sum(weight * gradient.of(code, number).astype(np.float64) for code, weight in zip(codes, weights, strict=True))
    return total / sum(weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [LEAST_COUNT, 5003, 70_000])
def test_an_average_tells_who_is_in_it(size, weighted):
    gradient = Gradient(size, weighted=weighted)
    rng = random.Random(size)
    for number in range(8):
        codes = sorted(rng.sample(range(CODES), rng.randint(1, 12)))
        reading = gradient.read(average(gradient, codes, number), number, SLACK)
        assert reading.fault == ""
        assert codes_in(reading.who) == codes


def test_a_piece_of_an_average_tells_who_is_in_it():
    gradient = Gradient(9000, weighted=True)
    first, last = average(gradient, [1, 7, 30], 5), average(gradient, [1, 30], 5)
    for start in (4096, 4099):
        mixed = np.concatenate([first[:start], last[start:]])
        assert codes_in(gradient.read(mixed[:start], 5, SLACK).who) == [1, 7, 30]
        assert gradient.read(mixed[start:], 5, SLACK, start) == gradient.read(last, 5, SLACK)
        assert gradient.read(mixed[start:-1], 5, SLACK, start + 1).fault != ""
        assert gradient.read(mixed, 5, SLACK).fault != ""


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda good, stale, twice: np.concatenate([good[:700], good[700:701] + 1e-4, good[701:]]), id="one element"),
        pytest.param(lambda good, stale, twice: np.roll(good, CODES), id="shifted"),
        pytest.param(lambda good, stale, twice: np.concatenate([good[:512], stale[512:]]), id="stale piece"),
        pytest.param(lambda good, stale, twice: stale, id="stale"),
        pytest.param(lambda good, stale, twice: twice, id="added twice"),
        pytest.param(lambda good, stale, twice: good * 3 / 2, id="divided by another number"),
        pytest.param(lambda good, stale, twice: good * np.nan, id="not a number"),
    ],
)
def test_planted_errors_are_read(weighted, harm):
    gradient = Gradient(4096, weighted=weighted)
    codes = [0, 5, 9]
    good, stale = average(gradient, codes, 3), average(gradient, codes, 2)
    twice = good + gradient.of(5, 3) / sum(gradient.weight(code) for code in codes)
    assert gradient.read(good, 3, SLACK).fault == ""
    assert gradient.read(harm(good, stale, twice), 3, SLACK).fault != ""


def test_an_average_of_nothing_is_nobodys():
    gradient = Gradient(4096, weighted=True)
    assert gradient.read(np.zeros(4096), 3, SLACK) == gradient.read(np.zeros(4096), 4, SLACK)
    assert gradient.read(np.zeros(4096), 3, SLACK).who == 0


def test_sparse_forms_tell_who_is_in_them():
    plan = TrainingPlan(method="diloco", layers=(9000,), weighted=True, compression={"method": "sparse"}, settings={})
    gradient = Gradient(9000, weighted=True)
    codes = [2, 3, 31]
    residuals = {code: np.zeros(9000, np.float32) for code in codes}
    for number in range(20):
        total, weights = np.zeros(9000, np.float32), sum(gradient.weight(code) for code in codes)
        for code in codes:
            residual = residuals[code]
            form = sparse.encode(gradient.of(code, number), k=128, residual=residual, decay=0.95, residual_out=residual)
            sparse.decode_add(form, total, k=128, weight=gradient.weight(code) / weights)
        reading = gradient.read(total.astype(np.float64), number, plan.slack)
        assert reading.fault == ""
        assert codes_in(reading.who) == codes
