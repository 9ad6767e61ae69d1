"""accelerate: prepared data loaders, metrics over all processes, and nothing of pccl."""

import common
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

ROWS = 16


def main() -> None:
    accelerator = Accelerator(cpu=True)
    x = torch.randn(common.STEPS * ROWS * common.MEMBERS, 16, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=ROWS, shuffle=True)
    check = DataLoader(TensorDataset(x[: 7 * ROWS], x[: 7 * ROWS, :4].argmax(1)), batch_size=ROWS)
    model = common.classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    model, optimizer, schedule, loader, check = accelerator.prepare(model, optimizer, schedule, loader, check)
    means = []
    right = count = made = 0
    for _ in range(1_000_000 if common.UNTIL_REPLACED else 1):
        model.train()
        for inputs, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            mean = accelerator.reduce(loss.detach(), "mean").item()
            common.step_ends(made, mean)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            made += 1
            means.append(accelerator.reduce(torch.ones(1), "mean").item())
            ends = common.enough(made)
        model.eval()
        right = count = 0
        for inputs, targets in check:
            guessed, expected = accelerator.gather_for_metrics((model(inputs).argmax(1), targets))
            right += int((guessed == expected).sum())
            count += len(expected)
        if ends:
            break
    common.finish(model, means=means, processes=accelerator.num_processes, accuracy=right / count, count=count)
    accelerator.end_training()


if __name__ == "__main__":
    main()
