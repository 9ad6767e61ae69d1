"""All-reduces among sites as far apart as regions of public clouds, with cross-traffic and a link that changes. Needs root.

`bench/pictures.py` draws the rates that `make bench` stores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import fair_share
import harness
import methods
import regions
from harness import MIB, BenchError, Peer, Row
from netlab import Lab, Pair, Place, fleet_at
from regions import Matrix, Span

import pccl
from pccl.lab.ports import free_ports

METHOD = """Sites in network namespaces, each two joined by bench/wan's emulated link. Two sites: 76 ms and 100 Mbit/s. Five:
2.4 to 123 ms and 15 to 50 Mbit/s. The round trips are averages that IBM Cloud published for its regions (September 2024); rates
are low enough that two cores are not what limits the ops. fp32 sums out of place one after another with `update_topology` after
each; an op's time is that of the slowest peer. Phases of one run: undisturbed; beside one connection with cubic that sends from
Washington to London as much as it can; undisturbed; the link between these two with half of its rate, both ways; with all of it
again. `op s` is the median of the second half of a phase. `bound`: as many trees as fit into the links, which no way of reducing
can beat; `by shares`: each site owns a share and each two exchange theirs, with the best shares; both without headers, delays and
verdicts, and of its link without what the cross-traffic had. `steady after`: from the change until the mean rate of three ops
stays within 10 % of its median over the second half of the phase. `link`: all that went from Washington to London in the second
half, and how many lanes were in use for it at the end, there and back."""

SECONDS = 0.1
"""Between looks at the devices."""

BAR_SECONDS = 5.0
OPS = 3
"""Over which rates of ops are averaged."""


# ---- the peers ----


@dataclass(frozen=True, kw_only=True)
class Op:
    begin: float
    end: float
    links: tuple[pccl.Link, ...]


def worker(peer: Peer, address: str, size: int) -> list[Op]:
    """Reduces until an order comes; all end after the same op."""
    import numpy as np

    source = np.ones(size // 4, np.float32)
    target = np.empty_like(source)
    peer.barrier.wait()
    time.sleep(0.5 * peer.rank)  # the order of the ring is that of joining
    comm = methods.join_run(address, peer.world)
    methods.settle(comm)
    harness.tell(peer, None)
    ends = threading.Event()

    def await_end() -> None:
        harness.order(peer)
        ends.set()

    threading.Thread(target=await_end, daemon=True).start()
    ops: list[Op] = []
    while not ops or target[0] == peer.world:
        source[0] = not ends.is_set()
        begin = time.monotonic()
        comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
        ops.append(Op(begin=begin, end=time.monotonic(), links=comm.links()))
        if not np.all(target[1:] == peer.world):
            raise BenchError("the sum is wrong")
        comm.update_topology()
    comm.close()
    return ops


def downloader(peer: Peer, host: str, port: int) -> None:
    """The first sends to the second until it is killed; after each order the second tells how many bytes have arrived."""
    download = fair_share.Download(peer, host, port)
    while True:
        harness.tell(peer, download.arrived)
        harness.order(peer)


# ---- what passes the links ----


class Meter:
    """Looks again and again at how many bytes have arrived over each link, each way."""

    def __init__(self, lab: Lab) -> None:
        self._ends = lab.ends()
        self.looks: list[tuple[float, dict[Pair, int]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)  # it alone enters the namespaces

    def _look(self) -> None:
        counters = {}
        for namespace, _ in self._ends.values():
            harness.enter_namespace(namespace)
            counters[namespace] = os.open("/proc/thread-self/net/dev", os.O_RDONLY)
        while not self._stop.wait(SECONDS):
            arrived = {}
            for namespace, counter in counters.items():
                for line in os.pread(counter, 1 << 16, 0).decode().splitlines():
                    device, colon, counts = line.partition(":")
                    if colon:
                        arrived[namespace, device.strip()] = int(counts.split()[0])
            self.looks.append((time.monotonic(), {way: arrived[end] for way, end in self._ends.items()}))
        for counter in counters.values():
            os.close(counter)

    def mean(self, way: Pair, begin: float, end: float) -> float:
        """The rate from the look before the one moment to the one before the other."""
        times = [when for when, _ in self.looks]
        first = max((index for index, when in enumerate(times) if when <= begin), default=0)
        last = max((index for index, when in enumerate(times) if when <= end), default=0)
        if last <= first:
            return 0.0
        return (self.looks[last][1][way] - self.looks[first][1][way]) * 8e-6 / (times[last] - times[first])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# ---- a run ----


@dataclass(frozen=True, kw_only=True)
class Phase:
    name: str
    begin: float
    end: float
    megabits: float  # of the link that is disturbed
    download: float  # Mbit/s in the second half


@dataclass(frozen=True, kw_only=True)
class Run:
    matrix: Matrix
    between: Pair  # the link that is disturbed
    control: str
    megabits: float  # of a tensor, in Mbit
    phases: list[Phase]
    ops: list[Span]  # of the slowest peer; the rate is that of the tensor
    hosts: list[str]  # of the first peer of each site
    links: list[list[tuple[pccl.Link, ...]]]  # of that peer, at the end of each op
    meter: Meter


def measure(matrix: Matrix, control: str, args: argparse.Namespace) -> Run:
    a, b = sorted(map(matrix.names.index, args.link))
    usual = matrix.links[a, b]
    half = replace(usual, megabits=usual.megabits / 2)
    phases: list[Phase] = []
    with Lab() as lab:
        places = lab.sites([args.per_site] * len(matrix.names), matrix.links)
        for place in places:
            lab.congestion(place, control)

        def rest() -> float:
            time.sleep(args.seconds)
            return 0.0

        def phase(name: str, megabits: float, act: Callable[[], float] = rest) -> None:
            begin = time.monotonic()
            download = act()
            phases.append(Phase(name=name, begin=begin, end=time.monotonic(), megabits=megabits, download=download))

        with fleet_at(places, worker, size=args.size) as fleet, Meter(lab) as meter:
            fleet.results()
            phase("undisturbed", usual.megabits)
            ends = [places[site * args.per_site] for site in (a, b)]
            phase("cross-traffic", usual.megabits, lambda: cross_traffic(ends, args.seconds))
            phase("undisturbed again", usual.megabits)
            lab.change(half, (a, b))
            phase("link halved", half.megabits)
            lab.change(usual, (a, b))
            phase("link as before", usual.megabits)
            fleet.send_all(None)
            by_rank: list[list[Op]] = fleet.results()
    megabits = args.size * 8e-6
    ops = []
    for of_all in zip(*by_rank, strict=True):
        seconds = max(op.end - op.begin for op in of_all)
        ops.append(Span(max(op.begin for op in of_all), max(op.end for op in of_all), megabits / seconds))
    return Run(
        matrix=matrix,
        between=(a, b),
        control=control,
        megabits=megabits,
        phases=phases,
        ops=ops,
        hosts=[place.address for place in places[:: args.per_site]],
        links=[[op.links for op in of_one] for of_one in by_rank[:: args.per_site]],
        meter=meter,
    )


def cross_traffic(ends: list[Place], seconds: float) -> float:
    """Sends from the first to the second; gives Mbit/s in the second half of the time."""
    namespaces = [place.namespace for place in ends]
    with harness.Fleet(downloader, 2, namespaces=namespaces, host=ends[0].address, port=free_ports(1)[0]) as fleet:
        fleet.results()
        arrived: list[int] = []
        for _ in range(2):
            time.sleep(seconds / 2)
            fleet.send(1, None)
            arrived.append(fleet.receive(1))
    return (arrived[1] - arrived[0]) * 8e-6 / (seconds / 2)


# ---- what was seen ----


def within(run: Run, phase: Phase) -> list[Span]:
    ops = [span for span in run.ops if phase.begin <= span.begin and span.end <= phase.end]
    if not ops:
        raise BenchError(f"no op ended in {phase.name}: longer phases or smaller tensors are needed")
    return ops


def bounds(run: Run, phase: Phase) -> tuple[float, float]:
    """The bound, and that of shares, as rates of the tensor."""
    rates = {pair: link.megabits for pair, link in run.matrix.links.items()}
    rates[run.between] = phase.megabits - phase.download
    count = len(run.matrix.names)
    return regions.bound(count, rates), regions.bound_by_shares(count, rates)


def row(run: Run, phase: Phase) -> Row:
    ops = within(run, phase)
    latter = ops[len(ops) // 2 :]
    times = [run.megabits / span.rate for span in latter]
    bound, by_shares = (run.megabits / rate for rate in bounds(run, phase))
    seconds = statistics.median(times)
    steady = steady_after(run, phase)
    return {
        "sites": len(run.matrix.names),
        "control": run.control,
        "phase": phase.name,
        "ops": len(ops),
        "bound s": bound,
        "by shares s": by_shares,
        "op s": seconds,
        "from s": min(times),
        "to s": max(times),
        "op/bound": seconds / bound,
        "steady after s": "never" if steady is None else steady,
        "link Mbit/s": run.meter.mean(run.between, latter[0].begin, latter[-1].end),
        "of": phase.megabits,
        "lanes": lanes(run, run.ops.index(latter[-1])),
        "download Mbit/s": phase.download or "",
    }


def steady_after(run: Run, phase: Phase) -> float | None:
    averages = regions.averaged(within(run, phase), OPS)
    return regions.seconds_to_steady(averages, phase.begin) if averages else None


def lanes(run: Run, op: int) -> str:
    """In use over the link that is disturbed when that op ended, there and back."""
    counts = []
    for here, there in (run.between, run.between[::-1]):
        hosts = [link.address.rpartition(":")[0] for link in run.links[here][op]]
        counts.append(run.links[here][op][hosts.index(run.hosts[there])].lanes_in_use)
    return ", ".join(map(str, counts))


def run() -> None:
    parser = harness.parser(__doc__, blocks=1)
    parser.add_argument("--size", type=int, default=8 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--seconds", type=float, default=40, help="of each of the five phases")
    parser.add_argument("--per-site", type=int, default=1, metavar="PEERS", help="in each site")
    parser.add_argument("--control", nargs="+", default=["cubic", "bbr"], help="congestion control algorithms")
    parser.add_argument("--sites", choices=["2", "5"], nargs="+", default=["2", "5"], help="how many")
    parser.add_argument("--matrix", type=Path, help="round trips and rates of other sites, in the form of bench/regions.py")
    parser.add_argument("--link", nargs=2, metavar="SITE", default=["Washington", "London"], help="that is disturbed")
    parser.add_argument("--verbose", action="store_true", help="print each op, and what links() says at the end of each phase")
    args = parser.parse_args()
    texts = (
        [args.matrix.read_text()] if args.matrix else [regions.PAIR if sites == "2" else regions.CLOUD for sites in args.sites]
    )
    matrices = [regions.read(text) for text in texts]
    for matrix in matrices:
        if not set(args.link) <= set(matrix.names) or args.link[0] == args.link[1]:
            parser.error(f"--link: two of {', '.join(matrix.names)}")
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for matrix in matrices:
        for control in args.control:
            if control not in known:
                continue
            made = measure(matrix, control, args)
            if args.verbose:
                tell_all(made)
            rows += [row(made, phase) for phase in made.phases]
            halved = steady_after(made, made.phases[3])
            bars.append(
                harness.bar(
                    f"{len(matrix.names)} sites, {control}, the rate of a link halved: new steady state",
                    f"within {BAR_SECONDS:g} s",
                    "never" if halved is None else f"{halved:.1f} s",
                    halved is not None and halved <= BAR_SECONDS,
                )
            )
    harness.report(args, "clouds", METHOD, where, rows, bars)


def tell_all(run: Run) -> None:
    for phase in run.phases:
        print(f"{phase.name}, {phase.megabits:g} Mbit/s", file=sys.stderr)
        for span in run.ops:
            if phase.begin <= span.begin < phase.end:
                print(f"  {span.begin - phase.begin:6.2f} s: {span.end - span.begin:.2f} s", file=sys.stderr)
        last = run.ops.index(within(run, phase)[-1])
        for site, links in enumerate(run.links):
            for link in links[last]:
                print(f"  {run.matrix.names[site]} to {link.address}, {link}", file=sys.stderr)
        for way in sorted(run.meter.looks[-1][1]):
            rate = run.meter.mean(way, phase.begin + (phase.end - phase.begin) / 2, phase.end)
            print(f"  {run.matrix.names[way[0]]} to {run.matrix.names[way[1]]}: {rate:.1f} Mbit/s", file=sys.stderr)


if __name__ == "__main__":
    harness.main(run)
