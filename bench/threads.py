"""Data threads: what they cost on one core, and what a model of their parts expects of more cores."""

from __future__ import annotations

import os
import socket
import statistics
import time
from typing import Any

import harness
import methods
from harness import KIB, MIB, Master, Peer, Row

METHOD = """Two peers over TCP on loopback, fp32 sum out of place; PCCL_DATA_THREADS=0 and the number of --threads in turn, block
by block, in the same processes. With --pin each peer and all of its threads run on one core. CPU: all threads of both peers, per
GiB of tensor and peer. Parts: one thread, calls of 256 KiB; the loopback's send includes the receiver's interrupt. Rest: what
all-reduces without data threads take beyond the parts: wake-ups, acknowledgements, cores that compete for memory. The model
divides parts and rest among the threads; one thread at a time has the turn, for --turn. It knows nothing of memory bandwidth."""

MOST = 1.05
"""CPU time with data threads over that without, all on one core."""

CHUNK = 256 * KIB

CARD = 12.5e9
"""Bytes per second of 100 Gbit/s."""


def worker(peer: Peer, addresses: dict[int, str], size: int, blocks: int, lanes: int) -> Any:
    """Times one all-reduce for each number of data threads."""
    import numpy as np

    calls: dict[str, Any] = {}
    comms = []
    for threads, address in addresses.items():
        os.environ["PCCL_DATA_THREADS"] = str(threads)
        comm = methods.join_run(address, peer.world, lanes)
        tensor, result = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        calls[str(threads)] = lambda comm=comm, tensor=tensor, result=result: comm.all_reduce(tensor, result)
        comms.append(comm)
    samples = harness.alternate(peer, calls, blocks)
    for comm in comms:
        comm.close()
    peer.barrier.wait()
    return samples


def parts(size: int) -> dict[str, float]:
    """Nanoseconds per KiB of a send, a receive and a sum, as a ring does them over tensors of `size` bytes."""
    import numpy as np

    def tensor(length: int) -> Any:
        # Like torch's buffers: 64 bytes into a page. A copy to 1 to 31 bytes behind its source, modulo a page, would be
        # slow.
        memory = np.ones(length + 8192, np.uint8)
        begin = -memory.ctypes.data % 4096 + 64
        return memory[begin : begin + length].view(np.float32)

    listener = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(listener.getsockname())
    into, _ = listener.accept()
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MIB)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * MIB)
    source, result, scratch = tensor(size), tensor(size), tensor(CHUNK)
    taken: dict[str, list[float]] = {"send": [], "receive": [], "sum": []}
    step = CHUNK // 4

    def note(part: str, call: Any) -> int:
        start = time.perf_counter_ns()
        count = call()
        taken[part].append((time.perf_counter_ns() - start) / ((count if isinstance(count, int) else CHUNK) / KIB))
        return count if isinstance(count, int) else CHUNK

    for at in range(0, size // 4 - step + 1, step):
        count = note("send", lambda at=at: out.send(source[at : at + step]))
        reduces = at // step % 2 == 0  # half of a ring between two receives into scratch and sums, half into the result
        to = memoryview(scratch if reduces else result[at : at + step]).cast("B")
        got = 0
        while got < count:
            got += note("receive", lambda got=got, to=to, count=count: into.recv_into(to[got:count]))
        if reduces:
            note("sum", lambda at=at: np.add(source[at : at + step], scratch, out=result[at : at + step]))
    for each in (listener, out, into):
        each.close()
    return {part: statistics.median(values) for part, values in taken.items()}


def expected(cost: dict[str, float], cores: int) -> Row:
    """The model: bytes per second each way with all cores but one for the application's."""
    threads = max(1, cores - 1)
    apart = cost["send"] + cost["receive"] + cost["sum"] / 2  # two peers sum half of what they receive
    limits = {
        "the threads": threads * KIB * 1e9 / (apart + cost["rest"]),
        "the turn": KIB * 1e9 / cost["turn"],
        "the card": CARD,
    }
    by = min(limits, key=lambda name: limits[name])
    return {"what": f"model, {cores} cores, {threads} threads", "GB/s each way": limits[by] / 1e9, "limited by": by}


def run() -> None:
    parser = harness.parser(__doc__, blocks=15)
    parser.add_argument("--size", type=int, default=64 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--threads", type=int, default=2, help="data threads")
    parser.add_argument("--lanes", type=int, default=0, help="connections for bulk data; 0: what the library chooses")
    parser.add_argument(
        "--turn", type=float, default=70, metavar="NS", help="time with the turn per KiB, of a build with clocks around it"
    )
    harness.add_pin(parser)
    args = parser.parse_args()
    where = {**harness.machine(), "placement": harness.placement(args)}
    os.environ["PCCL_SAME_HOST_MEMORY"] = "0"
    counts = (0, args.threads)
    with Master() as without, Master() as other:
        addresses = dict(zip(counts, (without.address, other.address), strict=True))
        with harness.Fleet(
            worker,
            2,
            pin=args.pin,
            realtime=args.realtime,
            addresses=addresses,
            size=args.size,
            blocks=args.blocks,
            lanes=args.lanes,
        ) as fleet:
            samples = fleet.results()
    wall = {name: statistics.median(values) for name, values in harness.slowest(samples).items()}
    cpu = {name: statistics.median(values) / 2 / (args.size / 2**30) for name, values in harness.spent(samples).items()}
    rows: list[Row] = [{"what": f"{name} data threads", "ms": 1e3 * wall[name], "CPU s/GiB": cpu[name]} for name in wall]
    cost = parts(args.size)
    whole = cpu["0"] * 1e9 / (2**30 / KIB)
    cost["rest"] = max(5.0, whole - cost["send"] - cost["receive"] - cost["sum"] / 2)
    cost["turn"] = args.turn
    rows += [{"what": f"part: {name}", "ns/KiB": value} for name, value in cost.items()]
    rows += [expected(cost, cores) for cores in (2, 4, 8, 16)]
    # The ratio is taken within each block, because the host's speed changes between blocks.
    spent = harness.spent(samples)
    ratio = statistics.median(b / a for a, b in zip(spent["0"], spent[str(args.threads)], strict=True))
    bars = [harness.bar(f"CPU, {args.threads} data threads over none", f"at most {MOST:g} x", f"{ratio:.2f} x", ratio <= MOST)]
    harness.report(args, "threads", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
