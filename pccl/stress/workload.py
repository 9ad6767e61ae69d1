"""What peers do, step by step: the same on all of them, from the seed and the number of the step. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from pccl.stress.content import DTYPES, LEAST_COUNT

STEP_KINDS = {"reduce": 120, "diloco": 40, "sync": 20, "order": 1}
"""How often each comes."""
WAYS = {"plain": 3, "async": 3, "multiple": 2, "resume": 1}
SIZES = (1 / 1024, 1.0)
"""Elements of an op, as shares of those asked for."""
RESUMED_SIZES = (1 / 4, 32.0)
"""Of one that goes on after a death: large ones are divided into segments."""
QUANTIZED = {"": 6, "MIN_MAX": 1, "ZERO_POINT_SCALE": 1}
IMPATIENT = {0.0: 4, 0.001: 1, 0.02: 1}
MOST_OPS = 6
MOST_RESUMED = 1
AVERAGED = ("float64", "float32")
"""Types whose averages are exact."""
MOST_INNER_STEPS = 4
ELEMENT_BYTES = 8  # of the largest type


@dataclass(frozen=True)
class OpPlan:
    """One reduce; its place in the step is its tag."""

    dtype: str
    count: int
    in_place: bool
    shift: int  # of the pattern
    quantized: str = ""  # the algorithm: then every process's elements are all alike, for which it is exact
    average: bool = False


@dataclass(frozen=True)
class StepPlan:
    """One step.

    "reduce" (sums), "diloco" (inner steps, then an averaged delta), "sync" (of the shared state) or "order" (optimize_topology).
    """

    kind: str
    way: str  # of the reduces: one after another, all at once, all_reduce_multiple_with_retry, or all at once with retry=True
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
        op = OpPlan("float64", state_count(elements), rng.random() < 0.5, rng.getrandbits(30), average=True)
        way = rng.choice(["plain", "resume"])
        return StepPlan(kind, way, (op,), inner=2 ** rng.randint(0, MOST_INNER_STEPS.bit_length() - 1), timeout=timeout)
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    sizes, most = (RESUMED_SIZES, MOST_RESUMED) if way == "resume" else (SIZES, MOST_OPS)
    ops = tuple(_draw_op(rng, elements, sizes) for _ in range(rng.randint(1, most)))
    return StepPlan(kind, way, ops, in_flight=rng.randint(1, MOST_OPS), timeout=timeout)


def most_bytes(elements: int) -> int:
    """That the buffers of one step take."""
    return 2 * ELEMENT_BYTES * round(elements * max(MOST_OPS * SIZES[1], MOST_RESUMED * RESUMED_SIZES[1]))


def state_count(elements: int) -> int:
    """Elements of the outer parameters, and of their momentum."""
    return max(LEAST_COUNT, elements // 4)


def _draw_op(rng: random.Random, elements: int, sizes: tuple[float, float]) -> OpPlan:
    low, high = (math.log(share) for share in sizes)
    count = max(LEAST_COUNT, round(elements * math.exp(rng.uniform(low, high))))
    quantized = rng.choices(list(QUANTIZED), list(QUANTIZED.values()))[0]
    dtype = "float64" if quantized else rng.choice(DTYPES)
    average = dtype in AVERAGED and not quantized and rng.random() < 0.3
    return OpPlan(dtype, count, rng.random() < 0.6, rng.getrandbits(30), quantized, average)
