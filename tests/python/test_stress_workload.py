"""What peers of a stress run do, step by step."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")


from pccl.stress.content import DTYPES, LEAST_COUNT
from pccl.stress.workload import IMPATIENT, QUANTIZED, STEP_KINDS, WAYS, plan_step


def test_all_peers_plan_the_same():
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
    assert all(plan.inner in (1, 2, 4) for plan in plans if plan.kind == "diloco")
