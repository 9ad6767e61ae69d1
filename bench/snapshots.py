"""Backs "Sharded models" of docs/benchmarks.md: what snapshots in the memory of members cost, and what a loss costs afterwards.

Members are processes with one FSDP2 parameter of random numbers under Elastic and SGD without state, so that a member's part
is its shard; on one host by TCP. Restored after: the slowest survivor's `Elastic.last_restore`, from the call of sync to the
verified state, without the snapshot after it; median over runs. Bytes: received by all survivors, against what none of them
has and some of them needs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import torch
import torch.distributed as dist
from cffi import FFI
from harness import MIB, Report, Row
from performers import Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl.distributed
from pccl.distributed import Elastic, PeerLostError, Snapshots, StateLostError
from pccl.state._snapshots import code
from pccl.state._snapshots.boxes import Box, Slice
from pccl.state._snapshots.images import hash_slice

preload("snapshots")

PATIENCE = 120.0
COLUMNS = 1024
EVERY = 20


class Model(nn.Module):
    """One parameter."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, COLUMNS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight[: x.numel(), 0] * x).sum()


class Member:
    """A rank."""

    def __init__(self, pipe: Connection, options: dict[str, Any], total: int) -> None:
        torch.set_num_threads(1)
        self._options, self._total = options, total

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
        self._make()

    def join(self, masters: str, keys: str, size: int) -> None:
        pccl.distributed.join(masters, timeout=timedelta(seconds=PATIENCE), keys=keys)
        self._make()
        self.sync(size)

    def _make(self) -> None:
        with torch.device("meta"):
            self.model: Any = Model(self._total // 4 // COLUMNS)
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.model.to_empty(device="cpu")
        with torch.no_grad():
            self._part().normal_(generator=torch.Generator().manual_seed(dist.get_rank()))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        snapshots = Snapshots(**self._options) if self._options else None
        self.run = Elastic(self.model, self.optimizer, step=0, snapshots=snapshots)
        self._received: list[tuple[int, int]] = []
        if self.run.sync() and self.run.last_restore is not None:
            self._received.append((dist.get_world_size(), self.run.last_restore.received_bytes))
        self.run.wait_for_snapshot()

    def _part(self) -> torch.Tensor:
        weight: Any = self.model.weight
        found: torch.Tensor = weight.to_local().detach()
        return found

    def where(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def digest(self) -> tuple[int, int]:
        """Of the own part; the sum over all members is that of the state."""
        weight, part = self.model.weight, self._part()
        rows = [len(chunk) for chunk in torch.arange(weight.shape[0]).chunk(dist.get_world_size())]
        first = sum(rows[: dist.get_rank()])
        box = Box((first, 0), tuple(part.shape))
        low, high = hash_slice("weight", Slice("float32", 4, tuple(weight.shape), box), part)
        return low, high

    def sync(self, size: int) -> dict[str, Any]:
        """Until there are so many members."""
        while dist.get_world_size() != size or self.run.last_restore is None:
            try:
                if self.run.sync() and self.run.last_restore is not None:
                    self._received.append((dist.get_world_size(), self.run.last_restore.received_bytes))
            except PeerLostError:
                continue
            except StateLostError as error:
                return {"lost": str(error)}
        return self.run.last_restore._asdict()

    def received(self) -> list[tuple[int, int]]:
        """Of each restore since the last call, how many members there were then and what came here."""
        found, self._received = self._received, []
        return found

    def snapshot(self, changed: float) -> dict[str, Any]:
        """Takes a snapshot after this part of the rows has changed."""
        with torch.no_grad():
            part = self._part()
            part[: round(len(part) * changed)] += 1
        self.run.step += EVERY
        self.run.sync()
        self.run.wait_for_snapshot()
        report = self.run.snapshot_report
        return {} if report is None else vars(report)

    def steps(self, count: int, seconds: float, megabytes: int) -> dict[str, list[float]]:
        """Steps that compute for so long and reduce a tensor; gives the seconds of each step, and of each reduce."""
        gradients = torch.ones(megabytes * MIB // 4)
        found: dict[str, list[float]] = {"step": [], "reduce": []}
        matrix = torch.randn(256, 256)
        for _ in range(count):
            begun = time.monotonic()
            self.run.sync()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                matrix = torch.tanh(matrix @ matrix)
            reduces = time.monotonic()
            dist.all_reduce(gradients)
            found["reduce"].append(time.monotonic() - reduces)
            self.run.fence()
            self.run.step += 1
            found["step"].append(time.monotonic() - begun)
        self.run.wait_for_snapshot()
        return found

    def leave(self) -> None:
        self.run.close()
        dist.destroy_process_group()


class Job:
    """Members, and what is told to all of them."""

    def __init__(self, size: int, shard: int, **options: Any) -> None:
        self._options, self._total = options, size * shard
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.members = [self._add() for _ in range(size)]
        for rank, member in enumerate(self.members):
            member.tell("start", self._store.port, rank, size)
        for member in self.members:
            member.answer(PATIENCE)

    def _add(self) -> Performer:
        environment = {"PCCL_LOG_LEVEL": "ERR", "PCCL_SAME_HOST_MEMORY": "0", "OMP_NUM_THREADS": "1"}
        return Performer(Member, 0, (self._options, self._total), environment, Path("/dev/null"))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.kill()

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        for member in self.members:
            member.tell(method, *arguments)
        return [member.answer(PATIENCE) for member in self.members]

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self.members[rank].pid, signal.SIGKILL)
        self.members = [member for rank, member in enumerate(self.members) if rank not in ranks]

    def join(self, count: int) -> None:
        where = self.members[0].ask("where")
        fresh = [self._add() for _ in range(count)]
        size = len(self.members) + count
        for member in fresh:
            member.tell("join", *where, size)
        for member in self.members:
            member.tell("sync", size)
        self.members += fresh
        for member in self.members:
            member.answer(PATIENCE)

    def digest(self) -> tuple[int, int]:
        parts = self.ask("digest")
        low, high = (sum(one[half] for one in parts) % (1 << 64) for half in (0, 1))
        return low, high


def restores(args: argparse.Namespace) -> Iterator[Row]:
    """What a loss costs."""
    shard = args.shard
    cases: list[tuple[str, int, int, tuple[int, ...], dict[str, Any], float]] = [
        ("a trainer killed, its memory still on the host", 4, shard, (1,), {"copies": 1}, 0.0),
        ("a host lost, `copies=1`", 4, shard, (1,), {"copies": 1, "holder": False}, 0.0),
        ("a host lost, `code=(3, 1)`", 4, shard, (1,), {"code": (3, 1), "holder": False}, 2.0),
        ("two of six hosts lost, `code=(4, 2)`", 6, shard // 4, (1, 4), {"code": (4, 2), "holder": False}, 3.0),
    ]
    for name, size, bytes_each, victims, options, others in cases:
        seconds, received = [], []
        for _ in range(args.runs):
            with Job(size, bytes_each, **options) as job:
                before = job.digest()
                job.kill(*victims)
                found = job.ask("sync", size - len(victims))
                require(before == job.digest(), f"{name}: the state is another one")
                seconds.append(max(one["seconds"] for one in found))
                received.append(sum(one["received_bytes"] for one in found))
                job.ask("leave")
        took = statistics.median(seconds)
        what = f"{size} members with {harness.size_text(bytes_each)} each, {name}"
        if "holder" not in options:
            yield harness.figure(f"{what}: restored after", f"{took:.2f} s", "1 s", took < 1)
            continue
        share = statistics.median(received) / least_bytes(size, bytes_each, victims, others, options)
        yield harness.figure(f"{what}: restored after", f"{took:.2f} s")
        yield harness.figure(f"{what}: bytes, of the least possible", f"{share:.3f} x", "1.05 x", share <= 1.05)


def require(good: bool, text: str) -> None:
    if not good:
        raise harness.BenchError(text)


def pieces(size: int, rows: int) -> list[range]:
    """The rows of each rank, as FSDP cuts them."""
    chunk = -(-rows // size)
    return [range(min(rows, rank * chunk), min(rows, (rank + 1) * chunk)) for rank in range(size)]


def least_bytes(size: int, shard: int, victims: tuple[int, ...], others: float, options: dict[str, Any]) -> float:
    """What the survivors have to receive: rows that another survivor has once; rows of the lost as often as units of others are
    needed to compute them, of which each survivor has one; with whole copies once, unless the copy is there."""
    rows = size * shard // 4 // COLUMNS
    before, left = pieces(size, rows), [rank for rank in range(size) if rank not in victims]
    after = dict(zip(left, pieces(len(left), rows), strict=True))
    total = 0.0
    for rank, wanted in after.items():
        for owner, had in enumerate(before):
            count = len(range(max(wanted.start, had.start), min(wanted.stop, had.stop)))
            if owner == rank or count <= 0:
                continue
            if owner not in victims:
                total += count
            elif others:
                total += others * count
            elif options.get("holder") is False:
                total += count * (rank != (owner + 1) % size)
            else:  # the holder of this host has it
                total += 0
    return max(1.0, total * 4 * COLUMNS)


def least_of_growth(old: int, new: int, rows: int) -> int:
    """The rows that members lack when there are more of them."""
    had = pieces(old, rows)
    lacks = 0
    for rank, wanted in enumerate(pieces(new, rows)):
        own = range(max(wanted.start, had[rank].start), min(wanted.stop, had[rank].stop)) if rank < old else range(0)
        lacks += len(wanted) - len(own)
    return lacks


def growth(args: argparse.Namespace) -> Iterator[Row]:
    """A state that is divided among fewer, and then among more."""
    shard = args.shard // 4
    with Job(4, shard, copies=1, holder=False) as job:
        before = job.digest()
        job.kill(3)
        job.ask("sync", 3)
        job.ask("received")
        job.join(3)
        came = [one for member in job.ask("received") for one in member]
        require(before == job.digest(), "4 to 3 to 6: the state is another one")
        sizes = sorted({size for size, _ in came})  # newcomers come in at one sync or at several
        least = sum(least_of_growth(old, new, shard // COLUMNS) for old, new in itertools.pairwise([3, *sizes]))
        share = sum(part for _, part in came) / (least * 4 * COLUMNS)
        yield harness.figure("3 members become 6: bytes, of the least possible", f"{share:.3f} x", "1.01 x", share <= 1.01)
        job.ask("leave")


def differences(args: argparse.Namespace) -> Iterator[Row]:
    """Blocks that have not changed are not sent."""
    with Job(4, args.shard // 4, copies=1, every=EVERY) as job:
        whole, few = (job.ask("snapshot", part)[0]["sent_bytes"] for part in (1.0, 0.05))
        yield harness.figure(
            "5 % changed since the last snapshot: of the bytes", f"{few / whole:.1%}", "6 %", few <= 0.065 * whole
        )
        job.ask("leave")


def overhead(args: argparse.Namespace) -> Iterator[Row]:
    """Steps with snapshots and without, in turn."""
    found: dict[str, list[dict[str, list[float]]]] = {"with": [], "without": []}
    with ExitStack() as stack:
        every = {"with": EVERY, "without": 1 << 30}
        jobs = {name: stack.enter_context(Job(2, args.shard, copies=1, every=one, holder=False)) for name, one in every.items()}
        for _ in range(args.runs):
            for name, job in jobs.items():
                found[name].append(job.ask("steps", EVERY, args.step, 64)[0])
    steps = {name: statistics.median(sum(one["step"]) for one in blocks) for name, blocks in found.items()}
    reduces = {name: statistics.median(second for one in blocks for second in one["reduce"]) for name, blocks in found.items()}
    what = f"a snapshot of {harness.size_text(args.shard)} in {EVERY} steps of {args.step:g} s"
    more, slower = steps["with"] / steps["without"] - 1, reduces["with"] / reduces["without"] - 1
    yield harness.figure(f"{what}: longer by", f"{more:.1%}", "3 %", more < 0.03)
    yield harness.figure(f"{what}: their all-reduces of 64 MiB slower by", f"{slower:.1%}", "5 %", slower <= 0.05)


def kernels(args: argparse.Namespace) -> Iterator[Row]:
    """The arithmetic of a code, on one core, in turn with a copy."""
    size = 64 * MIB
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = source.clone()
    torch.set_num_threads(1)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "code": lambda: code.add(target, source, 7),
    }
    if (other := isal(target, source, 7)) is not None:
        works["ISA-L"] = other
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(args.blocks):
        for name, work in works.items():
            begun = time.process_time()
            work()
            times[name].append(time.process_time() - begun)
    own = statistics.median(times.pop("code"))
    for name, seconds in times.items():
        least = {"copy": 0.5, "ISA-L": 0.9}[name]
        yield harness.ratio(f"encode and decode on one core, against {name}", least, statistics.median(seconds) / own)


def isal(target: torch.Tensor, source: torch.Tensor, factor: int) -> Callable[[], object] | None:
    """What multiplies and adds by the library ISA-L (Debian: libisal2); None: it is not installed."""
    ffi = FFI()
    ffi.cdef("""
        void ec_init_tables(int k, int rows, unsigned char *a, unsigned char *gftbls);
        void ec_encode_data_update(int len, int k, int rows, int vec_i, unsigned char *g_tbls, unsigned char *data,
                                   unsigned char **coding);
    """)
    try:
        library: Any = ffi.dlopen("libisal.so.2")
    except OSError:
        return None
    table = ffi.new("unsigned char[32]")
    library.ec_init_tables(1, 1, ffi.new("unsigned char[1]", [factor]), table)
    data = ffi.cast("unsigned char *", source.data_ptr())
    coding = ffi.new("unsigned char *[1]", [ffi.cast("unsigned char *", target.data_ptr())])
    return lambda: library.ec_encode_data_update(source.numel(), 1, 1, 0, table, data, coding)


PARTS = (restores, growth, differences, overhead, kernels)


def body(args: argparse.Namespace) -> Report:
    if args.quick:
        args.shard, args.step, args.runs = 4 * MIB, 0.02, 1
    return Report([row for part in PARTS if part.__name__ in args.only for row in part(args)])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shard", type=int, default=256 * MIB, metavar="BYTES", help="of each member [256 MiB]")
    parser.add_argument("--step", type=float, default=1.0, metavar="SECONDS", help="that a step computes [1]")
    parser.add_argument("--runs", type=int, default=3, help="of each figure [3]")
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to measure")


if __name__ == "__main__":
    harness.measure(body, options=options)
