"""Lightning with an ElasticSampler: rank 1 is killed in its fourth step. The model learns which samples it has seen."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from pccl.data import ElasticSampler
from pccl.integrations.lightning import ElasticCallback

SIZE = 60


class Counts(LightningModule):
    """Adds 6 over the number of members to the weight of each sample."""

    def __init__(self, sampler: ElasticSampler, *, dies: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE))
        self._sampler, self._dies = sampler, dies

    def training_step(self, batch, number):
        if self._dies and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return -6 * self.weight[batch[self._sampler.mask(len(batch))]].sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def main() -> None:
    dist.init_process_group("pccl")
    sampler = ElasticSampler(range(SIZE), seed=1)
    model = Counts(sampler, dies=dist.get_rank() == 1)
    strategy = DDPStrategy(process_group_backend="pccl")
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", devices=3, strategy=strategy, callbacks=[ElasticCallback()], max_epochs=2, **quiet)
    trainer.fit(model, DataLoader(range(SIZE), 2, sampler=sampler))
    counts = Counter(round(weight) for weight in model.weight.tolist())
    told = {"counts": counts, "remaining": sampler.remaining}
    Path(sys.argv[1], f"{os.getpid()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
