"""One all-reduce at each alignment of its tensors: how the place in a page that they begin at changes its time."""

from __future__ import annotations

import os
import statistics
from typing import Any

import harness
import methods
from harness import MIB, Master, Peer, Row

METHOD = """Two peers over TCP on loopback, or by memory, uint8 maximum in place, tensors that begin so many bytes into a page at
both peers, or at one (the other's begin 64 bytes into one, as torch's do). All alignments in turn; the median of the slowest
peer's time."""

PAGE = 4096
NEAR = (0, 1, 4, 16, 31, 32, 48, 64, 65, 68, 80, 95, 96, 97, 112, 127, 128)
"""Where the head of a frame and a tensor are near each other, modulo a page."""

MOST = 1.25
"""Times the median of all alignments."""


def worker(peer: Peer, address: str, alignments: list[int], size: int, blocks: int) -> Any:
    """Times each alignment at both peers, and at the second one only."""
    import numpy as np

    import pccl

    comm = methods.join_run(address, peer.world)
    memory = np.ones(size + 2 * PAGE, np.uint8)
    page = -memory.ctypes.data % PAGE
    calls: dict[str, Any] = {}
    for at in alignments:
        for where in ("both", "one"):
            begin = page + (at if where == "both" or peer.rank == 1 else 64)
            tensor = memory[begin : begin + size]
            calls[f"{at} {where}"] = lambda tensor=tensor: comm.all_reduce(tensor, op=pccl.ReduceOp.MAX)
    times = harness.alternate(peer, calls, blocks)
    comm.close()
    peer.barrier.wait()
    return times


def run() -> None:
    parser = harness.parser(__doc__, blocks=9)
    parser.add_argument("--size", type=int, default=16 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--step", type=int, default=256, help="bytes from one alignment to the next, beside the near ones")
    parser.add_argument("--memory", action="store_true", help="let the peers share memory")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = {**harness.machine(), "placement": harness.placement(args)}
    alignments = sorted({*NEAR, *range(0, PAGE, args.step)})
    os.environ["PCCL_SAME_HOST_MEMORY"] = "1" if args.memory else "0"
    with (
        Master() as master,
        harness.Fleet(
            worker,
            2,
            pin=args.pin,
            realtime=args.realtime,
            address=master.address,
            alignments=alignments,
            size=args.size,
            blocks=args.blocks,
        ) as fleet,
    ):
        medians = {name: statistics.median(values) for name, values in harness.slowest(fleet.results()).items()}
    usual = statistics.median(medians.values())
    rows: list[Row] = [
        {"begins at": at, **{f"{where} ms": 1e3 * medians[f"{at} {where}"] for where in ("both", "one")}} for at in alignments
    ]
    worst = max(medians, key=lambda name: medians[name])
    ratio = medians[worst] / usual
    text = f"{ratio:.2f} x ({worst})"
    bars = [harness.bar("slowest alignment over the median of all", f"at most {MOST:g} x", text, ratio <= MOST)]
    harness.report(args, "alignment", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
