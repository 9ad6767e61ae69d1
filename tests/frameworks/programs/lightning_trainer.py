"""Lightning: a Trainer with DDPStrategy, a metric that is synchronised, and checkpoints."""

import common
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy


class Module(LightningModule):
    """The classifier that all programs train."""

    def __init__(self) -> None:
        super().__init__()
        self.net = common.classifier()

    def training_step(self, batch, number):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x[0]), y[0])
        self.log("mean", loss, sync_dist=True, on_epoch=True)
        common.step_ends(self.global_step, loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Rows(torch.utils.data.Dataset):
    """A batch per index, the same data on all ranks until the sampler deals them out."""

    def __len__(self) -> int:
        return 4 * common.MEMBERS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return common.batch(index, 0)


class Watch(Callback):
    """Adds a newcomer where one is due."""

    def __init__(self, elastic) -> None:
        self._elastic = elastic

    def on_train_epoch_start(self, trainer, module):
        if self._elastic is not None:
            common.admit_newcomer(trainer.global_step, self._elastic.sync)


def main() -> None:
    if common.BACKEND == "pccl":
        dist.init_process_group("pccl")
    callbacks = [ModelCheckpoint(dirpath=common.REPORTS / "out", save_last=True, every_n_epochs=1)]
    elastic = None
    if common.BACKEND == "pccl":
        from pccl.integrations.lightning import ElasticCallback

        elastic = ElasticCallback()
        callbacks.append(elastic)
    callbacks.append(Watch(elastic))
    trainer = Trainer(
        accelerator="cpu",
        devices=common.MEMBERS,
        strategy=DDPStrategy(process_group_backend=common.BACKEND),
        max_steps=common.STEPS,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(Rows(), batch_size=1))
    saved = sorted(path.name for path in (common.REPORTS / "out").glob("*.ckpt"))
    writer = trainer.is_global_zero
    common.finish(module, mean=float(trainer.callback_metrics["mean"]), saved=saved, writer=writer, size=dist.get_world_size())


if __name__ == "__main__":
    main()
