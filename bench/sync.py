"""Backs "State for a joiner" of docs/benchmarks.md: `sync_shared_state` when nothing, some or all of a state differs.

Peers are processes; each round is one sync of all, whose contents are set before. Nothing differs: the time beyond the hash
of the own state, for the last to arrive, who waits for nobody. A joiner that lacks everything: bytes over the time of its
whole call, hashing included, against the same bytes over as many plain TCP connections between two processes, in turn. Three
donors: in network namespaces, each donor's way out limited by tbf, which needs root. Memory: the peak of a member during a
sync, over what it had before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from pathlib import Path
from typing import Any, Self

import harness
import methods
import netlab
from harness import MIB, BenchError, Fleet, Master, Peer, Report, Row

import pccl
from pccl.lab.ports import free_ports

LEAF = 256 << 10
LIMITED_MEGABITS = 200


class Member:
    """A peer; each public method is an order."""

    def __init__(self, peer: Peer, address: str) -> None:
        self._rank = peer.rank
        self._comm = pccl.Communicator(address, 0, methods.LANES)
        self._arrays: list[Any] = []
        self._state: Any = None

    def form(self, world: int) -> None:
        self._comm.connect()
        methods.form(self._comm, world)

    def fill(self, seeds: list[int], sizes: list[int], revisions: list[int]) -> None:
        """Makes a state of random bytes; seeds and revisions are by rank."""
        import numpy as np

        self._arrays.clear()
        self._state = None
        generator = np.random.default_rng(seeds[self._rank])
        self._arrays += [np.frombuffer(bytearray(generator.bytes(size)), np.uint8) for size in sizes]
        named = [pccl.TensorInfo.from_numpy(array, str(at)) for at, array in enumerate(self._arrays)]
        self._state = pccl.SharedState(named)
        self._state.revision = revisions[self._rank]

    def spoil(self, every: int) -> None:
        for leaf in range(0, self._arrays[0].size // LEAF, every):
            self._arrays[0][leaf * LEAF] ^= 255

    def sync(self) -> dict[str, Any]:
        before = reset_peak()
        info = self._comm.sync_shared_state(self._state)
        made = {"rx": info.rx_bytes, "seconds": info.seconds, "hash": info.hash_seconds, "transfer": info.transfer_seconds}
        return made | {"beyond": peak() - before}

    def hash(self) -> str:
        return str(self._state.hash())

    def push(self) -> None:
        self._state.push_revision()


def worker(peer: Peer, address: str) -> None:
    harness.serve(peer, Member(peer, address))


def reset_peak() -> int:
    """Forgets the highest memory use so far. Returns the present one."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Run:
    """A master and a fleet of accepted peers."""

    def __init__(self, world: int, places: list[netlab.Place] | None = None, memory: bool = True) -> None:
        self._stack = contextlib.ExitStack()
        os.environ[methods.SAME_HOST_MEMORY] = str(int(memory))
        home = places[0] if places else None
        master = self._stack.enter_context(Master(home.address, home.namespace) if home else Master())
        namespaces = [place.namespace for place in places] if places else None
        fleet = Fleet(worker, world, namespaces, address=master.address)
        self.ask = self._stack.enter_context(fleet).ask
        del os.environ[methods.SAME_HOST_MEMORY]
        self.ask("form", world)

    def require_same(self) -> None:
        if len(set(self.ask("hash"))) != 1:
            raise BenchError("the contents differ after a sync that succeeded")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def nothing_differs(size: int, blocks: int) -> Row:
    with Run(3) as run:
        run.ask("fill", [1] * 3, [size // 200] * 200, [0] * 3)
        beyond = []
        for _ in range(blocks):
            beyond.append(min(info["seconds"] - info["hash"] for info in run.ask("sync")))
            run.ask("push")
    found = statistics.median(beyond)
    what = f"{harness.size_text(size)} in 200 entries that are equal already, beyond the hash"
    return harness.figure(what, f"{found * 1e3:.2f} ms", "2 ms", found <= 0.002)


def joiner(size: int, blocks: int) -> list[Row]:
    plain: list[float] = []
    found: dict[str, list[Row]] = {"memory": [], "TCP": []}
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(Fleet(methods.plain_tcp, 2, size=size, port=free_ports(1)[0]))
        runs = {way: stack.enter_context(Run(2, memory=way == "memory")) for way in found}
        for block in range(blocks + 1):
            raw.send_all(None)
            plain.append(float(raw.results()[1]))
            for way, run in runs.items():
                run.ask("fill", [1, 2 + block], [size], [1 + block, 0])
                found[way].append(run.ask("sync")[1])
        for run in runs.values():
            run.require_same()
        run = runs["memory"]
        run.ask("fill", [1, 1], [size], [2 + blocks] * 2)
        run.ask("spoil", 20, ranks=[1])
        part = max(info["rx"] for info in run.ask("sync")) / size  # either may join first and keep its own state
    figures = []
    for way, infos in found.items():
        pairs = list(zip(plain, infos, strict=True))[1:]  # the first block warms up
        ratio = statistics.median(seconds / info["seconds"] for seconds, info in pairs)
        what = f"{harness.size_text(size)} from one donor on one host, of the speed of plain TCP, by {way}"
        figures.append(harness.figure(what, f"{ratio:.0%}", "80 %", ratio >= 0.8))
    beyond = max(info["beyond"] for infos in found.values() for info in infos) / MIB
    figures.append(harness.figure("5 % of the leaves differ: of the bytes", f"{part:.1%}", "6 %", part <= 0.06))
    figures.append(harness.figure("peak memory of a joiner beyond the state", f"{beyond:.1f} MiB", "64 MiB", beyond <= 64))
    return figures


def three_donors(size: int) -> Row:
    with netlab.Lab() as lab:
        places = lab.star(4)
        for place in places[:3]:
            lab.limit(place, LIMITED_MEGABITS)
        with Run(4, places) as run:
            run.ask("fill", [1, 1, 1, 2], [size], [5, 5, 5, 0])
            infos = run.ask("sync")
            run.require_same()
    ratio = size * 8e-6 / infos[3]["transfer"] / (3 * LIMITED_MEGABITS)
    what = f"three donors with {LIMITED_MEGABITS} Mbit/s each, of the sum of their lines"
    return harness.figure(what, f"{ratio:.0%}", "90 %", ratio >= 0.9)


def body(args: argparse.Namespace) -> Report:
    unit = MIB // 8 if args.quick else MIB
    figures = [nothing_differs(256 * unit, 3 * args.blocks), *joiner(1024 * unit, args.blocks)]
    if os.geteuid() == 0:
        figures.append(three_donors(128 * unit))
    return Report(figures)


if __name__ == "__main__":
    harness.measure(body, 5)
