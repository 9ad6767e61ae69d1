"""CPU time of a small op with many peers on one machine, all processes together."""

from __future__ import annotations

import resource
import time
from typing import Any

import harness
import methods
from harness import KIB, Master, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """fp32 sums in place, back to back, pccl and gloo in turn block by block; CPU time = user and system time
(getrusage) of all peers' processes over a block, divided by its ops; pccl's includes the master's share of its blocks. The
median over blocks is given."""


def worker(peer: Peer, address: str, gloo_port: int, size: int, ops: int, blocks: int) -> Any:
    import torch

    comm = methods.join_run(address, peer.world)
    dist = methods.join_gloo(peer, gloo_port)
    tensor = torch.ones(size // 4).zero_()
    calls = {"pccl": lambda: comm.all_reduce(tensor, tensor, op=pccl.ReduceOp.SUM), "gloo": lambda: dist.all_reduce(tensor)}
    for call in calls.values():
        call()
    used: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for block in range(blocks):
        for name in sorted(calls, reverse=bool(block % 2)):
            peer.barrier.wait()
            if peer.rank == 0:
                tell_and_wait(peer, "start")
            peer.barrier.wait()
            wall, cpu = time.perf_counter(), cpu_seconds()
            for _ in range(ops):
                calls[name]()
            used[name].append(((cpu_seconds() - cpu) / ops, (time.perf_counter() - wall) / ops))
            peer.barrier.wait()
            if peer.rank == 0:
                tell_and_wait(peer, name)
    comm.close()
    peer.barrier.wait()
    return used


def tell_and_wait(peer: Peer, word: str) -> None:
    """The parent reads the master's clock now."""
    harness.tell(peer, word)
    harness.order(peer)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--size", type=int, default=4 * KIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--ops", type=int, default=40, help="ops of a block")
    args = parser.parse_args()
    where = harness.machine()
    shape = {"size": args.size, "ops": args.ops, "blocks": args.blocks}
    masters_share = 0.0
    with (
        Master() as master,
        harness.Fleet(worker, args.peers, address=master.address, gloo_port=free_ports(1)[0], **shape) as fleet,
    ):
        for _ in range(2 * args.blocks):
            at_start = read_master(fleet, master)[1]
            method, at_end = read_master(fleet, master)
            if method == "pccl":
                masters_share += (at_end - at_start) / (args.blocks * args.ops)
        by_rank = fleet.results()
    rows: list[Row] = []
    medians = {}
    for name in ("pccl", "gloo"):
        extra = masters_share if name == "pccl" else 0.0
        cpu = harness.summary([sum(rank[name][block][0] for rank in by_rank) + extra for block in range(args.blocks)])
        wall = harness.summary([max(rank[name][block][1] for rank in by_rank) for block in range(args.blocks)])
        medians[name] = cpu["median"]
        rows.append(
            {
                "peers": args.peers,
                "size": harness.size_text(args.size),
                "method": name,
                "cpu_ms_per_op": cpu["median"] * 1e3,
                "min": cpu["min"] * 1e3,
                "of it the master": extra * 1e3,
                "wall_ms_per_op": wall["median"] * 1e3,
            }
        )
    what = f"CPU time of a {harness.size_text(args.size)} op at {args.peers} peers, all processes together"
    bars = [
        harness.bar(
            what,
            f"at most gloo's {medians['gloo'] * 1e3:.1f} ms",
            f"{medians['pccl'] * 1e3:.2f} ms",
            medians["pccl"] <= medians["gloo"],
        )
    ]
    harness.report(args, "cpu", METHOD, where, rows, bars)


def read_master(fleet: harness.Fleet, master: Master) -> tuple[str, float]:
    word = fleet.receive(0)
    used = master.cpu_seconds()
    fleet.send(0, "go on")
    return word, used


if __name__ == "__main__":
    harness.main(run)
