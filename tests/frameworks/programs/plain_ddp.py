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
    for step in common.steps(model, optimizer, schedule=schedule):
        x, y = common.batch(step, dist.get_rank())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        common.step_ends(step, loss.item())
        optimizer.step()
        schedule.step()
    common.finish(model, rate=schedule.get_last_lr())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
