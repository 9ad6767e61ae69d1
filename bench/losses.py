"""Backs "Losses and newcomers" of docs/benchmarks.md: what the death of a peer and of the master costs, and a join. Needs root.

Three peers sum one fp32 tensor again and again. *A peer*, drawn at random, is killed by SIGKILL at a random point of an
operation; the time is that until the slower survivor has repeated it, less the median of an undisturbed one of the two. *The
master*, a process of its own, is killed and started again at its address; each round needs it. *A newcomer* connects and
leaves again and again, while two peers admit it and do nothing else (idle), or also sum 1 MiB each time round (busy).
*Retry mode*: three peers in a network namespace sum by TCP, and one is killed at a given part of an undisturbed operation's
time. Bytes are those of the loopback device, frames and acknowledgements included. Sent twice: those beyond what an
undisturbed operation carries for the part that has three contributors in the end, and beyond half of that for the part that
has two.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator

import harness
import methods
from harness import KIB, MIB, BenchError, Fleet, Master, Peer, Report, Row
from netlab import Lab
from netlab import run as shell

import pccl
from pccl.lab.ports import free_ports

WORLD = 3
SETTLED_OPS = 5
WARM_UPS = 2


class Member:
    """A peer; each public method is an order."""

    def __init__(self, peer: Peer, address: str, size: int) -> None:
        import numpy as np

        self._peer = peer
        self._source = np.full(size // 4, 1.0, dtype=np.float32)
        self._target = np.ones_like(self._source)
        self._flag = np.zeros(1, np.int64)
        self._is_new = True
        self._comm = pccl.Communicator(address)
        self._comm.connect()

    def form(self, lost: bool) -> float:
        """Returns the median time of a sum, once all are there. A death after the last operation shows at the next vote."""
        while (lost and not self._is_new) or self._comm.world_size < WORLD:
            methods.update(self._comm)
            lost = False
        self._is_new = False
        return statistics.median(self._seconds() for _ in range(SETTLED_OPS))

    def until_a_loss(self, start: float) -> tuple[float, float]:
        """Returns when the repeated sum had succeeded, and the median time of a sum of the survivors."""
        time.sleep(max(0.0, start - time.monotonic()))
        with contextlib.suppress(pccl.PeerLostError):
            while True:
                self._seconds()
        self._seconds()
        repeated = time.monotonic()
        if self._target[0] != WORLD - 1 or self._target[-1] != WORLD - 1:
            raise BenchError("the survivors' sum is wrong")
        return repeated, statistics.median(self._seconds() for _ in range(SETTLED_OPS))

    def rounds(self, end: float) -> list[float]:
        """Sums, and asks what only a master can answer, until `end`. Returns the moments at which calls ended."""
        moments: list[float] = []
        self._flag[0] = 1
        while self._flag[0]:
            self._seconds()
            moments.append(time.monotonic())
            self._comm.are_peers_pending()
            moments.append(time.monotonic())
            self._flag[0] = moments[-1] < end
            self._comm.all_reduce(self._flag, self._flag, op=pccl.ReduceOp.MIN, tag=1)
        return moments

    def retry(self, start: float) -> tuple[float, float]:
        """One sum in retry mode. Returns when it ended, and the part of the tensor that has all contributors."""
        time.sleep(max(0.0, start - time.monotonic()))
        info = self._comm.all_reduce(self._source, self._target, op=pccl.ReduceOp.SUM, retry=True)
        ended = time.monotonic()
        for first, last, peers in info.contributors:
            if self._target[first] != len(peers) or self._target[last - 1] != len(peers):
                raise BenchError("the sum is not that of its contributors")
        full = sum(last - first for first, last, peers in info.contributors if len(peers) == WORLD)
        return ended, full / self._source.size

    def compare(self, blocks: int) -> harness.Samples:
        def call(retry: bool) -> None:
            self._comm.all_reduce(self._source, self._target, op=pccl.ReduceOp.SUM, retry=retry)

        return harness.alternate(self._peer, {"plain": lambda: call(False), "retry": lambda: call(True)}, blocks)

    def _seconds(self) -> float:
        start = time.monotonic()
        self._comm.all_reduce(self._source, self._target, op=pccl.ReduceOp.SUM)
        return time.monotonic() - start


def worker(peer: Peer, address: str, size: int) -> None:
    harness.serve(peer, Member(peer, address, size))


def death_of_a_peer(size: int, trials: int, draw: random.Random) -> Row:
    beyond = []
    with Master() as master, Fleet(worker, WORLD, address=master.address, size=size) as fleet:
        for _ in range(trials):
            usual = max(fleet.ask("form", False))
            victim = draw.randrange(WORLD)
            survivors = [rank for rank in range(WORLD) if rank != victim]
            start = time.monotonic() + 0.05
            fleet.begin("until_a_loss", start)
            time.sleep(max(0.0, start + draw.random() * usual - time.monotonic()))
            killed = fleet.kill(victim)
            told = fleet.end(survivors)
            fleet.replace(victim)
            beyond.append(max(repeated for repeated, _ in told) - killed - max(own for _, own in told))
    what = f"a peer is killed: the survivors' repeated sum of {harness.size_text(size)} has succeeded, beyond its own time"
    median = statistics.median(beyond)
    return harness.figure(what, harness.milliseconds(median), "50 ms", median < 0.05)


def death_of_the_master(size: int, trials: int, draw: random.Random) -> Row:
    port = free_ports(1)[0]
    master = Master(port=port)
    seconds = []
    try:
        with Fleet(worker, WORLD, address=master.address, size=size) as fleet:
            fleet.ask("form", False)
            for _ in range(trials):
                fleet.begin("rounds", time.monotonic() + 2.0)
                time.sleep(0.1 + 0.3 * draw.random())
                killed = time.monotonic()
                master.kill()
                master = Master(port=port)
                # Each round needs the master once: the longest gap is the one in which it was gone.
                gaps = [max(itertools.pairwise(ends), key=lambda pair: pair[1] - pair[0]) for ends in fleet.end()]
                seconds.append(max(after for _, after in gaps) - killed)
    finally:
        master.kill()
    median = statistics.median(seconds)
    what = f"the master is killed and started again: the next sum of {harness.size_text(size)} has succeeded"
    return harness.figure(what, harness.milliseconds(median), "1 s", median < 1)


def visitor(peer: Peer, address: str, busy: bool, visits: int) -> list[float]:
    """Rank 2 joins and leaves; the others admit it until the fleet ends them."""
    if peer.rank < WORLD - 1:
        admit(peer, address, busy)
    peer.barrier.wait()
    draw = random.Random(visits)
    seconds = []
    for _ in range(WARM_UPS + visits):
        time.sleep(draw.uniform(0.005, 0.02))
        with pccl.Communicator(address) as comm:
            start = time.perf_counter()
            comm.connect()
            seconds.append(time.perf_counter() - start)
    return seconds[WARM_UPS:]


def admit(peer: Peer, address: str, busy: bool) -> None:
    import numpy as np

    comm = methods.join_run(address, WORLD - 1)
    tensor = np.ones(MIB // 4, dtype=np.float32)
    peer.barrier.wait()
    while True:
        if comm.are_peers_pending():
            comm.update_topology()
        with contextlib.suppress(pccl.PeerLostError):  # every visit ends in one
            if busy:
                comm.all_reduce(tensor, op=pccl.ReduceOp.MAX)


def join(busy: bool, visits: int) -> Row:
    with Master() as master, Fleet(visitor, WORLD, address=master.address, busy=busy, visits=visits) as fleet:
        median = statistics.median(fleet.receive(WORLD - 1))
    most = 0.015 if busy else 0.004
    what = f"a peer joins on one host, the others {'busy' if busy else 'idle'}"
    return harness.figure(what, harness.milliseconds(median), harness.milliseconds(most), median < most)


class Loopback(Lab):
    """A namespace whose loopback device carries nothing but the peers' bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.name = self._namespace("retry")

    def carried(self) -> int:
        """Bytes so far."""
        lines = shell(f"ip netns exec {self.name} cat /proc/net/dev").splitlines()
        return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[8])


