"""Collectives over a group of all peers against torch's gloo: pccl by memory and by TCP alone.

Both are called below their Python wrappers: `Communicator.launch` here, the methods of torch's process group there. The size
is that of the longest tensor of a member: what is broadcast, reduced or sent, the result of an all-gather or a gather, the
input of a reduce-scatter, a scatter or an all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import methods
from harness import KIB, MIB, Peer, Row

import pccl
from pccl import Collective
from pccl.lab.ports import free_ports

SIZES = [4 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB]
BYTES_PER_BLOCK = 4 * MIB
CALLS_PER_BLOCK = 50
KINDS = {kind.name.lower().replace("_", "-"): kind for kind in Collective if kind is not Collective.ALL_TO_ALL_V}
BARRED = ["all-gather", "reduce-scatter", "broadcast", "all-to-all"]
"""Their bars: 1.5 x gloo by memory and 1.1 x by TCP from 16 MiB on; every other kind and size is to be no worse."""

METHOD = """fp32 on loopback, methods in turn block by block, median over blocks of the slowest peer's time per op; small ones are
timed back to back, many to a block; CPU time is that of all peers together, without the master's; root is rank 0; load: the
machine's average when the size was begun."""

Call = Callable[[], object]


class Tensors:
    """What one method works on: each member's parts are told apart by rank."""

    def __init__(self, kind: Collective, size: int, peer: Peer) -> None:
        import torch

        self.kind, self.rank, self.world = kind, peer.rank, peer.world
        self.each = max(1, size // 4 // peer.world)
        whole = self.each * peer.world
        if not divides(kind):
            self.each = whole = size // 4
        long_in = kind in (Collective.REDUCE_SCATTER, Collective.SCATTER, Collective.ALL_TO_ALL)
        long_out = kind in (Collective.ALL_GATHER, Collective.GATHER, Collective.ALL_TO_ALL)
        self.send = torch.full((whole if long_in else self.each,), float(peer.rank + 1))
        self.recv = torch.zeros(whole if long_out else self.each)

    def expected(self) -> list[float]:
        """Of the result, by parts of equal length."""
        ranks = [float(rank + 1) for rank in range(self.world)]
        if self.kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
            return [sum(ranks)]
        if self.kind is Collective.REDUCE:
            return [sum(ranks)] if self.rank == 0 else []
        if self.kind in (Collective.ALL_GATHER, Collective.ALL_TO_ALL):
            return ranks
        if self.kind is Collective.GATHER:
            return ranks if self.rank == 0 else []
        return [] if self.kind is Collective.BARRIER or self.rank == 0 else [1.0]

    def check(self, method: str) -> None:
        parts = self.expected()
        wrong = any(
            not bool((part == value).all()) for part, value in zip(self.recv.chunk(max(1, len(parts))), parts, strict=False)
        )
        if wrong:
            raise harness.BenchError(f"{method}: the result of a {self.kind.name} of {self.recv.numel()} elements is wrong")


def divides(kind: Collective) -> bool:
    return kind in (
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.GATHER,
        Collective.SCATTER,
        Collective.ALL_TO_ALL,
    )


def pccl_call(comm: pccl.Communicator, kind: Collective, tensors: Tensors) -> Call:
    size = 2 if kind is Collective.SEND else tensors.world
    group = comm.group(comm.members[:size]) if tensors.rank < size else None
    send, recv = tensors.send.data_ptr(), tensors.recv.data_ptr()
    if kind is Collective.BROADCAST and tensors.rank == 0:
        recv = send

    def call() -> None:
        if group is not None:
            comm.launch(
                kind, group=group, tag=0, send=send, recv=recv, dtype=pccl.DataType.FLOAT, count=tensors.each, keep=tensors
            ).wait()

    return call


def gloo_call(dist: Any, kind: Collective, tensors: Tensors) -> Call:
    gloo = dist.distributed_c10d._get_default_group()
    rank, send, recv = tensors.rank, tensors.send, tensors.recv
    parts_in, parts_out = list(send.chunk(tensors.world)), list(recv.chunk(tensors.world))

    def with_root(options: Any) -> Any:
        options.rootRank = 0
        return options

    begin: dict[Collective, Callable[[], Any]] = {
        Collective.ALL_REDUCE: lambda: gloo.allreduce([recv]),
        Collective.BROADCAST: lambda: gloo.broadcast([send if rank == 0 else recv], with_root(dist.BroadcastOptions())),
        Collective.REDUCE: lambda: gloo.reduce([recv], with_root(dist.ReduceOptions())),
        Collective.ALL_GATHER: lambda: gloo._allgather_base(recv, send),
        Collective.REDUCE_SCATTER: lambda: gloo._reduce_scatter_base(recv, send),
        Collective.GATHER: lambda: gloo.gather([parts_out] if rank == 0 else [], [send], with_root(dist.GatherOptions())),
        Collective.SCATTER: lambda: gloo.scatter([recv], [parts_in] if rank == 0 else [], with_root(dist.ScatterOptions())),
        Collective.ALL_TO_ALL: lambda: gloo.alltoall_base(recv, send, [], []),
        Collective.BARRIER: lambda: gloo.barrier(),
        Collective.SEND: lambda: gloo.send([send], 1, 0) if rank == 0 else gloo.recv([recv], 0, 0) if rank == 1 else None,
    }

    def call() -> None:
        work = begin[kind]()
        if work is not None:
            work.wait()

    return call


def worker(
    peer: Peer, addresses: methods.Addresses, gloo_port: int, kinds: list[str], sizes: list[int], blocks: int
) -> list[harness.Samples]:
    comms = methods.join_both(addresses, peer.world)
    # Ranks are those of the group, in the order of joining: a worker takes the place that it got.
    places = {name: comm.members.index(comm.uuid) for name, comm in comms.items()}
    dist = methods.join_gloo(peer, gloo_port)
    dist.barrier()  # it connects when it has something to send
    timed = []
    for name in kinds:
        kind = KINDS[name]
        for size in sizes_of(kind, sizes):
            calls: dict[str, Call] = {}
            everything = {"gloo": Tensors(kind, size, peer)}
            calls["gloo"] = gloo_call(dist, kind, everything["gloo"])
            for method, comm in comms.items():
                at = Peer(rank=places[method], world=peer.world, pipe=peer.pipe, barrier=peer.barrier)
                everything[method] = Tensors(kind, size, at)
                calls[method] = pccl_call(comm, kind, everything[method])
            for method, tensors in everything.items():
                if method == "gloo" and kind in (Collective.ALL_REDUCE, Collective.REDUCE):
                    continue  # in place, and its result grows from call to call
                calls[method]()
                tensors.check(method)
            timed.append(harness.alternate(peer, calls, blocks, max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // size))))
    for comm in comms.values():
        comm.close()
    peer.barrier.wait()
    return timed


def sizes_of(kind: Collective, sizes: list[int]) -> list[int]:
    """A barrier has no tensors."""
    return [4 * KIB] if kind is Collective.BARRIER else sizes


def least_of(kind: str, method: str, size: int) -> float:
    if kind not in BARRED or size < 16 * MIB:
        return 1.0
    return 1.5 if method == "pccl" else 1.1


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4], help="numbers of peers")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="tensor sizes")
    parser.add_argument("--kinds", nargs="+", default=[*BARRED, "barrier"], choices=list(KINDS), help="collectives")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for world in args.worlds:
        (gloo_port,) = free_ports(1)
        with (
            harness.Master() as usual,
            harness.Master() as by_tcp,
            harness.Fleet(
                worker,
                world,
                addresses=methods.Addresses(usual.address, by_tcp.address),
                gloo_port=gloo_port,
                kinds=args.kinds,
                sizes=args.sizes,
                blocks=args.blocks,
                pin=args.pin,
                realtime=args.realtime,
            ) as fleet,
        ):
            by_rank = fleet.results()
        measured = [(name, size) for name in args.kinds for size in sizes_of(KINDS[name], args.sizes)]
        for index, (name, size) in enumerate(measured):
            add_rows(rows, bars, world, name, size, [rank[index] for rank in by_rank], harness.placement(args))
    harness.report(args, "collectives", METHOD, where, rows, bars)


def add_rows(
    rows: list[Row], bars: list[Row], world: int, kind: str, size: int, by_rank: list[harness.Samples], placement: str
) -> None:
    walls, spent = harness.slowest(by_rank), harness.spent(by_rank)
    times = {name: harness.summary(values) for name, values in walls.items()}
    gloo = times["gloo"]["median"]
    text = "" if kind == "barrier" else harness.size_text(size)
    for name, time in times.items():
        rows.append(
            {
                "peers": world,
                "kind": kind,
                "size": text,
                "method": name,
                "median_ms": time["median"] * 1e3,
                "min_ms": time["min"] * 1e3,
                "x gloo": gloo / time["median"],
                **(harness.costs(name, walls, spent, size) if text else {}),
                "peers run": placement,
            }
        )
        if name != "gloo":
            what = f"{world} peers, {kind}{' ' * bool(text)}{text}, {name}, against gloo"
            bars.append(harness.ratio_bar(what, least_of(kind, name, size), gloo / time["median"]))


if __name__ == "__main__":
    harness.main(run)
