"""Shared state: parity checks, joiners, donors that die, memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import harness
import methods
import netlab
from harness import MIB, BenchError, Master, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """Peers are processes; each round is one `sync_shared_state` of all, whose contents are set before. `parity`: nothing
differs; the time beyond the hash of the own state, median over the rounds. `joiner`: one peer lacks everything; bytes over the
time of its whole call, hashing included, against the same bytes over as many plain TCP connections between two processes, in
turn; `vote_ms` is the time until the plan came, in which the donor ends its hashing; peers of one host share memory,
`by TCP` they do not. `links`: the same in network
namespaces, each donor's way out limited by tbf. `killed`: one of three donors is killed when half of the bytes have come."""

LANES = 4
PARTS = ["hash", "parity", "joiner", "held", "random", "killed", "links", "packed"]
CHUNK = 1 << 20


# ---- peers ----


def note_progress(found: list[tuple[float, int]], start: float, now: pccl.SyncProgress) -> None:
    """Notes the bytes received, and the seconds since `start`."""
    found.append((time.monotonic() - start, now.received))


def worker(peer: Peer, address: str) -> None:
    import numpy as np

    comm = pccl.Communicator(address, 0, LANES)
    arrays: list[Any] = []
    state: Any = None
    while True:
        word, argument = harness.order(peer)
        if word == "form":
            comm.connect()
            methods.form(comm, argument)
            harness.tell(peer, None)
        elif word == "state":
            arrays.clear()
            state = None
            seed, sizes, revision, *kinds = argument
            generator = np.random.default_rng(seed)
            for size in sizes:
                array = np.frombuffer(bytearray(generator.bytes(size)), np.uint8)
                if kinds:
                    array %= kinds[0]
                arrays.append(array)
            state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, str(at)) for at, array in enumerate(arrays)])
            state.revision = revision
            harness.tell(peer, None)
        elif word == "train":
            harness.tell(peer, train(comm, state, *argument))
        elif word == "spoil":  # every n-th leaf
            for leaf in range(0, arrays[0].size >> 18, argument):
                arrays[0][leaf << 18] ^= 255
            harness.tell(peer, None)
        elif word == "sync":
            peak_before = reset_peak()
            progress: list[tuple[float, int]] = []
            start = time.monotonic()
            try:
                info = comm.sync_shared_state(
                    state,
                    progress=functools.partial(note_progress, progress, start),
                )
            except pccl.PCCLError as error:
                harness.tell(peer, {"error": error.result.name})
                continue
            harness.tell(
                peer,
                {
                    "tx": info.tx_bytes,
                    "rx": info.rx_bytes,
                    "leaves": info.leaves,
                    "seconds": info.seconds,
                    "hash": info.hash_seconds,
                    "transfer": info.transfer_seconds,
                    "beyond": peak() - peak_before,
                    "donors": info.donors,
                    "wire": info.wire_bytes,
                },
            )
        elif word == "hash":
            harness.tell(peer, state.hash())
        elif word == "push":
            state.push_revision()
            harness.tell(peer, None)


def train(comm: Any, state: Any, world: int, accepted: bool) -> list[dict[str, float]]:
    """Steps, until three with that many peers are done; the time of each for topology and shared state."""
    import numpy as np

    gradient = np.ones(1 << 20, np.float32)
    steps: list[dict[str, float]] = []
    while sum(step["world"] == world for step in steps) < 3:
        start = time.monotonic()
        if steps or accepted:
            comm.update_topology()
        else:
            comm.connect()
            start = time.monotonic()
        info = comm.sync_shared_state(state)
        seconds = time.monotonic() - start
        state.push_revision()
        comm.all_reduce(gradient, gradient, op=pccl.ReduceOp.SUM)
        now = comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)
        steps.append({"world": now, "seconds": seconds, "transfer": info.transfer_seconds})
    return steps