@contextlib.contextmanager
def by_tcp() -> Iterator[None]:
    os.environ[methods.SAME_HOST_MEMORY] = "0"
    yield
    del os.environ[methods.SAME_HOST_MEMORY]


def retries(size: int, blocks: int, draw: random.Random) -> list[Row]:
    ratios = {}
    with Master() as master, Fleet(worker, WORLD, address=master.address, size=size) as fleet:
        ratios["memory"] = undisturbed(fleet, blocks)
    with (
        by_tcp(),
        Loopback() as place,
        Master(namespace=place.name) as master,
        Fleet(worker, WORLD, [place.name] * WORLD, address=master.address, size=size) as fleet,
    ):
        ratios["TCP"] = undisturbed(fleet, blocks)
        twice = max(retry(fleet, place, draw, 0.5)[0] for _ in range(blocks))
        seconds = statistics.median(retry(fleet, place, draw, 0.9)[1] for _ in range(blocks))
    text = f"of a sum of {harness.size_text(size)} in retry mode"
    return [
        harness.figure(f"a death at half {text}: bytes sent twice, at most", f"{twice:.1%}", "10 %", twice <= 0.1),
        harness.figure(f"a death at 90 % {text}: time, of an undisturbed one", f"{seconds:.2f} x", "1.25 x", seconds <= 1.25),
        *(
            harness.figure(f"time {text} over a plain one, undisturbed, by {way}", f"{one:.2f} x", "1.05 x", one <= 1.05)
            for way, one in ratios.items()
        ),
    ]


