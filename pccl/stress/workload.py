"""What peers do, step by step: the same on all of them, from the seed and the number of the step. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pccl.stress.content import DTYPES, LEAST_COUNT

STEP_KINDS = {"reduce": 12, "diloco": 4, "sync": 2}
"""How often each comes."""
WAYS = {"plain": 3, "async": 3, "retry": 2}
SIZES = (1 / 1024, 1.0)
"""Elements of an op, as shares of the largest."""
MOST_OPS = 6
MOST_INNER_STEPS = 4


@dataclass(frozen=True)
class OpPlan:
    """One reduce; its place in the step is its tag."""

    dtype: str
    count: int
    in_place: bool
    shift: int  # of the pattern


@dataclass(frozen=True)
class StepPlan:
    """One step: "reduce" (sums), "diloco" (inner steps, then an averaged delta) or "sync" (of the shared state)."""

    kind: str
    way: str  # of the reduces: one after another, all in flight at once, or all_reduce_multiple_with_retry
    ops: tuple[OpPlan, ...]
    inner: int = 0  # steps, a power of two
    in_flight: int = 4


def plan_step(seed: int, step: int, elements: int) -> StepPlan:
    """What is done in this step."""
    rng = random.Random(f"step {seed} {step}")
    kind = rng.choices(list(STEP_KINDS), list(STEP_KINDS.values()))[0]
    if kind == "sync":
        return StepPlan(kind, "plain", ())
    if kind == "diloco":
        # as large as the state: every element of it moves
        op = OpPlan("float64", state_count(elements), rng.random() < 0.5, rng.getrandbits(30))
        return StepPlan(kind, "plain", (op,), inner=2 ** rng.randint(0, MOST_INNER_STEPS.bit_length() - 1))
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    ops = tuple(_draw_op(rng, elements) for _ in range(rng.randint(1, MOST_OPS)))
    return StepPlan(kind, way, ops, in_flight=rng.randint(1, MOST_OPS))


def state_count(elements: int) -> int:
    """Elements of the outer parameters, and of their momentum."""
    return max(LEAST_COUNT, elements // 4)


def _draw_op(rng: random.Random, elements: int) -> OpPlan:
    low, high = (math.log(share) for share in SIZES)
    count = max(LEAST_COUNT, round(elements * math.exp(rng.uniform(low, high))))
    return OpPlan(rng.choice(DTYPES), count, rng.random() < 0.6, rng.getrandbits(30))