def reset_peak() -> int:
    """Forgets the highest memory use so far; gives the present one."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


class Run:
    """A master and a fleet of accepted peers, and `spare` ones that have not joined."""

    def __init__(self, world: int, places: list[netlab.Place] | None = None, spare: int = 0) -> None:
        self._stack = contextlib.ExitStack()
        host = places[0].address if places else "127.0.0.1"
        master = self._stack.enter_context(Master(host, places[0].namespace if places else None))
        namespaces = [place.namespace for place in places] if places else None
        self.fleet = self._stack.enter_context(harness.Fleet(worker, world + spare, namespaces, address=master.address))
        self.alive = list(range(world))
        self.all("form", [world] * world)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def all(self, word: str, arguments: list[Any] | None = None) -> list[Any]:
        self.begin(word, arguments)
        return self.end()

    def begin(self, word: str, arguments: list[Any] | None = None) -> None:
        for at, rank in enumerate(self.alive):
            self.fleet.send(rank, (word, arguments[at] if arguments else None))

    def end(self) -> list[Any]:
        return [self.fleet.receive(rank, 120) for rank in self.alive]

    def kill(self, rank: int) -> None:
        self.fleet.kill(rank)
        self.alive.remove(rank)

    def same(self) -> None:
        if len(set(self.all("hash"))) != 1:
            raise BenchError("the contents differ after a sync that succeeded")


# ---- plain TCP ----


def tcp_worker(peer: Peer, size: int, port: int) -> None:
    """Rank 0 sends, rank 1 receives, over as many connections as there are lanes; at each order once, told in seconds."""
    part = size // LANES
    memory = [memoryview(bytearray(os.urandom(MIB) * (part // MIB))) for _ in range(LANES)]
    if peer.rank == 1:
        with socket.create_server(("127.0.0.1", port), backlog=LANES) as listener:
            peer.barrier.wait()
            ends = [listener.accept()[0] for _ in range(LANES)]
    else:
        peer.barrier.wait()
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(LANES)]

    def receive(end: socket.socket, into: memoryview) -> None:
        got = 0
        while got < len(into):
            got += end.recv_into(into[got : got + CHUNK])

    while True:
        harness.order(peer)
        peer.barrier.wait()
        start = time.perf_counter()
        act = receive if peer.rank == 1 else socket.socket.sendall
        threads = [threading.Thread(target=act, args=pair) for pair in zip(ends, memory, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        harness.tell(peer, time.perf_counter() - start)


def plain_tcp(fleet: harness.Fleet) -> float:
    fleet.send_all(None)
    return float(fleet.results()[1])


# ---- the measurements ----


def parity(blocks: int) -> tuple[Row, Row]:
    sizes = [256 * MIB // 200] * 200
    with Run(3) as run:
        run.all("state", [(1, sizes, 0)] * 3)
        beyond = []
        for _ in range(blocks):
            infos = run.all("sync")
            # The last to arrive has waited for nobody.
            beyond.append(min(info["seconds"] - info["hash"] for info in infos) * 1e3)
            run.all("push")
        hashing = statistics.median(info["hash"] for info in infos) * 1e3
    found = statistics.median(beyond)
    row = {"what": "parity", "peers": 3, "MiB": 256, "hash_ms": hashing, "beyond_hash_ms": found}
    return row, harness.bar(
        "sync with nothing to do, 256 MiB, 200 entries, 3 peers", "hash time + 2 ms", f"+ {found:.2f} ms", found <= 2
    )


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """For what is started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def joiner(blocks: int) -> list[tuple[Row, Row]]:
    """Plain TCP, by memory and by TCP only, in turn."""
    size = 1024 * MIB
    plain: list[float] = []
    found: dict[str, list[Row]] = {"": [], ", by TCP": []}
    beyond = 0
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(harness.Fleet(tcp_worker, 2, size=size, port=free_ports(1)[0]))
        runs = {}
        for how in found:
            with environment(PCCL_SAME_HOST_MEMORY="0" if how else "1"):
                runs[how] = stack.enter_context(Run(2))
        for block in range(blocks + 1):
            seconds = plain_tcp(raw)
            for how, run in runs.items():
                run.all("state", [(1, [size], 1 + block), (2 + block, [size], 0)])
                infos = run.all("sync")
                beyond = max(beyond, *(info["beyond"] for info in infos))
                found[how].append(infos[1])
            plain.append(seconds)
        for run in runs.values():
            run.same()
        run = runs[""]
        run.all("state", [(1, [size], 2 + blocks)] * 2)
        run.fleet.send(1, ("spoil", 20))
        run.fleet.receive(1)
        # Either of the two may join first and keep its own state.
        part = max(info["rx"] for info in run.all("sync")) / size
    made = [joined(size, plain[1:], infos[1:], how) for how, infos in found.items()]  # the first block warms up
    return [
        *made,
        (
            {"what": "every 20th leaf differs", "part": part},
            harness.bar("5 % of leaves differ", "at most 6 %", f"{part:.1%}", part <= 0.06),
        ),
        (
            {"what": "memory", "beyond_MiB": beyond / MIB},
            harness.bar("peak memory beyond the state", "64 MiB", f"{beyond / MIB:.1f} MiB", beyond <= 64 * MIB),
        ),
    ]


