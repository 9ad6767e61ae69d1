"""What peers do, the same on all of them, from the seed: step by step, or how they train. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stress import gradient
from stress.content import CODES, DTYPES, LEAST_COUNT

MIXED = "mixed"
TRAININGS = ("diloco", "async", "streaming")
WORKLOADS = (MIXED, *TRAININGS)

STEP_KINDS = {"reduce": 120, "average": 40, "sync": 20, "order": 1}
"""How often each comes."""
WAYS = {"plain": 3, "async": 3, "multiple": 2, "resume": 1}
SIZES = (1 / 1024, 1.0)
"""Elements of an op, as shares of those asked for."""
RESUMED_SIZES = (1 / 4, 32.0)
"""Of one that goes on after a death: those of SEGMENTED_MIN_BYTES and more are divided into segments."""
SEGMENTED_MIN_BYTES = 4 << 20
"""In a stress run. Otherwise it is 32 MiB, which would take long."""
QUANTIZED = {"": 6, "MIN_MAX": 1, "ZERO_POINT_SCALE": 1}
IMPATIENT = {0.0: 4, 0.001: 1, 0.02: 1}
MOST_OPS = 6
MOST_RESUMED = 1
AVERAGED = ("float64", "float32")
"""Types whose averages are exact."""
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
    """One step: "reduce", "average" (which the shared state takes up), "sync" (of it) or "order" (optimize_topology)."""

    kind: str
    way: str  # of the reduces: one after another, all at once, all_reduce_multiple_with_retry, or all at once with retry=True
    ops: tuple[OpPlan, ...]
    in_flight: int = 4
    timeout: float = 0.0  # of each call, which is repeated until it is done; 0: none


def plan_step(seed: int, step: int, elements: int) -> StepPlan:
    """What is done in this step."""
    rng = random.Random(f"step {seed} {step}")
    kind = rng.choices(list(STEP_KINDS), list(STEP_KINDS.values()))[0]
    timeout = rng.choices(list(IMPATIENT), list(IMPATIENT.values()))[0]
    if kind in ("sync", "order"):
        return StepPlan(kind, "plain", (), timeout=timeout)
    if kind == "average":
        op = OpPlan("float64", state_count(elements), rng.random() < 0.5, rng.getrandbits(30), average=True)
        return StepPlan(kind, rng.choice(["plain", "resume"]), (op,), timeout=timeout)
    way = rng.choices(list(WAYS), list(WAYS.values()))[0]
    sizes, most = (RESUMED_SIZES, MOST_RESUMED) if way == "resume" else (SIZES, MOST_OPS)
    ops = tuple(_draw_op(rng, elements, sizes) for _ in range(rng.randint(1, most)))
    return StepPlan(kind, way, ops, in_flight=rng.randint(1, MOST_OPS), timeout=timeout)


def most_bytes(elements: int) -> int:
    """That the buffers of one step take."""
    return 2 * ELEMENT_BYTES * round(elements * max(MOST_OPS * SIZES[1], MOST_RESUMED * RESUMED_SIZES[1]))


def state_count(elements: int) -> int:
    """Elements of what is shared."""
    return max(LEAST_COUNT, elements // 4)


def _draw_op(rng: random.Random, elements: int, sizes: tuple[float, float]) -> OpPlan:
    low, high = (math.log(share) for share in sizes)
    count = max(LEAST_COUNT, round(elements * math.exp(rng.uniform(low, high))))
    quantized = rng.choices(list(QUANTIZED), list(QUANTIZED.values()))[0]
    dtype = "float64" if quantized else rng.choice(DTYPES)
    average = dtype in AVERAGED and not quantized and rng.random() < 0.3
    return OpPlan(dtype, count, rng.random() < 0.6, rng.getrandbits(30), quantized, average)


# ---- training by pccl.diloco ----

MODEL_SIZES = ((1 / 64, 1 / 4), (1 / 4, 4.0), (4.0, 6.0))
"""Parameters of a model, as shares of the elements asked for: averaged at once, around the ring, and in segments."""
COMPRESSIONS = {"none": 2, "int8": 1, "int4": 1, "e3m0": 1, "sparse": 1}
BLOCKS = (64, 256, 1024)
MOST_LAYERS = 6
MOST_INNER_STEPS = 5
SYNC_SECONDS = (0.01, 0.1)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, whose peers all have a class of pccl.diloco with the same arguments."""

    method: str  # of TRAININGS
    layers: tuple[int, ...]  # parameters of each
    weighted: bool
    compression: Mapping[str, Any]  # fields of pccl.diloco.Compression
    settings: Mapping[str, Any]  # further arguments of the class

    @property
    def delay(self) -> int:
        """Outer steps by which averages are applied late."""
        return int(self.method == "async")

    @property
    def slack(self) -> gradient.Slack:
        """What the compression takes away: a sum is rounded twice, and what that has left before is in it twice."""
        largest = {"none": 0.0, "int8": 4 / 127, "int4": 4 / 7, "e3m0": 4 / 3, "sparse": 1.0}[self.compression["method"]]
        if self.compression.get("stochastic"):
            largest *= 2
        return gradient.Slack(largest, fit=min(largest, 0.5)) if largest else gradient.Slack()

    def __str__(self) -> str:
        about = {"parameters": sum(self.layers), "weighted": self.weighted, **self.compression, **self.settings}
        return f"{self.method}: " + ", ".join(f"{name} {value}" for name, value in about.items())


