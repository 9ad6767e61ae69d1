"""Two peers average a vector: `python examples/all_reduce.py`.

Real peers run on different machines and know the address of a master, which `pccl master` serves.
"""

import multiprocessing

import numpy as np

import pccl


def peer(address: str, number: int) -> None:
    with pccl.Communicator(address) as comm:
        comm.connect()
        comm.wait_for_peers(2)  # lets the other one in
        vector = np.full(4, number, np.float32)
        info = comm.all_reduce(vector, op=pccl.ReduceOp.AVG)  # in place
        print(f"peer {number}: average over {info.world_size} peers is {vector}", flush=True)
        comm.are_peers_pending()  # a barrier: nobody leaves while another is still in the reduce


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with pccl.MasterNode("127.0.0.1:0") as master:
        peers = [spawn.Process(target=peer, args=(f"127.0.0.1:{master.port}", number)) for number in (1, 4)]
        for process in peers:
            process.start()
        for process in peers:
            process.join()