def joined(size: int, plain: list[float], infos: list[Row], how: str) -> tuple[Row, Row]:
    def milliseconds(values: Iterable[float]) -> float:
        return statistics.median(values) * 1e3

    ratio = statistics.median(raw / info["seconds"] for raw, info in zip(plain, infos, strict=True))
    row = {
        "what": f"joiner{how}",
        "peers": 2,
        "MiB": size // MIB,
        "MB_per_s": size / statistics.median(info["seconds"] for info in infos) / 1e6,
        "raw_tcp_MB_per_s": size / statistics.median(plain) / 1e6,
        "hash_ms": milliseconds(info["hash"] for info in infos),
        "vote_ms": milliseconds(info["seconds"] - info["hash"] - info["transfer"] for info in infos),
        "transfer_ms": milliseconds(info["transfer"] for info in infos),
        "ratio": ratio,
    }
    return row, harness.ratio_bar(f"1 GiB to one joiner from one donor, loopback{how}, against plain TCP", 0.8, ratio)


def killed(blocks: int) -> tuple[Row, Row]:
    size = 1024 * MIB

    def one(with_death: bool, seed: int) -> tuple[float, int]:
        with Run(4) as run:
            run.all("state", [(1, [size], 5)] * 3 + [(seed, [size], 0)])
            run.begin("sync")
            if with_death:
                time.sleep(half)
                run.kill(1)
            infos = run.end()
            run.same()
            return infos[-1]["seconds"], infos[-1]["rx"] - size

    half = 0.0
    calm = statistics.median(one(False, 10 + block)[0] for block in range(blocks))
    half = calm * 0.6  # the hashes come first
    found = [one(True, 20 + block) for block in range(blocks)]
    ratio = statistics.median(seconds for seconds, _ in found) / calm
    twice = max(more for _, more in found)
    row = {"what": "killed donor", "peers": 4, "MiB": 1024, "calm_s": calm, "ratio": ratio, "bytes_kept_twice": twice}
    return row, harness.bar("a donor killed at half of 1 GiB, 2 left", "at most 1.25 x", f"{ratio:.2f} x", ratio <= 1.25)


def links(megabits: float) -> tuple[Row, Row]:
    size = 128 * MIB
    with netlab.Lab() as lab:
        places = lab.star(4)
        for place in places[:3]:
            lab.limit(place, megabits)
        with Run(4, places) as run:
            run.all("state", [(1, [size], 5)] * 3 + [(2, [size], 0)])
            infos = run.all("sync")
            run.same()
    rate = size * 8 / infos[3]["transfer"] / 1e6
    ratio = rate / (3 * megabits)
    row = {"what": "3 limited donors", "peers": 4, "MiB": 128, "Mbit_per_s": rate, "sum_of_links": 3 * megabits, "ratio": ratio}
    row |= {"donor_MB": " ".join(f"{info['tx'] / 1e6:.0f}" for info in infos[:3])}
    return row, harness.ratio_bar("joiner with 3 donors behind 200 Mbit/s each, against the sum", 0.9, ratio)


def packed(megabits: float) -> tuple[Row, Row]:
    """A state of bytes below 4, which packs well, over a limited link; with and without packing."""
    size = 64 * MIB
    seconds, parts = {}, {}
    with netlab.Lab() as lab:
        places = lab.star(2)
        lab.limit(places[0], megabits)
        for lz4 in ("0", "1"):
            with environment(PCCL_LZ4=lz4), Run(2, places) as run:
                run.all("state", [(1, [size], 5, 4), (2, [size], 0, 4)])
                info = run.all("sync")[1]
                run.same()
                seconds[lz4], parts[lz4] = info["transfer"], info["wire"] / size
    gain = seconds["0"] / seconds["1"]
    row = {"what": f"packed, {megabits:g} Mbit/s", "peers": 2, "MiB": 64, "plain_s": seconds["0"], "packed_s": seconds["1"]}
    row |= {"wire_part": parts["1"]}
    return row, harness.ratio_bar(f"state that packs well over {megabits:g} Mbit/s, LZ4 against plain", 1, gain)


