"""accelerate: a loop of its own over prepared objects."""

import common
import torch
from accelerate import Accelerator


def main() -> None:
    accelerator = Accelerator(cpu=True)
    if common.ADAPTED:
        from pccl.integrations.accelerate import follow

        follow(accelerator)
    model = common.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    means = []
    for step in common.steps(model, optimizer, schedule=schedule):
        x, y = common.batch(step, accelerator.process_index)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        common.step_ends(step, loss.item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            means.append(accelerator.reduce(torch.ones(1), "mean").item())
            assert accelerator.gather(torch.ones(1)).numel() == accelerator.num_processes
    common.finish(model, means=means, processes=accelerator.num_processes, rate=schedule.get_last_lr())
    accelerator.end_training()


if __name__ == "__main__":
    main()
