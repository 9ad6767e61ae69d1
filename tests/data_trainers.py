"""Processes that train with samples of `pccl.data`, while some are killed and others join.

The model has a weight for each sample, which only a step with that sample changes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from fake_loaders import FakeLoader
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import pccl
import pccl.diloco
import pccl.distributed
from pccl.data import ElasticSampler, ElasticShards
from pccl.distributed import Elastic, PeerLostError, Snapshots

preload(__name__)

EPOCHS = 2

BATCH = 4


class Counts(nn.Module):
    """A model that learns which samples it has seen."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -self.weight[batch].sum()


class Account:
    """What is committed, as one member hears of it."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._ledger = sampler._ledger
        self.committed: list[int] = []
        self._commit, self._load = self._ledger.commit, self._ledger.load
        self._ledger.commit = self.commit  # type: ignore[method-assign]
        self._ledger.load = self.load  # type: ignore[method-assign]

    def commit(self, counts: Any) -> None:
        ledger = self._ledger
        for place, member in enumerate(ledger.members):
            entries = (ledger.at(place, ledger.taken[place] + number) for number in range(counts.get(member, 0)))
            self.committed += [entry for entry in entries if entry >= 0]
        self._commit(counts)

    def load(self, state: Any) -> None:
        """The state of the others, or of an older step."""
        self._load(state)
        begun = range((self._ledger.epoch + 1) * self._ledger.size)
        left = set(self._ledger.left)
        self.committed = [one for one in self.committed if one in begun and one not in left]
        self.committed += sorted(set(begun) - left - set(self.committed))


class StreamAccount:
    """The same of shards, which are ranges of indices."""

    def __init__(self, shards: ElasticShards, ranges: list[range], size: int) -> None:
        self._ranges, self._size = ranges, size
        self._progress = shards._progress
        self._commit, self._load = self._progress.commit, self._progress.load
        self._progress.commit = self.commit  # type: ignore[method-assign]
        self._progress.load = self.load  # type: ignore[method-assign]
        self.committed: list[int] = []

    def commit(self, rows: Any) -> bool:
        for mark in (mark for marks in rows.values() for mark in marks):
            self._take(mark.shard, self._progress.mark(mark.shard).records, mark.records)
        return self._commit(rows)

    def _take(self, shard: int, first: int, last: int) -> None:
        begin = self._progress.epoch * self._size
        self.committed += [begin + index for index in self._ranges[shard][first:last]]

    def load(self, state: Any) -> None:
        self._load(state)
        self.committed = list(range(self._progress.epoch * self._size))
        for mark in self._progress.marks.values():
            self._take(mark.shard, 0, mark.records)


class Reader:
    """In the process."""

    def __init__(self, pipe: Connection, kind: str, size: int, options: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.kind, self.size = kind, size
        self.options = options
        self.log: list[Any] = []
        self.together = -1 << 30
        """The outer step at which all had come."""

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        limit = timedelta(seconds=PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit)

    def join(self, masters: str, keys: str) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)

    def run(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def _loader(self, size: int, **arguments: Any) -> tuple[ElasticSampler, Callable[[], Any]]:
        """A sampler, and what makes the loader of a pass."""
        sampler = ElasticSampler(range(size), seed=3, global_batch_size=self.options.get("global"), **arguments)
        wanted = self.options.get("loader")
        if wanted is None:
            return sampler, lambda: FakeLoader(sampler, BATCH, self.options.get("ahead", 0))
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
        loader: Any = DataLoader(range(size), BATCH, sampler=sampler, collate_fn=list, **wanted)  # type: ignore[arg-type]
        return sampler, lambda: loader

    def _steps(self, sampler: Any, loader: Callable[[], Any]) -> Iterator[Any]:
        """The batches of each step, to be drawn one after another."""
        for _ in sampler.epochs(EPOCHS):
            if self.kind == "stream":
                yield from ([one] for one in sampler.batches())
                continue
            if self.options.get("global"):
                yield from sampler.steps(loader())
                continue
            batches = iter(loader())
            for first in batches:
                yield itertools.chain([first], itertools.islice(batches, self.options.get("accumulate", 1) - 1))

    def _learnt(self, sampler: Any, indices: list[int] | None, offset: int = 0) -> torch.Tensor:
        """What is to be learned from, of a batch."""
        batch = torch.tensor(indices or [], dtype=torch.int64) + offset
        return batch if self.kind == "stream" else batch[sampler.mask(len(batch))]

    def train(self, die_at: int | None, where: str, until: int) -> dict[str, Any]:
        """Trains to the end; kills itself at a step. The first steps go on until there are so many members."""
        data: Any
        loader: Any = None
        if self.kind == "stream":
            ranges = [range(first, min(first + 7, self.size)) for first in range(0, self.size, 7)]
            data = ElasticShards(ranges, iter, BATCH, collate=list, seed=3)
            self.account: Any = StreamAccount(data, ranges, self.size)
        else:
            data, loader = self._loader(self.size)
            self.account = Account(data)
        values, steps, second = {"data": data}, [self._steps(data, loader)], self.options.get("second", 0)
        samplers = [data]
        if second:  # another data set, with a loader of its own
            other, loader = self._loader(second)
            self.second = Account(other)
            values["other"] = other
            samplers.append(other)
            steps.append(self._steps(other, loader))
        plain = Counts(self.size + second)
        model: Any = plain
        snapshots = Snapshots(every=3, copies=1) if self.kind in ("fsdp", "hsdp") else None
        if self.kind == "fsdp":
            fully_shard(plain, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        elif self.kind == "hsdp":
            shape = (max(dist.get_world_size() // 2, 1), min(dist.get_world_size(), 2))
            fully_shard(plain, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
        else:
            model = DistributedDataParallel(plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        run = Elastic(model, optimizer, step=0, snapshots=snapshots, **values)
        run.sync()
        while dist.get_world_size() < until:
            run.sync()
        for parts in itertools.zip_longest(*steps, fillvalue=()):
            dies = run.step == die_at
            try:
                optimizer.zero_grad()
                losses = [0 * model(torch.tensor([], dtype=torch.int64))]
                for place, batches in enumerate(parts):
                    for indices in batches:
                        losses.append(model(self._learnt(samplers[place], indices, place * self.size)))
                if dies and where == "forward":
                    os.kill(os.getpid(), signal.SIGKILL)
                sum(losses).backward()  # type: ignore[union-attr]
                if dies and where == "backward":
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                run.step += 1
            except PeerLostError:
                assert self.kind in ("fsdp", "hsdp")
            if dies and where == "step":
                os.kill(os.getpid(), signal.SIGKILL)
            run.sync()
        weight = plain.weight.full_tensor() if isinstance(plain.weight, DTensor) else plain.weight
        return self._told(run.step, weight)

    def outer(self, address: str, name: str, peers: int, members: int, die_at: int | None, where: str) -> dict[str, Any]:
        """The same with DiLoCo."""
        comm = pccl.Communicator(address)
        self.sampler, loader = self._loader(self.size, communicator=comm)
        self.account = Account(self.sampler)
        model = Counts(self.size)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        kind = getattr(pccl.diloco, name)
        diloco = kind(
            model, comm, optimizer, sync_every=2, outer_lr=1.0, outer_momentum=0.0, state={"data": self.sampler}, peers=peers
        )

        def die(moment: str) -> None:
            if where == moment and die_at is not None and diloco.outer_step == self.together + die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        meet = diloco._membership.meet

        def meet_or_die(**arguments: Any) -> Any:
            die("meeting")
            return meet(**arguments)

        diloco._membership.meet = meet_or_die
        with diloco:
            while comm.world_size < members:
                diloco.synchronize()
            self.together = diloco.outer_step
            for _ in self.sampler.epochs(EPOCHS):
                for indices in loader():
                    optimizer.zero_grad()
                    model(self._learnt(self.sampler, indices)).backward()
                    optimizer.step()
                    die("inner")
                    diloco.step()
                diloco.synchronize()
            told = self._told(diloco.outer_step, model.weight)
            return told if name != "StreamingDiLoCo" else {**told, "weights": []}  # each has inner parameters of its own

    def _told(self, step: int, weight: torch.Tensor) -> dict[str, Any]:
        counts = Counter(self.account.committed)
        second = self.options.get("second", 0)
        if second:
            counts.update(-1 - one for one in self.second.committed)
        return {
            "step": step,
            "twice": sum(count > 1 for count in counts.values()),
            "missing": EPOCHS * (self.size + second) - len(counts),
            "unlearned": int((weight == 0).sum()),
            "weights": sorted({round(one, 6) for one in weight.tolist()}),
        }

    def share(self, replicas: int) -> str:
        """What a sampler says to ranks that are to share samples."""
        try:
            ElasticSampler(range(9), replicas, 0)
        except ValueError as error:
            return str(error)
        return ""

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class Job:
    """Members that torch's store brings together."""

    def __init__(self, kind: str, size: int, **options: Any) -> None:
        self._arguments = kind, size, options
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.members: list[Performer] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.kill()

    def add(self) -> Performer:
        self.members.append(Performer(Reader, len(self.members), self._arguments, {"PCCL_LOG_LEVEL": "ERR"}))
        return self.members[-1]

    def start(self, size: int) -> list[Performer]:
        made = [self.add() for _ in range(size)]
        for rank, member in enumerate(made):
            member.tell("start", self._store.port, rank, size)
        for member in made:
            member.answer()
        return made

    def join(self, at: Performer) -> Performer:
        made = self.add()
        made.ask("join", *at.ask("run"))
        return made


def check(told: list[dict[str, Any]]) -> None:
    """All survivors have the same account, in which each sample of each epoch is once, and has changed the model."""
    assert told
    for one in told:
        assert (one["twice"], one["missing"], one["unlearned"]) == (0, 0, 0), told
    assert len({one["step"] for one in told}) == 1, told
    assert len({str(one["weights"]) for one in told}) == 1, told