def undisturbed(fleet: Fleet, blocks: int) -> float:
    """Returns the median time of a sum in retry mode over that of a plain one."""
    fleet.ask("form", False)
    by_method = harness.slowest(fleet.ask("compare", blocks))
    return statistics.median(by_method["retry"]) / statistics.median(by_method["plain"])


def retry(fleet: Fleet, place: Loopback, draw: random.Random, part: float) -> tuple[float, float]:
    """Kills one at that part of a sum. Returns the bytes sent twice and the time, of an undisturbed sum's."""
    fleet.ask("form", True)

    def reduce(after: float | None = None, victim: int = WORLD) -> tuple[float, int, float]:
        before, start = place.carried(), time.monotonic() + 0.05
        fleet.begin("retry", start)
        if after is not None:
            time.sleep(max(0.0, start + after - time.monotonic()))
            fleet.kill(victim)
        told = fleet.end([rank for rank in range(WORLD) if rank != victim])
        return max(ended for ended, _ in told) - start, place.carried() - before, told[0][1]

    own, volume, _ = (statistics.median(values) for values in zip(*(reduce() for _ in range(3)), strict=True))
    victim = draw.randrange(WORLD)
    seconds, carried, full = reduce(part * own, victim)
    fleet.replace(victim)
    return carried / volume - full - (1 - full) / 2, seconds / own


def body(args: argparse.Namespace) -> Report:
    draw = random.Random(1)
    sizes = [MIB, 64 * KIB, 64 * MIB] if args.quick else [64 * MIB, 64 * KIB, 256 * MIB]
    figures = [death_of_a_peer(sizes[0], args.blocks, draw), death_of_the_master(sizes[1], args.blocks, draw)]
    figures += [join(busy, 3 * args.blocks) for busy in (False, True)]
    if os.geteuid() == 0:
        figures += retries(sizes[2], min(9, args.blocks), draw)
    return Report(figures)


if __name__ == "__main__":
    harness.measure(body)
