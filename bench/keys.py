"""Backs "With keys" of docs/benchmarks.md: processor time of all-reduces in a run with keys, against a plain one.

Two peers on one host by TCP. Both runs have their turn block by block in the same processes. Processor time is that of both
peers, in the block with the least, since other programs of the machine only add to it.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from pathlib import Path

import harness
import methods
from harness import GIB, KIB, MIB, Master, Peer, Report, Row

import pccl
from pccl._run import keys as _keys

Runs = dict[str, tuple[str, Path | None]]
"""By name: the address of a master, and the peers' keys."""


def worker(peer: Peer, runs: Runs, size: int, calls: int, blocks: int) -> harness.Samples:
    import numpy as np

    source, target = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
    reduces, comms = {}, []
    for name, (address, keys) in runs.items():
        comms.append(comm := pccl.Communicator(address, keys=keys))
        comm.connect()
        methods.form(comm, peer.world)
        reduces[name] = functools.partial(comm.all_reduce, source, target)
    samples = harness.alternate(peer, reduces, blocks, calls)
    for comm in comms:
        comm.close()
    return samples


def body(args: argparse.Namespace) -> Report:
    os.environ[methods.SAME_HOST_MEMORY] = "0"
    least: dict[int, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        masters, peers = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        with Master() as plain, Master(keys=masters) as encrypted:
            runs: Runs = {"plain": (plain.address, None), "keys": (encrypted.address, peers)}
            for size, calls in ((4 * KIB, 500), (64 * MIB, 1)):
                with harness.Fleet(worker, 2, runs=runs, size=size, calls=calls, blocks=args.blocks) as fleet:
                    least[size] = {name: min(values) for name, values in harness.spent(fleet.results()).items()}
    small, large = least[4 * KIB], {name: seconds / (64 * MIB / GIB) for name, seconds in least[64 * MIB].items()}
    more = (small["keys"] - small["plain"]) / 2 * 1e6
    what = "64 MiB by TCP: processor time of both peers, a GiB"
    return Report(
        [
            harness.figure(f"{what}, plain", f"{large['plain']:.2f} s"),
            harness.figure(f"{what}, with keys", f"{large['keys']:.2f} s"),
            harness.figure("4 KiB by TCP: processor time that keys add for each peer", f"{more:.1f} us", "3 us", more <= 3),
        ]
    )


if __name__ == "__main__":
    harness.measure(body)
