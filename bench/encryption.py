"""What encryption costs one stream over loopback, and what strangers at its port cost a master and its run."""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import harness
from harness import Row

import pccl
from pccl._run import keys as _keys

METHOD = """One process; one thread sends 1 MiB at a time over one loopback connection, another one receives. Blocks of plain TCP,
of the same in the pieces of TLS (`pieces`: 64 KiB are sent at a time, and 16 KiB received), of TLS (csrc/net/tls.h), of messages
of 4 KiB that one thread sends and receives, and of AES-128-GCM alone take turns; medians. Processor time is that of both threads.
`cipher` encrypts and decrypts records of 16 KiB that stay in the cache, without copies
and system calls; `copies` does so with the two copies that OpenSSL makes of each record, from and to 1 MiB.
Strangers: two peers, threads of one process, reduce 4 KiB and vote in turn, again and again, first alone and then while another
process connects to the master, a native process, as fast as it can. Of its connections a quarter each say nothing, cut a
ClientHello short, send one with the keys of another run, and replay one of a member. All stay open until the last one is made, if
the limit of descriptors allows it."""

EXPLAINED = 0.8
"""Part of the additional processor time that the cipher alone should explain."""


class Block(NamedTuple):
    """Speed in GiB/s, and processor seconds per GiB. Of messages: millions of them in place of GiB."""

    rate: float
    processor: float


