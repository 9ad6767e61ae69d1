"""What keys cost a run: a small operation, a long link and its spare lanes, a newcomer among many members, a takeover."""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import harness
import scaling
from harness import MIB, Fleet, Master, Peer, Row
from netlab import Lab, Link, Place

import pccl
from pccl._run import keys as _keys
from pccl.lab.ports import free_ports

METHOD = """Plain and with keys in turn within one run; medians, and the ratio of medians. `op`: two processes on one host, by
TCP, sum 4 KiB; processor time of a peer for each operation, all threads, in the block with the least: other programs of the
machine only add to it; `memory`: the same of larger tensors by shared memory. `far`: two namespaces joined by bench/wan's
link; each process has a communicator in a plain run and one in a run with keys, over the same link. `spare`: the same, a new
link and new processes each time; from the moment when both know each other until so many connections are established. `join`:
the members are communicators of one process; a newcomer of the same process connects, and all members vote once; the pause is
the longest of these votes. Processor time is that of both sides. `takeover`: light peers (bench/light_peers.c) are stopped,
their master is killed, another one listens, and the peers go on; until all are in its epoch, with all links taken for made."""

Files = tuple[Path, Path]
"""Key files of masters and of peers."""
KINDS = ("plain", "keys")
CALLS = 500
OP_MOST_US = 3.0
MEMORY_MOST = 1.02
FAR_LEAST = 0.97
SPARE_MOST = 1.2
JOIN_MOST = 1.5
TAKEOVER_MOST = 1.5
LONG_LIMIT = 60.0


