"""The loop of a training program whose peers may die at any time.

Start a master, then this program as often as the third argument says, and kill any of them but one:

    pccl master --listen 127.0.0.1:48148
    python examples/training_loop.py 127.0.0.1:48148 200 3

All peers start from the same parameters and average their gradients, so they hold the same parameters after every step.
"""

import sys
import time
import zlib

import numpy as np

import pccl


def average(comm: pccl.Communicator, gradient: np.ndarray) -> None:
    """Averages in place over the members alive; alone, the gradient stays as it is."""
    while comm.get_attribute(pccl.Attribute.LOCAL_WORLD_SIZE) > 1:
        try:
            comm.all_reduce(gradient, gradient, op=pccl.ReduceOp.AVG)
            return
        except pccl.PeerLostError:
            continue  # a member died: the gradient is as it was, so again, among the survivors


def main(address: str, steps: int, peers: int) -> None:
    noise = np.random.default_rng()  # each peer sees other data
    parameters = np.zeros(1000, np.float32)
    with pccl.Communicator(address) as comm:
        comm.connect()
        while comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < peers:
            comm.update_topology()
        for step in range(1, steps + 1):
            gradient = parameters - 1 + noise.normal(0, 0.1, parameters.size).astype(np.float32)
            average(comm, gradient)
            parameters -= 0.1 * gradient
            if step % 20 == 0:
                world = comm.get_attribute(pccl.Attribute.LOCAL_WORLD_SIZE)
                print(f"step {step}: {world} peers, parameters {zlib.crc32(parameters):08x}", flush=True)
            time.sleep(0.01)
        comm.update_topology()  # also a barrier: nobody leaves while another is still in the last reduce


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