def measure(seconds: float, blocks: int) -> dict[str, list[Block]]:
    """Returns each block, by method."""
    program = harness.build("encryption")
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        _, peer = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        command = [str(program), str(peer), str(seconds), str(blocks)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise harness.BenchError(f"the program failed: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        method, *figures = line.split()
        found[method].append(Block(*map(float, figures)))
    return found


def openssl_speed() -> float | None:
    """GiB/s of one direction of AES-128-GCM, by OpenSSL's own measurement; None: its program is not here."""
    if shutil.which("openssl") is None:
        return None
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.split()[-1] if done.stdout.split() else ""
    return float(last.removesuffix("k")) * 1000 / (1 << 30) if last.endswith("k") else None


# ---- strangers ----

SPARE_DESCRIPTORS = 100
MOST_MIB = 150.0
MOST_SECONDS = 10.0
DISTURBED = 1.2
"""Times the median of an operation before: more is a disturbance. Votes go through the master, and have no bar."""


def client_hello(keys: Path) -> bytes:
    """Returns the first flight of a process with these keys."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pccl.Communicator(f"127.0.0.1:{listener.getsockname()[1]}", keys=keys) as comm,
    ):
        calling = threading.Thread(target=_try_to_connect, args=(comm,))
        calling.start()
        stream, _ = listener.accept()
        with stream:
            hello = stream.recv(65536)
        calling.join()
    return hello


def _try_to_connect(comm: pccl.Communicator) -> None:
    with suppress(pccl.PCCLError):
        comm.connect(1)


def be_strangers(port: int, count: int, hellos: list[bytes]) -> None:
    """Makes `count` connections, one after another, and keeps as many open as the limit of descriptors allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept: deque[socket.socket] = deque()
    words = itertools.cycle([b"", hellos[0][:40], *hellos])
    for word in itertools.islice(words, count):
        stream = socket.create_connection(("127.0.0.1", port))
        kept.append(stream)
        with suppress(ConnectionError):
            stream.sendall(word)
        if len(kept) > hard - SPARE_DESCRIPTORS:
            kept.popleft().close()


@contextmanager
def _team(address: str, keys: Path) -> Iterator[list[pccl.Communicator]]:
    with ExitStack() as stack:
        comms = [stack.enter_context(pccl.Communicator(address, keys=keys)) for _ in range(2)]
        comms[0].connect()
        joining = threading.Thread(target=comms[1].connect)
        joining.start()
        comms[0].wait_for_peers(2)
        joining.join()
        yield comms


def _work(comms: list[pccl.Communicator], goes_on: threading.Event, times: dict[str, list[float]]) -> None:
    """Both reduce and vote in turn. The first one notes the seconds of each call, and decides by a sum when to stop."""
    import numpy as np

    def one(rank: int) -> None:
        value, result = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
        while result[0] == 0:
            value[0] = rank == 0 and not goes_on.is_set()
            began = time.perf_counter()
            comms[rank].all_reduce(value, result)
            middle = time.perf_counter()
            comms[rank].update_topology()
            if rank == 0:
                times["op"].append(middle - began)
                times["vote"].append(time.perf_counter() - middle)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _resident(pid: int) -> tuple[float, float]:
    """Returns MiB of memory at most, and processor seconds."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert peak is not None
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(peak[1]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_strangers(count: int, seconds: float) -> tuple[list[Row], list[Row]]:
    with tempfile.TemporaryDirectory() as folder:
        files = _keys.write_files(Path(folder) / "run", _keys.new_keys())
        _, others = _keys.write_files(Path(folder) / "other", _keys.new_keys())
        hellos = [client_hello(others), client_hello(files[1])]
        command = [sys.executable, "-m", "pccl", "master", "--listen", "127.0.0.1:0", "--keys", str(files[0])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as master:
            try:
                assert master.stdout is not None
                address = master.stdout.readline().split()[-1]
                with _team(address, files[1]) as comms:
                    return _compare(comms, master.pid, int(address.rpartition(":")[2]), count, seconds, hellos)
            finally:
                master.kill()


def _compare(
    comms: list[pccl.Communicator], pid: int, port: int, count: int, seconds: float, hellos: list[bytes]
) -> tuple[list[Row], list[Row]]:
    import multiprocessing

    found: dict[str, dict[str, list[float]]] = {}
    used = {"before": 0.0}
    took = 0.0
    for when in ("before", "during"):
        goes_on = threading.Event()
        goes_on.set()
        found[when] = defaultdict(list)
        working = threading.Thread(target=_work, args=(comms, goes_on, found[when]))
        used[when] = _resident(pid)[1]
        working.start()
        if when == "before":
            time.sleep(seconds)
        else:
            began = time.perf_counter()
            crowd = multiprocessing.get_context("spawn").Process(target=be_strangers, args=(port, count, hellos))
            crowd.start()
            crowd.join()
            took = time.perf_counter() - began
            if crowd.exitcode != 0:
                raise harness.BenchError("the strangers failed")
        goes_on.clear()
        working.join()
    memory, now = _resident(pid)
    processor = now - used["during"]
    rows: list[Row] = [
        {"method": f"{what} {when} the strangers", "median ms": 1e3 * median(times[what]), "calls": len(times[what])}
        for when, times in found.items()
        for what in ("op", "vote")
    ]
    rows.append({"method": f"{count} strangers", "seconds": took, "MiB": memory, "processor s": processor})
    slower = median(found["during"]["op"]) / median(found["before"]["op"])
    text = f"{count} strangers' connections at a master at work"
    return rows, [
        harness.bar(f"{text}: operations take", f"at most {DISTURBED:g} x", f"{slower:.2f} x", slower <= DISTURBED),
        harness.bar(f"{text}: memory of the master", f"below {MOST_MIB:g} MiB", f"{memory:.0f} MiB", memory < MOST_MIB),
        harness.bar(f"{text}: its processor time", f"below {MOST_SECONDS:g} s", f"{processor:.1f} s", processor < MOST_SECONDS),
    ]


def run() -> None:
    parser = harness.parser(__doc__, blocks=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a block")
    parser.add_argument("--strangers", type=int, default=10_000, help="connections of strangers; 0: this part is left out")
    args = parser.parse_args()
    where = harness.machine()
    rows: list[Row] = []
    found = {
        method: Block(*map(median, zip(*blocks, strict=True))) for method, blocks in measure(args.seconds, args.blocks).items()
    }
    for method, block in found.items():
        if method.endswith("messages"):
            rows.append({"method": method, "us of a 4 KiB message": block.processor})
        else:
            rows.append({"method": method, "GiB/s": block.rate, "processor s/GiB": block.processor})
    speed = openssl_speed()
    if speed is not None:
        rows.append({"method": "openssl speed, one direction", "GiB/s": speed, "processor s/GiB": 1 / speed})
    used = {method: block.processor for method, block in found.items()}
    more = used["tls"] - used["plain"]
    parts = {
        "AES-128-GCM alone": used["cipher"] / more,
        "with OpenSSL's copies": used["copies"] / more,
        "with the system calls, too": (used["copies"] + used["pieces"] - used["plain"]) / more,
    }
    bars = [
        harness.bar(
            f"part of the additional processor time of TLS: {what}", f"at least {EXPLAINED:.0%}", f"{part:.0%}", part >= EXPLAINED
        )
        for what, part in parts.items()
    ]
    if args.strangers > 0:
        of_strangers, reached = measure_strangers(args.strangers, 5 * args.seconds)
        rows += of_strangers
        bars += reached
    harness.report(args, "encryption", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
