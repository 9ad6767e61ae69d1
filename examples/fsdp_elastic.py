"""A sharded training (FSDP2) that survives `kill -9` of any of its processes, and that new processes join. Nothing goes to disk.

    torchrun --nproc_per_node 4 examples/fsdp_elastic.py --kill 1                 # rank 1 kills itself, three go on
    torchrun --nproc_per_node 4 examples/fsdp_elastic.py --kill 1 --restarts 1    # it comes back, and four go on
    torchrun --nproc_per_node 4 examples/fsdp_elastic.py --kill 1 --replica 2     # two replicas (HSDP): no step is lost
    PCCL_KEYS=... python examples/fsdp_elastic.py --join 127.0.0.1:40123    # from another shell: rank 0 prints the whole command

The lines marked with (1) are the change to an ordinary script.
"""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl.distributed
from pccl.distributed import Elastic, PeerLostError, Snapshots

BATCH = 48


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of the step: the larger of each pair of numbers is to be learned."""
    x = torch.randn(BATCH, 2, generator=torch.Generator().manual_seed(step))
    return tuple(one[dist.get_rank() :: dist.get_world_size()] for one in (x, x.max(dim=1, keepdim=True).values))


def main() -> None:
    parser = argparse.ArgumentParser(description="FSDP2 that survives the death of its processes.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two steps, so that there is something to see")
    parser.add_argument("--every", type=int, default=10, help="steps between two snapshots")
    parser.add_argument("--kill", type=int, metavar="RANK", help="this rank kills itself in the middle")
    parser.add_argument("--restarts", default="0", help="how often a process that was killed is started anew")
    parser.add_argument("--replica", type=int, help="so many processes have the whole state together; by default all")
    parser.add_argument("--join", metavar="MASTERS", help="join the training whose masters are these")
    arguments = parser.parse_args()

    os.environ.setdefault("PCCL_RESTARTS", arguments.restarts)
    pccl.distributed.supervise()  # (1) torchrun, which ends a job when one of its processes dies, does not see a death
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if arguments.join:
        pccl.distributed.join(arguments.join)  # (1)
    else:
        dist.init_process_group("pccl")  # (1) instead of "gloo"

    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    if arguments.replica:
        replica = min(arguments.replica, size)  # a newcomer is alone until its first sync
        mesh = init_device_mesh("cpu", (size // replica, replica), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = Elastic(model, optimizer, step=0, snapshots=Snapshots(every=arguments.every, copies=1))  # (1)
    started = os.environ.get("PCCL_JOIN") == "1" or bool(arguments.join)
    name = "the newcomer" if started else f"rank {dist.get_rank()}"
    dies = not started and arguments.kill == dist.get_rank()
    if not started and dist.get_rank() == 0:
        command = f"PCCL_KEYS={pccl.distributed.keys()} python {sys.argv[0]} --join {pccl.distributed.masters()}"
        print(f"to join: {command}", flush=True)

    loss = torch.zeros(())
    while run.step < arguments.steps:
        if run.sync():  # (1) lets newcomers in, takes out the lost; true when the members are others than before
            print(f"step {run.step}: {name} is rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
        if dies and run.step == arguments.steps // 2 + 5:
            print(f"step {run.step}: {name} kills itself", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch(run.step)
        try:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except PeerLostError:  # (1) the next sync goes back to the last snapshot, or stays with replicas, without the lost
            continue
        run.step += 1
        time.sleep(arguments.pause)

    total = sum(parameter.full_tensor().double().sum().item() for parameter in model.parameters())
    print(f"{name}: loss {loss.item():.4f}, sum of all weights {total!r}", flush=True)
    run.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
