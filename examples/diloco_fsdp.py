"""DiLoCo between replicas whose model is sharded over several processes with `fully_shard`.

    python examples/diloco_fsdp.py --replicas 2 --shards 2

starts a master and all processes on this machine. Elsewhere, start one replica with torchrun, given the master of the run:

    torchrun --nproc_per_node 2 examples/diloco_fsdp.py --master 203.0.113.7:48148

The processes of a replica share a process group of torch, in which the shards are gathered. Each one averages its own shard with
those of the same rank in the other replicas: its communicator is in the peer group of its rank.
"""

import argparse
import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl
from pccl.diloco import DiLoCo


def train(master: str, outer_steps: int, peers: int) -> None:
    dist.init_process_group("gloo")
    shard, shards = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    mesh = init_device_mesh("cpu", (shards,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # made after the model was sharded
    data = torch.Generator().manual_seed(os.getpid())  # each process has data of its own
    comm = pccl.Communicator(master, peer_group=shard)
    with DiLoCo(model, comm, optimizer, sync_every=10, shards=shards, peers=peers) as diloco:
        while diloco.outer_step < outer_steps:
            x = torch.randn(32, 8, generator=data)
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = diloco.step()
            if done:
                print(
                    f"outer step {done.outer_step}: shard {shard}, {done.world_size} replicas, "
                    f"loss {loss.item():.3f}, parity {diloco.parity}",
                    flush=True,
                )
    dist.destroy_process_group()


def launch(replicas: int, shards: int, outer_steps: int) -> int:
    """Starts a master and all processes; gives the first status that is not 0."""
    with pccl.MasterNode("127.0.0.1:0") as master:
        processes = []
        for _ in range(replicas):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            for shard in range(shards):
                job = {"RANK": str(shard), "WORLD_SIZE": str(shards), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                options = ["--master", f"127.0.0.1:{master.port}", "--peers", str(replicas * shards)]
                command = [sys.executable, __file__, *options, "--outer-steps", str(outer_steps)]
                processes.append(subprocess.Popen(command, env={**os.environ, **job}))
        return next(filter(None, [process.wait() for process in processes]), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", help="of the run, host:port; without it a whole run is started on this machine")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2, help="processes per replica")
    parser.add_argument("--outer-steps", type=int, default=5)
    parser.add_argument("--peers", type=int, default=1, help="processes that a new run waits for")
    options = parser.parse_args()
    if options.master is None:
        sys.exit(launch(options.replicas, options.shards, options.outer_steps))
    train(options.master, options.outer_steps, options.peers)