def unpackable(blocks: int) -> tuple[Row, Row]:
    """Random bytes over loopback TCP, with packing and without, in turn; the transfers alone."""
    size = 512 * MIB
    found: dict[str, list[float]] = {"0": [], "1": []}
    with contextlib.ExitStack() as stack:
        runs = {}
        for lz4 in found:
            with environment(PCCL_LZ4=lz4, PCCL_SAME_HOST_MEMORY="0"):
                runs[lz4] = stack.enter_context(Run(2))
        for block in range(blocks):
            for lz4 in sorted(found, reverse=block % 2 == 1):
                runs[lz4].all("state", [(1, [size], 1 + block), (2 + block, [size], 0)])
                found[lz4].append(runs[lz4].all("sync")[1]["transfer"])
    plain, offered = (statistics.median(found[lz4]) for lz4 in found)
    row = {"what": "random bytes, loopback by TCP", "peers": 2, "MiB": 512, "plain_s": plain, "packed_s": offered}
    return row, harness.bar(
        "random state over loopback by TCP, time with LZ4 against without",
        "at most 1.03 x",
        f"{offered / plain:.2f} x",
        offered <= 1.03 * plain,
    )


def held(blocks: int) -> tuple[Row, Row]:
    """Two peers update, sync and reduce in a loop; a third joins, with another state of 256 MiB."""
    size = 256 * MIB
    found: dict[str, list[float]] = {"calm": [], "join": [], "transfer": [], "held": []}
    for block in range(blocks):
        with Run(2, spare=1) as run:
            for rank, content in ((0, (1, [size], 1)), (1, (1, [size], 1)), (2, (7 + block, [size], 0))):
                run.fleet.send(rank, ("state", content))
                run.fleet.receive(rank)
            for rank in (0, 1):
                run.fleet.send(rank, ("train", (3, True)))
            time.sleep(1)
            run.fleet.send(2, ("train", (3, False)))
            steps = [run.fleet.receive(rank) for rank in range(3)]
        transfer = max(step["transfer"] for steps_of_one in steps for step in steps_of_one)
        before = [step["seconds"] for rank in (0, 1) for step in steps[rank] if step["world"] == 2]
        joins = [next(step["seconds"] for step in steps[rank] if step["world"] == 3) for rank in (0, 1)]
        calm = statistics.median(before)
        found["calm"].append(calm)
        found["join"].append(max(joins))
        found["transfer"].append(transfer)
        found["held"].append((max(joins) - calm) / transfer)
    calm, join, transfer, ratio = (statistics.median(values) for values in found.values())
    row = {"what": "held up by a join", "peers": 3, "MiB": 256, "calm_step_ms": calm * 1e3, "join_step_ms": join * 1e3}
    row |= {"transfer_ms": transfer * 1e3}
    return row, harness.bar(
        "accepted peers held up by a join with 256 MiB, against the transfer", "at most 1.25 x", f"{ratio:.2f} x", ratio <= 1.25
    )


def hashing(blocks: int) -> tuple[Row, Row]:
    import numpy as np

    os.environ["PCCL_HASH_THREADS"] = "1"
    size = 1024 * MIB
    array = np.ones(size, np.uint8)
    state = pccl.SharedState([pccl.TensorInfo.from_numpy(array, "a")])
    libc = ctypes.CDLL(None)
    libc.memchr.argtypes, libc.memchr.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    hashes: list[float] = []
    reads: list[float] = []
    for _ in range(blocks):
        for call, times in ((state.hash, hashes), (lambda: libc.memchr(array.ctypes.data, 0, size), reads)):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    del os.environ["PCCL_HASH_THREADS"]
    hash_rate, read_rate = size / statistics.median(hashes), size / statistics.median(reads)
    row = {"what": "hash", "MiB": 1024, "MB_per_s": hash_rate / 1e6, "read_MB_per_s": read_rate / 1e6}
    return row, harness.ratio_bar("hash on one core, against reading the memory (memchr)", 0.6, hash_rate / read_rate)


def run() -> None:
    parser = harness.parser(__doc__ or "", blocks=5)
    parser.add_argument("--only", nargs="+", default=PARTS, help="which measurements")
    args = parser.parse_args()
    where = harness.machine()
    made: list[tuple[Row, Row]] = []
    if "hash" in args.only:
        made.append(hashing(args.blocks))
    if "parity" in args.only:
        made.append(parity(args.blocks * 3))
    if "joiner" in args.only:
        made += joiner(args.blocks)
    if "killed" in args.only:
        made.append(killed(min(args.blocks, 3)))
    if "held" in args.only:
        made.append(held(args.blocks))
    if "random" in args.only:
        made.append(unpackable(args.blocks))
    if "links" in args.only and os.geteuid() == 0:
        made.append(links(200))
    if "packed" in args.only and os.geteuid() == 0:
        made.append(packed(200))
    harness.report(args, "sync", METHOD, where, [row for row, _ in made], [bar for _, bar in made])


if __name__ == "__main__":
    harness.main(run)
