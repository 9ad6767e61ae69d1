"""What a relay passes on, of what its line carries. Needs root."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import harness
import methods
from harness import MIB, Peer, Row
from netlab import Lab, Place, fleet_at

import pccl

METHOD = """Three network namespaces on a bridge; what leaves that of the relay is limited by tc tbf. Two peers that nobody
can dial (PCCL_ADDRESS=none) reduce through it; fp32 average in place. Each peer sends the tensor once, and the relay's line
carries both ways. The relay is `pccl relay`, or a third member of the run. The median of the slowest peer's time."""

LEAST = 0.8
PORT = 48150
HIDDEN = 2
"""Peers that nobody can dial."""


def worker(peer: Peer, address: str, relay: str, size: int, blocks: int) -> Any:
    import numpy as np

    if peer.rank < HIDDEN:
        os.environ["PCCL_ADDRESS"] = "none"
    if relay:
        os.environ["PCCL_RELAY"] = relay
    with methods.join_run(address, peer.world) as comm:
        tensor = np.ones(size // 4, np.float32)
        others = [link.uuid for link in comm.links() if link.relayed]
        reduces = functools.partial(comm.all_reduce, tensor, op=pccl.ReduceOp.AVG)
        if others:
            reduces = functools.partial(reduces, group=comm.group(sorted([comm.uuid, *others])))
        assert bool(others) == (peer.rank < HIDDEN)
        times = harness.alternate(peer, {"relayed": reduces if others else lambda: None}, blocks)
        peer.barrier.wait()
    return times


@contextlib.contextmanager
def relay_at(place: Place) -> Iterator[str]:
    """The address of a `pccl relay`."""
    command = ["ip", "netns", "exec", place.namespace, sys.executable, "-m", "pccl.cli", "relay", f"{place.address}:{PORT}"]
    relay = subprocess.Popen([*command, "--insecure"], stdout=subprocess.PIPE, text=True)
    try:
        assert relay.stdout is not None
        relay.stdout.readline()  # it listens
        yield f"{place.address}:{PORT}"
    finally:
        relay.kill()
        relay.wait()


def run() -> None:
    parser = harness.parser(__doc__, blocks=5)
    parser.add_argument("--size", type=int, default=32 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--megabits", type=float, default=1000, help="rate of the relay's line")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars = []
    for by in ("pccl relay", "member"):
        with Lab() as lab, contextlib.ExitStack() as undo:
            one, two, third = lab.star(3)
            lab.limit(third, args.megabits)
            address = undo.enter_context(relay_at(third)) if by == "pccl relay" else ""
            places = [one, two] if address else [one, two, third]
            with fleet_at(places, worker, relay=address, size=args.size, blocks=args.blocks) as fleet:
                results = fleet.results()
        time = harness.summary(harness.slowest(results)["relayed"])
        rate = 2 * args.size * 8 / 1e6 / time["median"]
        rows.append(
            {
                "relay": by,
                "line": f"{args.megabits:g} Mbit/s",
                "size": harness.size_text(args.size),
                "median_s": time["median"],
                "min_s": time["min"],
                "Mbit/s relayed": rate,
            }
        )
        what = f"relayed rate against the relay's line, {args.megabits:g} Mbit/s, {by}"
        bars.append(harness.ratio_bar(what, LEAST, rate / args.megabits))
    harness.report(args, "relay", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
