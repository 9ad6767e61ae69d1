"""What peers of a stress run do, step by step."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")


import numpy as np
from stress.content import DTYPES, LEAST_COUNT
from stress.gradient import LEAST_COUNT as LEAST_PARAMETERS
from stress.workload import (
    COMPRESSIONS,
    IMPATIENT,
    QUANTIZED,
    SEGMENTED_MIN_BYTES,
    STEP_KINDS,
    TRAININGS,
    WAYS,
    plan_step,
    plan_training,
)


def test_all_peers_plan_the_same():
    large = [plan_step(3, step, 1 << 18) for step in range(500)]
    plans = [plan_step(3, step, 10_000) for step in range(500)]
    assert plans == [plan_step(3, step, 10_000) for step in range(500)]
    assert plans != [plan_step(4, step, 10_000) for step in range(500)]
    assert {plan.kind for plan in plans} == set(STEP_KINDS)
    assert {plan.way for plan in plans if plan.kind == "reduce"} == set(WAYS)
    assert {op.dtype for plan in plans for op in plan.ops} == set(DTYPES)
    assert max(op.count for plan in plans for op in plan.ops if plan.way == "resume") > 4 * 10_000
    assert {op.average for plan in plans for op in plan.ops if plan.way == "resume"} == {True, False}
    assert {op.quantized for plan in plans for op in plan.ops} == set(QUANTIZED)
    assert {plan.timeout for plan in plans} == set(IMPATIENT)
    assert all(LEAST_COUNT <= op.count <= 10_000 for plan in plans for op in plan.ops if plan.way != "resume")
    assert any(op.count * np.dtype(op.dtype).itemsize >= SEGMENTED_MIN_BYTES for plan in large for op in plan.ops)


@pytest.mark.parametrize("workload", TRAININGS)
def test_trainings_have_all_settings(workload):
    plans = [plan_training(workload, seed, 1 << 18) for seed in range(300)]
    assert plans == [plan_training(workload, seed, 1 << 18) for seed in range(300)]
    assert {plan.compression["method"] for plan in plans} == set(COMPRESSIONS) - (
        {"sparse"} if workload == "streaming" else set()
    )
    assert {plan.weighted for plan in plans} == {True, False}
    assert {plan.settings["peers"] for plan in plans} == {1, 2}
    assert {"sync_seconds" in plan.settings for plan in plans} == {True, False}
    assert all(min(plan.layers) >= LEAST_PARAMETERS for plan in plans)
    assert all(len(plan.layers) >= plan.settings.get("fragments", 1) for plan in plans)
    sizes = [4 * sum(plan.layers) for plan in plans]
    assert min(sizes) < 1 << 17
    assert sum(size >= SEGMENTED_MIN_BYTES for size in sizes) > 50
