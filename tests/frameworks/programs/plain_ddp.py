"""torch alone: DistributedDataParallel, with Elastic where newcomers join."""

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group(common.BACKEND)
    model = DistributedDataParallel(common.classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, common.STEPS)
    elastic = None
    if common.BACKEND == "pccl":
        import pccl.distributed

        elastic = pccl.distributed.Elastic(model, optimizer, step=0, schedule=schedule)
    step = 0
    while step < common.STEPS:
        if elastic is not None:
            elastic.sync()
            step = elastic.step
            common.admit_newcomer(step, elastic.sync)
        x, y = common.batch(step, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        common.step_ends(step, loss.item())
        optimizer.step()
        schedule.step()
        step += 1
        if elastic is not None:
            elastic.step = step
    common.finish(model, rate=schedule.get_last_lr())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
