"""A DistributedDataParallel script that survives `kill -9` of any of its processes, and that new processes join.

    torchrun --nproc_per_node 3 examples/ddp_elastic.py
    torchrun --nproc_per_node 3 examples/ddp_elastic.py --kill 1 --restarts 1    # rank 1 kills itself, comes back and joins
    PCCL_KEYS=... python examples/ddp_elastic.py --join 127.0.0.1:40123    # from another shell: rank 0 prints the whole command

The lines marked with (1) are the change to an ordinary script that lets it survive; those with (2) let others join.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed

BATCH = 32


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that no other rank has in this step: the larger of each pair of numbers is to be learned."""
    x = torch.randn(BATCH, 2, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x.max(dim=1, keepdim=True).values


def main() -> None:
    parser = argparse.ArgumentParser(description="DDP that survives the death of its processes.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two steps, so that there is something to see")
    parser.add_argument("--kill", type=int, metavar="RANK", help="this rank kills itself in the middle")
    parser.add_argument("--restarts", default="0", help="how often a process that was killed is started anew")
    parser.add_argument("--join", metavar="MASTERS", help="join the training whose masters are these")
    arguments = parser.parse_args()

    os.environ.setdefault("PCCL_RESTARTS", arguments.restarts)
    pccl.distributed.supervise()  # (1) torchrun, which ends a job when one of its processes dies, does not see a death
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if arguments.join:
        pccl.distributed.join(arguments.join)  # (2)
    else:
        dist.init_process_group("pccl")  # (1) instead of "gloo"

    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = pccl.distributed.Elastic(model, optimizer, step=0)  # (2)
    started = os.environ.get("PCCL_JOIN") == "1" or bool(arguments.join)
    name = "the newcomer" if started else f"rank {dist.get_rank()}"
    if not started and dist.get_rank() == 0:
        run = f"PCCL_KEYS={pccl.distributed.keys()} python {sys.argv[0]} --join {pccl.distributed.masters()}"
        print(f"to join: {run}", flush=True)

    while True:
        if state.sync():  # (2) lets newcomers in; true when the members are others than before
            print(f"step {state.step}: {name} is rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
        if state.step >= arguments.steps:
            break
        x, y = batch(state.step, dist.get_rank())
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if not started and arguments.kill == dist.get_rank() and state.step == arguments.steps // 2:
            print(f"step {state.step}: {name} kills itself", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.step += 1
        time.sleep(arguments.pause)

    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"{name}: loss {loss.item():.4f}, sum of all weights {weights!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
