"""A callback that lets a transformers Trainer survive the loss of processes, and newcomers join it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, trainer_pt_utils
from transformers import trainer as trainer_module
from transformers.trainer_callback import ExportableState

import pccl.distributed
from pccl.distributed._group import FIXED
from pccl.integrations import _replay, accelerate
from pccl.integrations._data import elastic_samplers
from pccl.integrations._retry import retry_all_after_loss

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
        retry_all_after_loss(trainer_pt_utils, *_GATHERS)
        retry_all_after_loss(trainer_module, *_GATHERS)
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
    """Lets restarted processes join each Trainer that is made from now on, where the process group is of pccl.

    With fixed membership they run the script to the place of the others (docs/fixed.md), else there is an ElasticCallback.
    """
    run = accelerate.adapt()
    run.needs_fixed = False

    def follow(trainer: Trainer) -> None:
        attached = any(isinstance(one, ElasticCallback) for one in trainer.callback_handler.callbacks)
        group = dist.GroupMember.WORLD
        if attached or not isinstance(group, pccl.distributed.ProcessGroup):
            return
        if group.membership == FIXED:
            run.add_other(_Loop(trainer))
        else:
            trainer.add_callback(ElasticCallback(trainer))

    _replay.after(Trainer, "__init__", follow)
    _replay.silence(run, Trainer, "_maybe_log_save_evaluate", "save_model")


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


class _Loop(_State):
    """The progress of a Trainer that was not logged yet as well, and its callbacks that have a state."""

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        losses = getattr(trainer, "_tr_loss", None), getattr(trainer, "_total_loss_scalar", 0.0)
        return {**super().state_dict(), "losses": losses, "callbacks": [one.state()["attributes"] for one in self._callbacks()]}

    def load_state_dict(self, told: dict[str, Any]) -> None:
        super().load_state_dict(told)
        if told["losses"][0] is not None:
            self._trainer._tr_loss = told["losses"][0].to(self._trainer.args.device)
        self._trainer._total_loss_scalar = told["losses"][1]
        for one, attributes in zip(self._callbacks(), told["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(one, name, value)

    def _callbacks(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]
