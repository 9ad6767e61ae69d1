"""Lets restarted processes join a run of a DeepSpeed script that calls nothing of pccl."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from deepspeed.runtime.engine import DeepSpeedEngine
from torch.optim import Optimizer

from pccl.integrations import _replay

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


def adapt() -> None:
    """With fixed membership, newcomers take a lost rank, and get to the place of the others in the script (docs/fixed.md).

    ValueError, when an engine is made: its optimizer shares out its state over the ranks, or keeps copies of the parameters.
    """
    run = _replay.installed()

    def note(engine: Any) -> None:
        if run.is_fixed():
            _require_whole(engine)
        run.add_model(engine.module)
        run.add_other(_Counters(engine))

    def step(original: Any) -> Callable[..., Any]:
        def step_engine(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_gradient_accumulation_boundary():
                return run.step(lambda: original(self, *args, **kwargs), lambda: _count(self, boundary=True))
            return _count(self, boundary=False) if run.replays() else original(self, *args, **kwargs)

        return step_engine

    _replay.after(DeepSpeedEngine, "__init__", note)
    _replay.replay_forward(run, DeepSpeedEngine)
    _replay.instead(run, DeepSpeedEngine, "backward", lambda self, loss, *args, **kwargs: loss)
    _replay.replace(DeepSpeedEngine, "step", step)
    _replay.silence(run, DeepSpeedEngine, "save_checkpoint", "save_16bit_model")


def _require_whole(engine: Any) -> None:
    if not isinstance(engine.optimizer, Optimizer):
        name = type(engine.optimizer).__name__
        raise ValueError(
            f"a replacement cannot get the state of DeepSpeed's {name} from the other ranks: each holds a part of it, or copies "
            "of the parameters beside the model; use ZeRO stage 0 without fp16 or bf16, or leave out --adapt deepspeed"
        )


def _count(engine: Any, *, boundary: bool) -> None:
    """Does what a step of the engine does to its counters."""
    engine.micro_steps += 1
    if boundary:
        engine.global_steps += 1
        engine.global_samples += engine.train_batch_size()


class _Counters:
    """The counters of an engine, and its schedule, which need not be one of torch."""

    def __init__(self, engine: Any) -> None:
        self._engine = weakref.ref(engine)

    def state_dict(self) -> dict[str, Any]:
        engine = self._engine()
        schedule = getattr(engine, "lr_scheduler", None)
        counters = {name: getattr(engine, name) for name in _COUNTERS}
        return {"counters": counters, "schedule": None if schedule is None else schedule.state_dict()}

    def load_state_dict(self, told: dict[str, Any]) -> None:
        engine: Any = self._engine()
        for name, value in told["counters"].items():
            setattr(engine, name, value)
        if told["schedule"] is not None:
            engine.lr_scheduler.load_state_dict(told["schedule"])
