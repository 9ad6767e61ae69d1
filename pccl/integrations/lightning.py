"""A callback that lets a Lightning Trainer survive the loss of processes, and newcomers join it."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils._pytree import tree_leaves

import pccl.distributed
from pccl.integrations._data import elastic_samplers
from pccl.integrations._retry import retry_after_loss


class ElasticCallback(Callback):  # type: ignore[misc]  # without types
    """Keeps a Lightning Trainer's ranks right after a loss, lets newcomers join, and moves the role of rank 0.

        dist.init_process_group("pccl")     # before the Trainer, so that a restarted process finds its rank
        Trainer(strategy=DDPStrategy(process_group_backend="pccl"), callbacks=[ElasticCallback()]).fit(module, loader)

    Newcomers join at the beginning of an epoch. They get the module, the optimizers, the schedules, the progress of the loops
    and the states of the callbacks. When rank 0 is lost, the next rank writes checkpoints and logs.
    """

    def __init__(self) -> None:
        self._elastic: pccl.distributed.Elastic | None = None
        self._unsubscribe: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets a newcomer prepare its data by itself: the members have compared the lengths of theirs when they began."""
        reduce = trainer.strategy.reduce

        def reduce_with_members(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return tensor if pccl.distributed.is_joining() else reduce(tensor, *args, **kwargs)

        trainer.strategy.reduce = reduce_with_members

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to follow the membership."""
        schedules = {f"schedule_{number}": one.scheduler for number, one in enumerate(trainer.lr_scheduler_configs)}
        self._elastic = pccl.distributed.Elastic(
            trainer.strategy.model,
            trainer.optimizers,
            progress=_Progress(trainer),
            callbacks=_States(trainer),
            **schedules,
            **elastic_samplers(*tree_leaves(trainer.train_dataloader)),
        )
        strategy = trainer.strategy
        strategy.all_gather = retry_after_loss(strategy.all_gather)
        self._unsubscribe = pccl.distributed.on_change(lambda change: _renumber())
        if not pccl.distributed.is_joining():
            _renumber()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets newcomers in."""
        self.sync()
        _measure(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Commits the samples of the step. If a member was lost, the epoch goes on with what it has left."""
        if self._elastic is not None and self._elastic._commit():
            _measure(trainer)

    def sync(self) -> bool:
        """Lets newcomers in; at a newcomer, joins. Returns True if the membership changed since the last call.

        All members have to call it at the same point of an epoch's beginning.
        """
        assert self._elastic is not None, "training has not started"
        changed = self._elastic.sync()
        if changed:
            _renumber()
        return changed

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends to follow the membership."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None


def _measure(trainer: Trainer) -> None:
    """Tells Lightning how many batches this epoch has, which it counts once, when the training starts."""
    loop = trainer.fit_loop
    fetcher = loop._data_fetcher
    limit = trainer.limit_train_batches
    if fetcher is None or fetcher.length is None or not isinstance(limit, float) or limit < 1:
        return
    for number, loader in enumerate(fetcher.combined_loader.flattened):
        if elastic_samplers(loader):
            fetcher.combined_loader.limits[number] = len(loader)
    fetcher.length = loop.max_batches = sized_len(fetcher.combined_loader)
    fetcher.done = fetcher.fetched >= fetcher.length
    loop.epoch_loop.batch_progress.is_last_batch = fetcher.done


def _renumber() -> None:
    """Tells Lightning the rank and the world size of the moment; its cluster environment reads these variables."""
    if dist.is_initialized():
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(dist.get_rank()), str(dist.get_world_size())
        rank_zero_only.rank = dist.get_rank()


class _Progress:
    """The progress of the training loops."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = self._trainer.fit_loop.state_dict()
        return told

    def load_state_dict(self, told: dict[str, Any]) -> None:
        loop = self._trainer.fit_loop
        loop.load_state_dict(told)
        # A newcomer begins this epoch with the members. Lightning believes that it resumes one, and would skip its batches.
        loop.epoch_loop.restarting = False
        loop._resuming_from_checkpoint = False
        epoch = loop.epoch_progress.current.processed
        for loader in tree_leaves(self._trainer.train_dataloader):
            set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


class _States:
    """The states of the callbacks that have one."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return {one.state_key: one.state_dict() for one in self._trainer.callbacks if one.state_dict()}

    def load_state_dict(self, told: dict[str, Any]) -> None:
        for one in self._trainer.callbacks:
            if one.state_key in told:
                one.load_state_dict(told[one.state_key])
