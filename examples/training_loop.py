"""The loop of a training program whose peers may die at any time.

Start a master, then this program as often as the third argument says, and kill any of them but one:

    pccl master --listen 127.0.0.1:48148
    python examples/training_loop.py 127.0.0.1:48148 200 3

All peers start from the same parameters and average their gradients, so they hold the same parameters after every
step. A copy that starts late is not let in, for it would begin at step 1: it waits until the others have ended, and then
gives up. How to let one in and bring it up to date is in docs/newcomers.md.
"""

import sys
import time
import zlib

import numpy as np

import pccl


def average(comm: pccl.Communicator, gradient: np.ndarray) -> None:
    """Averages in place over the members that are left; raises if this peer is no longer one of them."""
    while True:
        try:
            comm.all_reduce(gradient, op=pccl.ReduceOp.AVG)
            return
        except pccl.PeerLostError:
            continue  # a member died: the gradient is as it was, so again, among the survivors
        except pccl.TooFewPeersError:
            return  # all others have died: the average over one peer is its own gradient


def main(address: str, steps: int, peers: int) -> None:
    noise = np.random.default_rng()  # each peer sees other data
    parameters = np.zeros(1000, np.float32)
    with pccl.Communicator(address) as comm:
        comm.connect()
        comm.wait_for_peers(peers, timeout=60)
        for step in range(1, steps + 1):
            gradient = parameters - 1 + noise.normal(0, 0.1, parameters.size).astype(np.float32)
            average(comm, gradient)
            parameters -= 0.1 * gradient
            if step % 20 == 0:
                print(f"step {step}: {comm.world_size} peers, parameters {zlib.crc32(parameters):08x}", flush=True)
            time.sleep(0.01)
        comm.are_peers_pending()  # a barrier that lets nobody in: nobody leaves while another is still in the last reduce


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    except pccl.PCCLError as error:  # expelled, no master any more, or too few peers came: this peer must not go on by itself
        sys.exit(f"stopped: {error}")
