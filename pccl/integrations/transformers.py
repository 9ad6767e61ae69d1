"""A callback that lets a transformers Trainer survive the loss of processes, and newcomers join it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, trainer_pt_utils
from transformers import trainer as trainer_module

import pccl.distributed
from pccl.integrations import accelerate
from pccl.integrations._data import elastic_samplers
from pccl.integrations._retry import retry_after_loss

_GATHERS = ("nested_gather", "distributed_concat", "distributed_broadcast_scalars")
_OWN = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks", "train_batch_size")
"""Fields of a TrainerState that belong to one process, or cannot be sent."""


class ElasticCallback(TrainerCallback):  # type: ignore[misc]  # without types
    """Keeps a Trainer's ranks right after a loss, lets newcomers join, and moves the role of rank 0.

        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.add_callback(ElasticCallback(trainer))
        trainer.train()

    Members are synchronised before each optimizer step. A newcomer gets the model, the optimizer, the schedule and the
    TrainerState from the members, and goes on at their step. Needs the backend "pccl".

    ValueError, when training begins: logging, evaluation or saving is set to "epoch", which comes at other steps for a newcomer.
    """

    def __init__(self, trainer: Trainer, *, every: int = 1) -> None:
        """Attaches to `trainer`. `every`: newcomers are let in before each so many optimizer steps only."""
        self._trainer = trainer
        self._every = every
        self._elastic: pccl.distributed.Elastic | None = None
        self._get_batch_samples: Callable[..., Any] | None = None
        for module in (trainer_pt_utils, trainer_module):
            for name in _GATHERS:
                if hasattr(module, name):
                    setattr(module, name, retry_after_loss(getattr(module, name)))
        accelerate.follow(trainer.accelerator)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Wraps the Trainer's access to its data, which comes before all collectives of a step."""
        for name in ("logging_strategy", "eval_strategy", "save_strategy"):
            if str(getattr(getattr(args, name), "value", getattr(args, name))) == "epoch":
                raise ValueError(f'TrainingArguments: {name}="epoch" cannot be used with newcomers; use "steps"')
        wrapped = self._trainer
        self._elastic = pccl.distributed.Elastic(
            wrapped.model_wrapped,
            wrapped.optimizer,
            every=self._every,
            trainer=_State(wrapped),
            schedule=wrapped.lr_scheduler,
            **elastic_samplers(kwargs.get("train_dataloader")),
        )
        self._get_batch_samples = original = wrapped.get_batch_samples

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            self.sync()
            return original(*args, **kwargs)

        wrapped.get_batch_samples = get_batch_samples

    def sync(self) -> bool:
        """Lets newcomers in; at a newcomer, joins. Returns True if the membership changed since the last call."""
        assert self._elastic is not None, "training has not started"
        changed = self._elastic.sync()
        if changed:
            accelerate.update()
            state = self._trainer.state
            state.is_world_process_zero = self._trainer.is_world_process_zero()
        return changed

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Restores the Trainer's own method."""
        if self._get_batch_samples is not None:
            self._trainer.get_batch_samples = self._get_batch_samples
            self._get_batch_samples = self._elastic = None


def adapt() -> None:
    """Attaches an ElasticCallback to each Trainer that is made from now on, where the process group is of pccl."""
    made = Trainer.__init__

    @functools.wraps(made)
    def init(self: Trainer, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        attached = any(isinstance(one, ElasticCallback) for one in self.callback_handler.callbacks)
        if not attached and isinstance(dist.GroupMember.WORLD, pccl.distributed.ProcessGroup):
            self.add_callback(ElasticCallback(self))

    Trainer.__init__ = init


class _State:
    """The progress of a Trainer, as Elastic hands it to a newcomer."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        fields = {key: value for key, value in dataclasses.asdict(self._trainer.state).items() if key not in _OWN}
        return {"fields": fields, "last_logged": self._trainer._globalstep_last_logged}

    def load_state_dict(self, told: dict[str, Any]) -> None:
        for key, value in told["fields"].items():
            setattr(self._trainer.state, key, value)
        self._trainer._globalstep_last_logged = told["last_logged"]
