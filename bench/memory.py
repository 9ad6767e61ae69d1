"""Peak memory of a peer beyond its tensors: after one op and after many."""

from __future__ import annotations

from pathlib import Path

import harness
import methods
from harness import MIB, Master, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers, one fp32 tensor pair each. Growth = peak resident memory (VmHWM, reset by /proc/self/clear_refs) of a
peer that joined and reduced, over its resident memory with all tensors written and before it joined. Each method in processes
of its own. Memory of the kernel's sockets is not counted."""

ALLOWED_MIB = 24


def status(key: str) -> int:
    """Bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def worker(peer: Peer, method: str, address: str, port: int, size: int, ops: int) -> list[float]:
    import torch
    import torch.distributed  # so that its import is not counted

    source = torch.ones(size // 4)
    target = torch.ones_like(source) if method == "pccl" else source
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    if method == "gloo":
        dist = methods.join_gloo(peer, port)
        reduce = lambda: dist.all_reduce(source)  # noqa: E731
    else:
        comm = methods.join_run(address, peer.world)
        reduce = lambda: comm.all_reduce(source, target, op=pccl.ReduceOp.AVG)  # noqa: E731
    growth = []
    for count in (1, ops - 1):
        for _ in range(count):
            reduce()
        growth.append((status("VmHWM") - before) / MIB)
        peer.barrier.wait()
    return growth


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--size", type=int, default=256 * MIB, metavar="BYTES", help="bytes of a tensor")
    parser.add_argument("--ops", type=int, default=100, help="ops of the second measurement")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    bars: list[Row] = []
    for method in ("pccl", "pccl in place", "gloo"):
        shape = {"method": method, "size": args.size, "ops": args.ops}
        with Master() as master, harness.Fleet(worker, 2, address=master.address, port=free_ports(1)[0], **shape) as fleet:
            first, later = (max(values) for values in zip(*fleet.results(), strict=True))
        rows.append({"method": method, "tensor": harness.size_text(args.size), "MiB after 1": first, f"after {args.ops}": later})
        if method != "gloo":
            allowed = ALLOWED_MIB + (args.size / MIB if method.endswith("place") else 0)
            for ops, growth in ((1, first), (args.ops, later)):
                place = "in place" if method.endswith("place") else "out of place"
                what = f"peak memory of a peer beyond its tensors, {harness.size_text(args.size)} {place}, after {ops} ops"
                bars.append(harness.bar(what, f"at most {allowed:.0f} MiB", f"{growth:.1f} MiB", growth <= allowed))
    harness.report(args, "memory", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
