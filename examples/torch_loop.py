"""A training loop with torch that averages its gradients itself. Peers may die at any time, and others join.

Start a master, then this program twice or more. Start more copies while it runs, and kill any:

    pccl master --listen 127.0.0.1:48148
    python examples/torch_loop.py 127.0.0.1:48148
"""

import sys

import torch

import pccl


def average_gradients(model: torch.nn.Module, comm: pccl.Communicator) -> None:
    """Averages all gradients in one all-reduce. If a member is lost, the others repeat it."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    while True:
        try:
            comm.all_reduce(flat, op=pccl.ReduceOp.AVG)
            break
        except pccl.PeerLostError:
            continue  # flat is as it was
        except pccl.TooFewPeersError:
            return  # the only member left keeps its own gradients
    for parameter, averaged in zip(parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True):
        parameter.grad.copy_(averaged.view_as(parameter.grad))


data = torch.randn(1000, 10, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = pccl.SharedState.from_module(model, optimizer=optimizer, extra={"step": 0})

with pccl.Communicator(sys.argv[1]) as comm:
    comm.connect()
    comm.wait_for_peers(2, timeout=60)
    comm.sync_shared_state(state)  # all begin with the same parameters; a newcomer gets those of the others
    while state.extra["step"] < 200:
        while comm.are_peers_pending():
            comm.update_topology()
            state.push_revision()
            comm.sync_shared_state(state)
        shard = data[comm.rank :: comm.world_size]
        optimizer.zero_grad()
        (model(shard) - 1).pow(2).mean().backward()
        average_gradients(model, comm)
        optimizer.step()
        state.extra["step"] += 1
        if state.extra["step"] % 100 == 0 and comm.rank == 0:
            torch.save(model.state_dict(), "checkpoint.pt")
    comm.are_peers_pending()  # a barrier: no peer leaves while another is still in the last all-reduce
    print(state.hash())
