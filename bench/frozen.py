"""What a newcomer with equal frozen weights costs: memory at the newcomer, and how long the members wait.

    python bench/frozen.py --megabytes 400

Two members train a small model beside frozen layers. A third process, whose frozen layers hold the same bytes, joins.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
import torch.distributed as dist
from performers import Performer, preload
from sync import peak, reset_peak
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pccl
import pccl.distributed
from pccl.diloco import DiLoCo

preload("frozen")

MIB = 1 << 20
LAYER = 25
"""MiB; of such layers the frozen part consists."""
MEMBERS = 2
PATIENCE = 120.0
LIMIT = timedelta(seconds=PATIENCE)


class Net(nn.Module):
    """A small head beside frozen layers."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(LAYER * MIB // 4096, 1024, bias=False) for _ in range(megabytes // LAYER)]
        self.frozen = nn.ModuleList(layers).requires_grad_(False)
        self.head = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Peer:
    """A process that trains, with memory of its own measured while it joins."""

    def __init__(self, pipe: Connection, kind: str, megabytes: int, place: str, keys: str, rank: int) -> None:
        torch.set_num_threads(1)
        self.model = Net(megabytes)
        self.optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.01)
        self.kind, self.place, self.keys, self.rank = kind, place, keys, rank
        self.synced = False

    def settle(self) -> None:
        """Uses what is used for the first time, so that it does not count as memory of the join."""
        self.model(torch.ones(1, 64)).sum().backward()

    def enter(self, members: int) -> int:
        """Joins, or begins with as many. Returns the bytes by which the peak of memory rose meanwhile."""
        before = reset_peak()
        if self.kind == "DiLoCo":
            self.diloco = DiLoCo(self.model, pccl.Communicator(self.place), self.optimizer, sync_every=1, peers=members or 1)
            self.diloco.__enter__()
        elif members:
            host, port = self.place.split(":")
            store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
            dist.init_process_group("pccl", store=store, rank=self.rank, world_size=members, timeout=LIMIT)
            self._wrap()
        else:
            pccl.distributed.join(self.place, timeout=LIMIT, keys=self.keys)
            self._wrap()
            before = reset_peak()  # DDP copies all weights when it is constructed, with any backend
            self.elastic.sync()
            self.synced = True
        return peak() - before

    def _wrap(self) -> None:
        self.ddp = DistributedDataParallel(self.model)
        self.elastic = pccl.distributed.Elastic(self.ddp, self.optimizer, step=0)

    def run(self) -> tuple[str, str]:
        """The masters and the keys for `join`."""
        return pccl.distributed.masters(), pccl.distributed.keys()

    def train(self, members: int) -> list[float]:
        """The seconds of each step, until the run has as many members, and three more."""
        seconds: list[float] = []
        more = 3
        while more:
            begun = time.perf_counter()
            self.optimizer.zero_grad()
            if self.kind == "DiLoCo":
                self.model(torch.ones(1, 64)).sum().backward()
                self.optimizer.step()
                self.diloco.step()
                more -= self.diloco.communicator.world_size >= members
            else:
                if not self.synced:
                    self.elastic.sync()
                self.synced = False
                self.ddp(torch.ones(1, 64)).sum().backward()
                self.optimizer.step()
                more -= dist.get_world_size() >= members
            seconds.append(time.perf_counter() - begun)
        return seconds


def masters_of(kind: str, stack: contextlib.ExitStack) -> tuple[str, Any]:
    """Where the members of a run of this kind meet, and what must live until then."""
    if kind == "DiLoCo":
        master = stack.enter_context(pccl.MasterNode("127.0.0.1:0"))
        return f"127.0.0.1:{master.port}", master
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return f"127.0.0.1:{store.port}", store


def measure(kind: str, megabytes: int) -> tuple[float, int]:
    """The seconds by which the longest step of a member is longer than its median, and the newcomer's bytes."""
    with contextlib.ExitStack() as stack:
        place, held = masters_of(kind, stack)

        def peer(rank: int, place: str, keys: str = "") -> Performer:
            one = Performer(Peer, rank, (kind, megabytes, place, keys, rank), {"PCCL_LOG_LEVEL": "ERR"})
            stack.callback(one.kill)
            return one

        members = [peer(rank, place) for rank in range(MEMBERS)]
        for one in members:
            one.tell("enter", MEMBERS)
        for one in members:
            one.answer(PATIENCE)
        newcomer = peer(MEMBERS, *([place] if kind == "DiLoCo" else members[0].ask("run")))
        newcomer.ask("settle")
        for one in members:
            one.tell("train", MEMBERS + 1)
        time.sleep(1)
        newcomer.tell("enter", 0)
        rose = newcomer.answer(PATIENCE)
        newcomer.tell("train", 99)
        steps = [one.answer(PATIENCE) for one in members]
        del held
    return max(max(each) - statistics.median(each) for each in steps), rose


def main() -> None:
    """Reads the options, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="MiB of frozen weights")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print("kind     others wait s (median, max)   newcomer's memory, % of the weights (median)")
    for kind in ("DiLoCo", "Elastic"):
        found = [measure(kind, options.megabytes) for _ in range(options.times)]
        waits = [wait for wait, _ in found]
        rose = statistics.median(rose for _, rose in found) / (options.megabytes * MIB)
        print(f"{kind:8} {statistics.median(waits):.3f}, {max(waits):.3f} {'':16} {100 * rose:.1f}", flush=True)


if __name__ == "__main__":
    main()
