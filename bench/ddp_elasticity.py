"""What elasticity costs an undisturbed DDP step: elastic mode with `Elastic.sync` in each step against strict mode without.

    python bench/ddp_elasticity.py --ranks 2 --megabytes 120

Two jobs of the same ranks exist at once and take turns, a few steps each. The step is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed as dist
from performers import Performer, preload
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pccl.distributed

preload("ddp_elasticity")

TURN = 5
"""Steps of one job before the other has its turn."""
PATIENCE = 300.0


class Rank:
    """A rank of one of the jobs."""

    def __init__(self, pipe: Connection, port: int, rank: int, ranks: int, strict: bool, megabytes: int) -> None:
        torch.set_num_threads(1)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        options = pccl.distributed.Options(strict=strict)
        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=ranks, pg_options=options, timeout=limit)
        width = int((megabytes * (1 << 20) / 4 / 4) ** 0.5)
        self.model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.state = None if strict else pccl.distributed.Elastic(self.model, self.optimizer, step=0)
        self.rows = torch.randn(8, width)

    def train(self) -> list[float]:
        """The seconds of each step of a turn."""
        dist.barrier()
        seconds = []
        for _ in range(TURN):
            begun = time.perf_counter()
            if self.state is not None:
                self.state.sync()
                self.state.step += 1
            self.optimizer.zero_grad()
            self.model(self.rows).square().mean().backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - begun)
        return seconds


def main() -> None:
    """Reads the options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=120, help="of float32 parameters")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    jobs: dict[bool, list[Performer]] = {}
    found: dict[bool, list[float]] = {True: [], False: []}
    stores = []
    try:
        for mode in found:
            stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
            arguments = stores[-1].port, options.ranks, mode, options.megabytes
            port, ranks, *others = arguments
            jobs[mode] = [Performer(Rank, rank, (port, rank, ranks, *others)) for rank in range(ranks)]
        for turn in range(options.turns + 1):
            for mode, job in jobs.items():
                for rank in job:
                    rank.tell("train")
                steps = [max(each) for each in zip(*(rank.answer(PATIENCE) for rank in job), strict=True)]
                if turn > 0:  # in the first, DDP groups its buckets
                    found[mode] += steps
    finally:
        for job in jobs.values():
            for rank in job:
                rank.kill()
    strict, elastic = statistics.median(found[True]) * 1e3, statistics.median(found[False]) * 1e3
    print(
        f"{options.ranks} ranks, {options.megabytes} MiB of parameters, {len(found[True])} steps each: strict {strict:.1f} ms, "
        f"elastic {elastic:.1f} ms: {(elastic / strict - 1) * 100:+.1f} %"
    )


if __name__ == "__main__":
    main()