@contextmanager
def two_runs(host: str = "127.0.0.1", namespace: str | None = None) -> Iterator[dict[str, tuple[str, Path | None]]]:
    """Two masters; gives the address and the peers' keys of each run, by kind."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        plain = stack.enter_context(Master(host, namespace))
        encrypted = stack.enter_context(Master(host, namespace, files[0]))
        yield {"plain": (plain.address, None), "keys": (encrypted.address, files[1])}


def row(what: str, kind: str, values: dict[str, float]) -> Row:
    return {"what": what, "run": kind, **values}


def join_each(runs: dict[str, tuple[str, Path | None]], world: int, lanes: int = 0) -> dict[str, pccl.Communicator]:
    comms = {}
    for kind, (address, keys) in runs.items():
        comms[kind] = pccl.Communicator(address, p2p_connection_pool_size=lanes, keys=keys)
        comms[kind].connect()
        comms[kind].wait_for_peers(world)
    return comms


# ---- a small operation ----


def op_worker(peer: Peer, runs: dict[str, tuple[str, Path | None]], size: int, calls: int, blocks: int) -> Any:
    import numpy as np

    comms = join_each(runs, peer.world)
    source, target = np.zeros(size // 4, np.float32), np.ones(size // 4, np.float32)
    reduces = {kind: partial(comm.all_reduce, source, target) for kind, comm in comms.items()}
    samples = harness.alternate(peer, reduces, blocks, calls)
    for comm in comms.values():
        comm.update_topology()  # a barrier
        comm.close()
    return samples


def compare_ops(what: str, size: int, calls: int, blocks: int) -> tuple[list[Row], dict[str, float]]:
    """Returns the rows, and microseconds of processor time of a peer for each operation by kind."""
    with two_runs() as runs, Fleet(op_worker, 2, runs=runs, size=size, calls=calls, blocks=blocks) as fleet:
        results = fleet.results()
    spent, slowest = harness.spent(results), harness.slowest(results)
    least = {kind: 1e6 * min(spent[kind]) / 2 for kind in KINDS}
    rows = [
        row(
            what,
            kind,
            {
                "processor us": least[kind],
                "median of blocks": 1e6 * statistics.median(spent[kind]) / 2,
                "us": 1e6 * statistics.median(slowest[kind]),
            },
        )
        for kind in KINDS
    ]
    return rows, least


def measure_op(blocks: int) -> tuple[list[Row], list[Row]]:
    os.environ["PCCL_SAME_HOST_MEMORY"] = "0"
    try:
        rows, least = compare_ops("op, 4 KiB", 4096, CALLS, blocks)
    finally:
        del os.environ["PCCL_SAME_HOST_MEMORY"]
    more = least["keys"] - least["plain"]
    text = "4 KiB between two by TCP: more processor time of a peer"
    return rows, [harness.bar(text, f"at most {OP_MOST_US:g} us", f"{more:.1f} us", more <= OP_MOST_US)]


def measure_memory(blocks: int) -> tuple[list[Row], list[Row]]:
    rows: list[Row] = []
    bars: list[Row] = []
    for size, calls in ((4 * MIB, 4), (64 * MIB, 1)):
        found, least = compare_ops(f"by memory, {size // MIB} MiB", size, calls, blocks)
        rows += found
        ratio = least["keys"] / least["plain"]
        text = f"{size // MIB} MiB by memory, processor time of a peer"
        bars.append(harness.bar(text, f"at most {MEMORY_MOST:g} x", f"{ratio:.2f} x", ratio <= MEMORY_MOST))
    return rows, bars


# ---- a long link ----


def far_worker(peer: Peer, runs: dict[str, tuple[str, Path | None]], size: int, blocks: int) -> Any:
    import numpy as np

    comms = join_each(runs, peer.world)
    source, target = np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)
    calls = {kind: partial(comm.all_reduce, source, target) for kind, comm in comms.items()}
    for call in calls.values():  # the windows grow
        for _ in range(4):
            call()
    samples = harness.alternate(peer, calls, blocks)
    for comm in comms.values():
        comm.close()
    return samples


def measure_far(megabits: float, delay_ms: float, size: int, blocks: int) -> tuple[list[Row], list[Row]]:
    with Lab() as lab:
        places = lab.long_pair(Link(megabits=megabits, delay_ms=delay_ms))
        for place in places:
            lab.congestion(place, "cubic")
        with (
            two_runs(places[0].address, places[0].namespace) as runs,
            Fleet(far_worker, 2, namespaces=[place.namespace for place in places], runs=runs, size=size, blocks=blocks) as fleet,
        ):
            results = fleet.results()
    times, spent = harness.slowest(results), harness.spent(results)
    rates = {kind: size * 8 / 1e6 / statistics.median(times[kind]) for kind in KINDS}
    link = f"{megabits:g} Mbit/s, {2 * delay_ms:g} ms"
    rows = [
        row(
            f"far, {link}, {size // MIB} MiB",
            kind,
            {"Mbit/s": rates[kind], "processor s/GiB": statistics.median(spent[kind]) * 1024 * MIB / size},
        )
        for kind in KINDS
    ]
    return rows, [harness.ratio_bar(f"long link, {link}: encrypted against plain", FAR_LEAST, rates["keys"] / rates["plain"])]


# ---- the spare lanes of a long link ----


def spare_worker(peer: Peer, address: str, keys: Path | None) -> None:
    import numpy as np

    comm = pccl.Communicator(address, keys=keys)
    comm.connect()
    comm.wait_for_peers(peer.world)
    harness.tell(peer, time.monotonic())
    value = np.zeros(64, np.float32)
    while True:
        comm.all_reduce(value)


def established(place: Place) -> int:
    """Connections in a namespace that are made, both ends of those that stay inside counted."""
    command = ["ip", "netns", "exec", place.namespace, "cat", "/proc/net/tcp"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    return sum(line.split()[3] == "01" for line in lines)


def open_spares(kind: str, delay_ms: float, count: int) -> float:
    """Seconds from the epoch of two until `count` connections lead from one to the other."""
    with Lab() as lab:
        places = lab.long_pair(Link(megabits=1000, delay_ms=delay_ms))
        with two_runs(places[0].address, places[0].namespace) as runs:
            address, keys = runs[kind]
            namespaces = [place.namespace for place in places]
            with Fleet(spare_worker, 2, namespaces=namespaces, address=address, keys=keys) as fleet:
                began: float = max(fleet.receive(rank) for rank in range(2))
                while established(places[1]) < count:
                    if time.monotonic() > began + LONG_LIMIT:
                        raise harness.BenchError(f"only {established(places[1])} of {count} connections are made")
                    time.sleep(0.005)
                return time.monotonic() - began


def measure_spare(delay_ms: float, count: int, blocks: int) -> tuple[list[Row], list[Row]]:
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(blocks):
        for kind in KINDS:
            seconds[kind].append(open_spares(kind, delay_ms, count))
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    ratio = medians["keys"] / medians["plain"]
    text = f"a far link of {count} connections, {2 * delay_ms:g} ms: opened within"
    bars = [harness.bar(text, f"{SPARE_MOST:g} x", f"{ratio:.2f} x", ratio <= SPARE_MOST)]
    return [row(f"spare, {count} connections", kind, {"ms": 1e3 * medians[kind]}) for kind in KINDS], bars


# ---- a newcomer ----


def admit(members: list[pccl.Communicator], newcomer: pccl.Communicator, pool: ThreadPoolExecutor) -> dict[str, float]:
    """Lets a newcomer in, and waits until it has left again."""
    found = {}

    def connect() -> None:
        start = time.perf_counter()
        newcomer.connect()
        found["join ms"] = 1e3 * (time.perf_counter() - start)

    def vote(comm: pccl.Communicator) -> float:
        start = time.perf_counter()
        comm.update_topology()
        return 1e3 * (time.perf_counter() - start)

    spent = time.process_time()
    joining = threading.Thread(target=connect)
    joining.start()
    while not all(list(pool.map(lambda comm: comm.are_peers_pending(), members))):  # each member votes
        time.sleep(0.005)
    found["pause ms"] = max(pool.map(vote, members))
    joining.join()
    found["processor ms"] = 1e3 * (time.process_time() - spent)
    newcomer.close()
    while any(comm.global_world_size > len(members) for comm in members):
        list(pool.map(vote, members))
    return found


def measure_join(count: int, blocks: int) -> tuple[list[Row], list[Row]]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with two_runs() as runs, ThreadPoolExecutor(count) as pool, ExitStack() as stack:
        members: dict[str, list[pccl.Communicator]] = {}
        for kind, (address, keys) in runs.items():
            members[kind] = [stack.enter_context(pccl.Communicator(address, keys=keys)) for _ in range(count)]

            def form(comm: pccl.Communicator) -> None:
                comm.connect()
                comm.wait_for_peers(count)

            list(pool.map(form, members[kind]))
        for _ in range(blocks):
            for kind, (address, keys) in runs.items():
                with pccl.Communicator(address, keys=keys) as newcomer:
                    found[kind].append(admit(members[kind], newcomer, pool))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    medians = {kind: {key: statistics.median(one[key] for one in trials) for key in trials[0]} for kind, trials in found.items()}
    bars = []
    for key, text in (("join ms", "a newcomer joins"), ("pause ms", "the members' pause"), ("processor ms", "processor time")):
        ratio = medians["keys"][key] / medians["plain"][key]
        bars.append(harness.bar(f"{count} members, {text}", f"at most {JOIN_MOST:g} x", f"{ratio:.2f} x", ratio <= JOIN_MOST))
    return [row(f"join, {count} members", kind, medians[kind]) for kind in KINDS], bars


# ---- a takeover ----


def take_over(program: Path, count: int, keys: Files | None) -> dict[str, float]:
    port = free_ports(1)[0]
    of_master, of_peers = keys or (None, None)
    master = scaling.Master(port, LONG_LIMIT, of_master)
    peers = scaling.Peers(program, port, count, of_peers)
    try:
        time.sleep(0.3)  # a fresh master first waits for members of a lost run
        for word in ("join", "admit"):
            peers.do(word)
        peers.process.send_signal(signal.SIGSTOP)  # or they would resume while nobody looks
        master.end()
        master = scaling.Master(port, LONG_LIMIT, of_master)
        used = [scaling.cpu_ms(pid) for pid in (master.pid, peers.process.pid)]
        start = time.perf_counter()
        peers.process.send_signal(signal.SIGCONT)
        peers.do("takeover")
        took = 1e3 * (time.perf_counter() - start)
        time.sleep(0.05)  # what the master does after its last word is its cost, too
        used = [scaling.cpu_ms(pid) - before for pid, before in zip((master.pid, peers.process.pid), used, strict=True)]
        return {"ms": took, "processor ms of the master": used[0], "of a member": used[1] / count}
    finally:
        peers.end()
        master.end()


def measure_takeover(count: int, blocks: int) -> tuple[list[Row], list[Row]]:
    program = harness.build("light_peers")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        files = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        for _ in range(blocks):
            for kind in KINDS:
                found[kind].append(take_over(program, count, files if kind == "keys" else None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    medians = {kind: {key: statistics.median(one[key] for one in trials) for key in trials[0]} for kind, trials in found.items()}
    ratio = medians["keys"]["ms"] / medians["plain"]["ms"]
    text = f"a takeover with {count} members"
    bars = [harness.bar(text, f"at most {TAKEOVER_MOST:g} x", f"{ratio:.2f} x", ratio <= TAKEOVER_MOST)]
    return [row(f"takeover, {count} members", kind, medians[kind]) for kind in KINDS], bars


def run() -> None:
    parser = harness.parser(__doc__, blocks=7)
    parts = ["op", "memory", "far", "spare", "join", "takeover"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="far and spare need root")
    parser.add_argument("--megabits", type=float, default=1000, help="far: rate of the link, each way")
    parser.add_argument("--delay-ms", type=float, default=40, help="far, spare: one way")
    parser.add_argument("--size", type=int, default=128 * MIB, metavar="BYTES", help="far: bytes of the tensor")
    parser.add_argument("--connections", type=int, default=64, help="spare")
    parser.add_argument("--members", type=int, default=63, help="join")
    parser.add_argument("--light-members", type=int, default=256, help="takeover")
    args = parser.parse_args()
    where = harness.machine()
    measures: dict[str, Callable[[], tuple[list[Row], list[Row]]]] = {
        "op": lambda: measure_op(3 * args.blocks),
        "memory": lambda: measure_memory(3 * args.blocks),
        "far": lambda: measure_far(args.megabits, args.delay_ms, args.size, args.blocks),
        "spare": lambda: measure_spare(args.delay_ms, args.connections, args.blocks),
        "join": lambda: measure_join(args.members, args.blocks),
        "takeover": lambda: measure_takeover(args.light_members, args.blocks),
    }
    rows: list[Row] = []
    bars: list[Row] = []
    for part in args.only:
        found, reached = measures[part]()
        rows += [{**one, "load": os.getloadavg()[0]} for one in found]
        bars += reached
        print(f"{part} is measured", file=sys.stderr, flush=True)
    harness.report(args, "encrypted_runs", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
