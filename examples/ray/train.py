"""An elastic run under Ray: workers and masters are actors. Ray starts a lost actor again, and a worker joins the others.

PCCL_KEYS=run.master python examples/ray/train.py --workers 4 --steps 1000
"""

import argparse
import os
import socket
import sys
from pathlib import Path

import ray
import torch

import pccl

sys.path.insert(0, str(Path(__file__).parents[1]))
import elastic_worker

ray.cloudpickle.register_pickle_by_value(elastic_worker)  # which other nodes need not have


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=2, scheduling_strategy="SPREAD")
class Master:
    """The master of the run, or a standby."""

    def address(self) -> str:
        """Reserves an address of its node, which `serve` listens on."""
        host = ray.util.get_node_ip_address()
        self.reserved = socket.socket()  # bound until the master listens, so that nobody else gets the port meanwhile
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind((host, 0))
        return f"{host}:{self.reserved.getsockname()[1]}"

    def serve(self, address: str, masters: str, keys: str) -> None:
        """Runs until `stop`. When Ray has started it again, it makes this call again."""
        with pccl.MasterNode(address, masters=masters, keys=keys) as self.node:
            self.node.wait()

    def stop(self) -> None:
        self.node.interrupt()


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD")
class Worker:
    """A worker. When Ray has started it again, it makes the call of `train` again, and joins the others."""

    def train(self, masters: str, steps: int, workers: int, keys: str) -> str:
        torch.set_num_threads(1)
        return elastic_worker.train(masters, steps, workers, lambda line: print(line, flush=True), keys)


def run(workers: int, steps: int, keys: str) -> list[str]:
    """A checksum of the parameters of each of the workers at the end. `keys`: the file for masters, on all nodes."""
    keys = os.path.abspath(keys)
    masters = [Master.remote() for _ in range(2)]
    addresses = ray.get([master.address.remote() for master in masters])
    listed = ",".join(addresses)
    serving = [master.serve.remote(address, listed, keys) for master, address in zip(masters, addresses, strict=True)]
    actors = [Worker.remote() for _ in range(workers)]
    of_peers = keys.removesuffix(".master") + ".peer"
    ends = ray.get([actor.train.remote(listed, steps, workers, of_peers) for actor in actors])
    for master in masters:
        master.stop.remote()
    ray.get(serving)
    return ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--keys", default=os.environ.get("PCCL_KEYS"), help="the masters' file of keys [default: PCCL_KEYS]")
    options = parser.parse_args()
    if not options.keys:
        parser.error("the run needs keys: `pccl keys run` makes them, then pass --keys run.master")
    ray.init()
    print("finished:", *run(options.workers, options.steps, options.keys))
