"""A DistributedDataParallel script that continues after all machines have lost power.

    torchrun --nproc_per_node 1 -m pccl.distributed.run examples/checkpoints.py checkpoint 1000

Each machine, or each process of one machine, needs a folder of its own.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed

folder, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("pccl")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
state = pccl.distributed.Elastic(model, optimizer, step=0, schedule=schedule)
with contextlib.suppress(FileNotFoundError):  # the first start
    state.load(folder)  # on a disk of this machine
while True:
    state.sync()  # the first one: all begin with the checkpoint of the highest step
    if state.step == steps:
        break
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    schedule.step()
    state.step += 1
    if state.step % 10 == 0:
        state.save(folder)
        print("step", state.step, flush=True)
print("done", state.step, sum(p.sum().item() for p in model.parameters()), flush=True)
dist.destroy_process_group()
