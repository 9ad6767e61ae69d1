"""Snapshots in the memory of members: what they cost a training, and what a loss costs afterwards.

    python bench/snapshots.py                 # all parts, some minutes
    python bench/snapshots.py --only kernels restore

Members are processes with one FSDP2 parameter of random numbers under Elastic, on one host by TCP (PCCL_SAME_HOST_MEMORY=0).
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import harness
import torch
import torch.distributed as dist
from cffi import FFI
from harness import MIB, Row
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

METHOD = """one FSDP2 parameter over all members, SGD without state, so that a member's part is its shard; loopback TCP. Restore:
the survivors' `Elastic.last_restore`, from the call of sync to the verified state, without the snapshot after it; the slowest
of them, median over runs. Bytes: received by all survivors, against what none of them has and some of them needs."""


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


def restores(args: argparse.Namespace, rows: list[Row], bars: list[Row]) -> None:
    """What a loss costs."""
    shard = args.shard
    cases: list[tuple[str, int, int, tuple[int, ...], dict[str, Any], float]] = [
        ("trainer killed, holder lives", 4, shard, (1,), {"copies": 1}, 0.0),
        ("host lost, copies=1", 4, shard, (1,), {"copies": 1, "holder": False}, 0.0),
        ("host lost, code=(3, 1)", 4, shard, (1,), {"code": (3, 1), "holder": False}, 2.0),
        ("two hosts lost, code=(4, 2)", 6, shard // 4, (1, 4), {"code": (4, 2), "holder": False}, 3.0),
    ]
    for name, size, bytes_each, victims, options, others in cases:
        seconds, received = [], []
        for _ in range(args.runs):
            with Job(size, bytes_each, **options) as job:
                before = job.digest()
                job.kill(*victims)
                found = job.ask("sync", size - len(victims))
                harness_require(before == job.digest(), f"{name}: the state is another one")
                seconds.append(max(one["seconds"] for one in found))
                received.append(sum(one["received_bytes"] for one in found))
                job.ask("leave")
        least = least_bytes(size, bytes_each, victims, others, options)
        ratio = statistics.median(received) / least
        took = statistics.median(seconds)
        rows.append(
            {"what": name, "shard_MiB": bytes_each // MIB, "seconds": took, "received_MiB": statistics.median(received) / MIB}
        )
        if "holder lives" in name:
            bars.append(harness.bar(name, "less than 1 s, digest equal", f"{took:.2f} s", took < 1))
        else:
            bars.append(harness.bar(f"{name}: bytes of the least", "at most 1.05", f"{ratio:.3f}", ratio <= 1.05))
    with Job(6, shard // 16, code=(4, 2), holder=False) as job:
        job.kill(0, 2, 5)
        texts = [one.get("lost", "") for one in job.ask("sync", 3)]
        told = all("the state is lost" in text for text in texts) and len(set(texts)) == 1
        bars.append(harness.bar("three lost with code=(4, 2)", "StateLostError on all", "yes" if told else "no", told))


def harness_require(good: bool, text: str) -> None:
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


def cuts(args: argparse.Namespace, rows: list[Row], bars: list[Row]) -> None:
    """Divided among fewer and among more."""
    shard = args.shard // 4
    with Job(4, shard, copies=1, holder=False) as job:
        before = job.digest()
        job.kill(3)
        three = job.ask("sync", 3)
        job.ask("received")
        job.join(3)
        came = [one for member in job.ask("received") for one in member]
        harness_require(before == job.digest(), "4 to 3 to 6: the state is another one")
        rows.append({"what": "4 to 3 to 6 members", "shard_MiB": shard // MIB, "seconds": max(one["seconds"] for one in three)})
        sizes = sorted({size for size, _ in came})  # newcomers come in at one sync or at several
        least = sum(least_of_growth(old, new, shard // COLUMNS) for old, new in itertools.pairwise([3, *sizes]))
        ratio = sum(part for _, part in came) / (least * 4 * COLUMNS)
        bars.append(
            harness.bar("3 to 6 members: bytes of the least", "at most 1.01, digest equal", f"{ratio:.3f}", ratio <= 1.01)
        )
        job.ask("leave")


def differences(args: argparse.Namespace, rows: list[Row], bars: list[Row]) -> None:
    """Blocks that have not changed are not sent."""
    with Job(4, args.shard // 4, copies=1, every=EVERY) as job:
        whole = job.ask("snapshot", 1.0)[0]
        few = job.ask("snapshot", 0.05)[0]
        part = few["sent_bytes"] / whole["sent_bytes"]
        rows.append({"what": "snapshot, all changed", "shard_MiB": args.shard // 4 // MIB, "seconds": whole["seconds"]})
        rows.append({"what": "snapshot, 5 % changed", "shard_MiB": args.shard // 4 // MIB, "seconds": few["seconds"]})
        bars.append(harness.bar("5 % changed: of the bytes", "about 6 %", f"{part:.1%}", part <= 0.065))
        job.ask("leave")


def overhead(args: argparse.Namespace, rows: list[Row], bars: list[Row]) -> None:
    """Steps with snapshots and without, in turn."""
    found: dict[str, list[dict[str, list[float]]]] = {"with": [], "without": []}
    jobs = {
        "with": Job(2, args.state, copies=1, every=EVERY, holder=False),
        "without": Job(2, args.state, copies=1, every=1 << 30, holder=False),
    }
    try:
        for _ in range(args.runs):
            for name, job in jobs.items():
                found[name].append(job.ask("steps", EVERY, args.step, 64)[0])
    finally:
        for job in jobs.values():
            job.__exit__()
    steps = {name: statistics.median(sum(one["step"]) for one in blocks) for name, blocks in found.items()}
    reduces = {name: statistics.median(second for one in blocks for second in one["reduce"]) for name, blocks in found.items()}
    more = steps["with"] / steps["without"] - 1
    rows.append({"what": f"{EVERY} steps with a snapshot", "shard_MiB": args.state // MIB, "seconds": steps["with"]})
    rows.append({"what": f"{EVERY} steps without", "shard_MiB": args.state // MIB, "seconds": steps["without"]})
    bars.append(
        harness.bar(f"a snapshot in {EVERY} steps of {args.step:g} s", "less than 3 % of the time", f"{more:.1%}", more < 0.03)
    )
    slower = reduces["with"] / reduces["without"] - 1
    bars.append(
        harness.bar("64 MiB all-reduces of the same steps, median", "at most 5 % slower", f"{slower:.1%}", slower <= 0.05)
    )


def kernels(args: argparse.Namespace, rows: list[Row], bars: list[Row]) -> None:
    """The arithmetic of a code, on one core, in turn with a copy."""
    size = 64 * MIB
    source = torch.randint(0, 256, (size,), dtype=torch.uint8)
    target = source.clone()
    torch.set_num_threads(1)

    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        "XOR": lambda: code.add(target, source, 1),
        "multiply and add": lambda: code.add(target, source, 7),
    }
    other = isal(target, source, 7)
    if other is not None:
        works["ISA-L"] = other
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(15):
        for name, work in works.items():
            begun = time.process_time()
            work()
            times[name].append(time.process_time() - begun)
    rates = {name: size / statistics.median(seconds) / 1e9 for name, seconds in times.items()}
    for name, rate in rates.items():
        rows.append({"what": f"kernel: {name}", "GB_per_s": rate})
    own = rates["multiply and add"]
    bars.append(harness.ratio_bar("encode and decode, of a copy on one core", 0.5, own / rates["copy"]))
    if other is not None:
        bars.append(harness.ratio_bar("encode and decode, of ISA-L", 0.9, own / rates["ISA-L"]))


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


PARTS = {"kernels": kernels, "restores": restores, "cuts": cuts, "differences": differences, "overhead": overhead}


def run() -> None:
    parser = harness.parser(__doc__, blocks=15)
    parser.add_argument("--shard", type=int, default=256 * MIB, metavar="BYTES", help="of each member, where a loss is measured")
    parser.add_argument("--state", type=int, default=256 * MIB, metavar="BYTES", help="of each member, where steps are measured")
    parser.add_argument("--step", type=float, default=1.0, metavar="SECONDS", help="that a step computes")
    parser.add_argument("--runs", type=int, default=3, help="of each figure")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    args = parser.parse_args()
    rows: list[Row] = []
    bars: list[Row] = []
    where = harness.machine()
    for name in args.only:
        print(f"{name} ...", file=sys.stderr, flush=True)
        PARTS[name](args, rows, bars)
    harness.report(args, "snapshots", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
