"""A program that survives the loss of copies, and takes in replacements.

    pccl stress --program "python examples/survivor.py 500"

Each copy prints its step and a hash of its state, by which `pccl stress` judges the run.
"""

import os
import sys
import time

import numpy as np

import pccl


def sync(comm: pccl.Communicator, state: pccl.SharedState) -> None:
    while True:
        try:
            comm.sync_shared_state(state)
            return
        except pccl.CallAgainError:  # the copy that had the state was lost
            comm.update_topology()


def average(comm: pccl.Communicator, gradient: np.ndarray) -> None:
    while True:
        try:
            comm.all_reduce(gradient, op=pccl.ReduceOp.AVG)
            return
        except pccl.PeerLostError:
            continue  # the gradient is as it was: average over the copies that are left
        except pccl.TooFewPeersError:
            return  # no other copy is left


def main(steps: int) -> None:
    weights, step = np.zeros(100_000), np.zeros(1, np.int64)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "weights"), pccl.TensorInfo.from_numpy(step, "step")])
    noise = np.random.default_rng()  # each copy sees other data
    with pccl.Communicator() as comm:
        comm.connect()
        replaces = os.environ.get("PCCL_JOIN") == "1"
        comm.wait_for_peers(2 if replaces else int(os.environ["PCCL_PEERS"]), timeout=60)
        sync(comm, state)
        while step[0] < steps:
            while comm.are_peers_pending():
                comm.update_topology()  # takes replacements in
                state.push_revision()
                sync(comm, state)
            gradient = weights - 1 + noise.normal(0, 0.1, weights.size)
            average(comm, gradient)
            weights -= 0.01 * gradient
            step += 1
            print(f"step {step[0]}: {comm.world_size} copies, state {state.hash()}", flush=True)
            time.sleep(0.02)  # stands for the work of a larger model
        comm.are_peers_pending()  # a barrier: nobody leaves while another copy is still in the last average


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except pccl.PCCLError as error:
        sys.exit(f"stopped: {error}")
