"""What peers do, step by step: the same on all of them, from the seed and the number of the step. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pccl.stress.content import DTYPES, LEAST_COUNT

STEP_KINDS = {"reduce": 120, "diloco": 40, "sync": 20, "order": 1}
"""How often each comes."""
WAYS = {"plain": 3, "async": 3, "retry": 2}
SIZES = (1 / 1024, 1.0)
"""Elements of an op, as shares of the largest."""
QUANTIZED = {"": 6, "MIN_MAX": 1, "ZERO_POINT_SCALE": 1}
IMPATIENT = {0.0: 4, 0.001: 1, 0.02: 1}
MOST_OPS = 6
MOST_INNER_STEPS = 4


@dataclass(frozen=True)
class OpPlan:
    """One reduce; its place in the step is its tag."""

    dtype: str
    count: int
    in_place: bool
    shift: int  # of the pattern
    quantized: str = ""  # the algorithm: then every process's elements are all alike, for which it is exact


@dataclass(frozen=True)
class StepPlan:
    """One step.

    "reduce" (sums), "diloco" (inner steps, then an averaged delta), "sync" (of the shared state) or "order" (optimize_topology).
    """

    kind: str
    way: str  # of the reduces: one after another, all in flight at once, or all_reduce_multiple_with_retry
    ops: tuple[OpPlan, ...]
    inner: int = 0  # steps, a power of two
    in_flight: int = 4
    timeout: float = 0.0  # of each call, which is repeated until it is done; 0: none


def plan_step(seed: int, step: int, elements: int) -> StepPlan:
    """What is done in this step."""
    rng = random.Random(f"step {seed} {step}")
    kind = rng.choices(list(STEP_KINDS), list(STEP_KINDS.values()))[0]
    timeout = rng.choices(list(IMPATIENT), list(IMPATIENT.values()))[0]
    if kind in ("sync", "order"):
        return StepPlan(kind, "plain", (), timeout=timeout)
    if kind == "diloco":
        # as large as the state: every element of it moves
        op = OpPlan("float64", state_count(elements), rng.random() < 0.5, rng.getrandbits(30))
        return StepPlan(kind, "plain", (op,), inner=2 ** rng.randint(0, MOST_INNER_STEPS.bit_length() - 1), timeout=timeout)
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    ops = tuple(_draw_op(rng, elements) for _ in range(rng.randint(1, MOST_OPS)))
    return StepPlan(kind, way, ops, in_flight=rng.randint(1, MOST_OPS), timeout=timeout)


def state_count(elements: int) -> int:
    """Elements of the outer parameters, and of their momentum."""
    return max(LEAST_COUNT, elements // 4)


def _draw_op(rng: random.Random, elements: int) -> OpPlan:
    low, high = (math.log(share) for share in SIZES)
    count = max(LEAST_COUNT, round(elements * math.exp(rng.uniform(low, high))))
    quantized = rng.choices(list(QUANTIZED), list(QUANTIZED.values()))[0]
    dtype = "float64" if quantized else rng.choice(DTYPES)
    return OpPlan(dtype, count, rng.random() < 0.6, rng.getrandbits(30), quantized)
