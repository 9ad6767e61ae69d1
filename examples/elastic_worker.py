"""A worker that may start at any time and die at any time: the first start of one and its replacement are the same.

    PCCL_MASTER=host:port[,host:port] python examples/elastic_worker.py STEPS WORKERS

The launchers in examples/slurm, examples/kubernetes and examples/ray start it. It begins to train when WORKERS of them are
there. One that comes later gets the state of the others from their memory and goes on with them.
"""

import os
import sys
import time
from collections.abc import Callable

import torch

import pccl

PATIENCE = 120.0
"""Seconds to wait for the other workers before the first step."""


def average_gradients(model: torch.nn.Module, comm: pccl.Communicator) -> None:
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    while True:
        try:
            comm.all_reduce(flat, op=pccl.ReduceOp.AVG)
            break
        except pccl.PeerLostError:
            continue  # flat is as it was: again, among the survivors
        except pccl.TooFewPeersError:
            return  # the only one left keeps its own gradients
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def admit(comm: pccl.Communicator, state: pccl.SharedState) -> None:
    """Lets in who waits, and brings them up to date. All members call it at the same place, and newcomers first of all."""
    while comm.are_peers_pending():
        comm.update_topology()
        state.push_revision()
        comm.sync_shared_state(state)


def train(masters: str, steps: int, workers: int, report: Callable[[str], None] = print) -> str:
    """Trains up to step `steps`; returns the hash of the state, which is the same on all workers that end together."""
    data = torch.randn(1000, 10, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = pccl.SharedState.from_module(model, optimizer=optimizer, extra={"step": 0})
    with pccl.Communicator(masters) as comm:
        comm.connect(n_attempts=60)  # a second apart: the master may be starting, too
        comm.sync_shared_state(state)
        report(f"joined at step {state.extra['step']}: process {os.getpid()}, {comm.world_size} workers")
        begun = time.monotonic()
        while state.extra["step"] < steps:
            admit(comm, state)
            if state.extra["step"] == 0 and comm.world_size < workers:
                if time.monotonic() > begun + PATIENCE:
                    raise TimeoutError(f"{comm.world_size} of {workers} workers came within {PATIENCE:.0f} s")
                time.sleep(0.05)
                continue
            shard = data[comm.rank :: comm.world_size]
            optimizer.zero_grad()
            loss = (model(shard) - 1).pow(2).mean()
            loss.backward()
            average_gradients(model, comm)
            optimizer.step()
            state.extra["step"] += 1
            if state.extra["step"] % 100 == 0:
                report(f"step {state.extra['step']}: {comm.world_size} workers, loss {loss.item():.3f}, state {state.hash()}")
            time.sleep(0.01)  # stands for the work of a larger model
        comm.are_peers_pending()  # a barrier: nobody leaves while another is still in the last reduce
        return state.hash()


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        digest = train(os.environ["PCCL_MASTER"], int(sys.argv[1]), int(sys.argv[2]), lambda line: print(line, flush=True))
    except (pccl.PCCLError, TimeoutError) as error:
        sys.exit(f"stopped: {error}")
    print(f"finished: state {digest}", flush=True)
