"""Small all-reduces, one after another: what Python costs beside the C library, against gloo."""

from __future__ import annotations

import statistics
from typing import Any

import harness
from harness import Fleet, Master, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """Two peers, fp32 sum in place of a torch tensor, methods in turn, many calls a block. `C` is pcclAllReduce on the same
communicator; `full` is the way of a call with other options, which builds all its arguments; the last columns are
torch.distributed.all_reduce on each backend. Median of the slowest peer's time, in microseconds for each call."""

CALLS = 500
MOST = 0.25
"""Of gloo's time, at 4 KiB: 70 us where gloo takes 288."""


def worker(peer: Peer, address: str, backend_master: str, gloo_port: int, sizes: list[int], blocks: int) -> Any:
    import distributed
    import methods
    import torch

    from pccl import _native

    ffi, core = _native.ffi, _native.lib
    comm = methods.join_run(address, peer.world)
    groups = distributed.make_groups(peer, {"pccl": backend_master}, gloo_port)
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT)
    found: dict[int, Any] = {}
    for size in sizes:
        tensor = torch.ones(size // 4)
        numbers = (tensor.numel(), pccl.ReduceOp.SUM.value, 0, (pccl.DataType.FLOAT.value, 0), (0, 0))
        descriptor = ffi.new("pcclReduceDescriptor_t *", numbers)
        memory = ffi.cast("void *", tensor.data_ptr())
        calls: dict[str, Any] = {
            "C": lambda memory=memory, descriptor=descriptor: core.pcclAllReduce(
                memory, memory, descriptor, comm._pointer, ffi.NULL
            ),
            "pccl": lambda tensor=tensor: comm.all_reduce(tensor),
            "pccl, retry": lambda tensor=tensor: comm.all_reduce(tensor, retry=True),
            "full": lambda tensor=tensor: comm.all_reduce(tensor, operand_descriptor=operand),
        }
        for name, group in groups.items():
            calls[f"torch {name}"] = lambda tensor=tensor, group=group: torch.distributed.all_reduce(tensor, group=group)
        for call in calls.values():  # sums that become infinite cost as much, and are not wanted
            call()
            tensor.zero_()
        found[size] = harness.alternate(peer, calls, blocks, CALLS)
    comm.close()
    peer.barrier.wait()
    return found


def run() -> None:
    parser = harness.parser(__doc__, blocks=11)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 65536], metavar="BYTES", help="bytes of the tensor")
    harness.add_pin(parser)
    args = parser.parse_args()
    where = {**harness.machine(), "placement": harness.placement(args)}
    rows: list[Row] = []
    bars: list[Row] = []
    with Master() as master, Master() as second:
        arguments: dict[str, Any] = {"address": master.address, "backend_master": second.address, "gloo_port": free_ports(1)[0]}
        with Fleet(worker, 2, pin=args.pin, realtime=args.realtime, sizes=args.sizes, blocks=args.blocks, **arguments) as fleet:
            results = fleet.results()
    for size in args.sizes:
        slowest = harness.slowest([found[size] for found in results])
        medians = {name: 1e6 * statistics.median(values) for name, values in slowest.items()}
        rows.append({"size": harness.size_text(size), **medians, "pccl / gloo": medians["pccl"] / medians["torch gloo"]})
        if size == 4096:
            ratio = medians["pccl"] / medians["torch gloo"]
            bars.append(harness.bar("4 KiB, pccl, of gloo's time", f"at most {MOST:g}", f"{ratio:.2f}", ratio <= MOST))
    harness.report(args, "small_ops", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
