"""Two peers and their master in one process: `python examples/all_reduce.py`. Peers of a real run are processes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import pccl


def peer(number: int) -> str:
    with pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
        comm.connect()
        comm.wait_for_peers(2)  # admits the other peer
        vector = np.full(4, number, np.float32)
        info = comm.all_reduce(vector, op="avg")  # in place
        comm.are_peers_pending()  # a barrier: no peer leaves while the other is still in the all-reduce
        return f"peer {number}: average over {info.world_size} peers is {vector}"


with pccl.MasterNode("127.0.0.1:0") as master, ThreadPoolExecutor() as threads:
    print(*threads.map(peer, (1, 4)), sep="\n")