def plan_training(workload: str, seed: int, elements: int) -> TrainingPlan:
    """The training of a run."""
    rng = random.Random(f"training {workload} {seed}")
    low, high = (math.log(share) for share in rng.choice(MODEL_SIZES))
    size = round(elements * math.exp(rng.uniform(low, high)))
    every = rng.randint(1, MOST_INNER_STEPS)
    settings: dict[str, Any] = {"sync_every": every, "outer_lr": rng.choice([0.3, 0.7, 1.0]), "peers": rng.randint(1, 2)}
    if rng.random() < 0.25:
        settings["sync_seconds"] = round(rng.uniform(*SYNC_SECONDS), 3)
        if workload != "streaming":  # the others take one of both
            del settings["sync_every"]
    compressions = {name: rate for name, rate in COMPRESSIONS.items() if workload != "streaming" or name != "sparse"}
    compression: dict[str, Any] = {"method": rng.choices(list(compressions), list(compressions.values()))[0]}
    match compression["method"]:
        case "sparse":
            compression["k"] = 4096 // CODES  # all that a peer has to give
        case "int8" | "int4" | "e3m0":
            compression["block"] = rng.choice(BLOCKS)
            compression["stochastic"] = rng.random() < 0.3
            compression["error_feedback"] = rng.random() < 0.8
    if compression["method"] != "sparse":
        settings["outer_momentum"] = rng.choice([0.0, 0.5, 0.9])
    if workload == "async":
        settings["eager"] = rng.choice([0.0, 0.5, 1.0])
    if workload == "streaming":
        settings["fragments"] = rng.randint(1, 4)
        settings["pattern"] = rng.choice(["strided", "sequential", "balanced"])
        settings["overlap"] = rng.randrange(every)
        settings["mixing"] = rng.choice([0.0, 0.25, 0.5])
    layers = _split(rng, size, rng.randint(settings.get("fragments", 1), MOST_LAYERS))
    return TrainingPlan(method=workload, layers=layers, weighted=rng.random() < 0.5, compression=compression, settings=settings)


def _split(rng: random.Random, size: int, count: int) -> tuple[int, ...]:
    """Each is enough to tell who is in its average."""
    ends = [0, *sorted(rng.randint(0, size) for _ in range(count - 1)), size]
    return tuple(max(gradient.LEAST_COUNT, end - begin) for begin, end in itertools.pairwise(ends))
