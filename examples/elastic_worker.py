"""A worker that may start at any time and die at any time: the first start of one and its replacement are the same.

    PCCL_MASTER=host:port[,host:port] python examples/elastic_worker.py STEPS WORKERS

The launchers in examples/slurm, examples/kubernetes and examples/ray start it. It begins to train when WORKERS of them are
there. One that comes later gets the state of the others from their memory and goes on with them.
"""

import functools
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed

PATIENCE = 120.0
"""Seconds to wait for the other workers before the first step."""


def train(
    masters: str,
    steps: int,
    workers: int,
    report: Callable[[str], None],
    keys: str | None = None,
    leaves_on: signal.Signals | None = None,
) -> str:
    """Trains up to step `steps`; returns a checksum of the parameters, the same on all workers that end together.

    `leaves_on`: a signal on which this worker leaves between two steps; in the main thread only.
    """
    pccl.distributed.join(masters, begin=True, keys=keys)
    data = torch.randn(1000, 10, generator=torch.Generator().manual_seed(0))
    model = DistributedDataParallel(torch.nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = pccl.distributed.Elastic(model, optimizer, leaves_on=leaves_on, step=0)

    def checksum() -> str:
        return f"{zlib.crc32(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()):08x}"

    begun = time.monotonic()
    joined = False
    while state.step < steps:
        state.sync()  # the first one makes this worker one of the run
        if not joined:
            joined = True
            report(f"joined at step {state.step}: process {os.getpid()}, {dist.get_world_size()} workers")
        if state.step == 0 and dist.get_world_size() < workers:
            if time.monotonic() > begun + PATIENCE:
                raise TimeoutError(f"{dist.get_world_size()} of {workers} workers came within {PATIENCE:.0f} s")
            time.sleep(0.05)
            continue
        shard = data[dist.get_rank() :: dist.get_world_size()]
        optimizer.zero_grad()
        loss = (model(shard) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        state.step += 1
        if state.step % 100 == 0:
            report(f"step {state.step}: {dist.get_world_size()} workers, loss {loss.item():.3f}, parameters {checksum()}")
        time.sleep(0.01)  # stands for the work of a larger model
    dist.barrier()  # nobody leaves while another is still in the last step
    dist.destroy_process_group()
    return checksum()


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        steps, workers = int(sys.argv[1]), int(sys.argv[2])
        report = functools.partial(print, flush=True)
        parameters = train(os.environ["PCCL_MASTER"], steps, workers, report, leaves_on=signal.SIGTERM)
    except (pccl.PCCLError, pccl.distributed.JoinError, TimeoutError) as error:
        sys.exit(f"stopped: {error}")
    print(f"finished: parameters {parameters}", flush=True)
