"""What members cost a master: CPU time, bytes, descriptors of joins, epochs, votes, ops, losses, a takeover, by their number."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness

from pccl._core.address import parse_endpoint
from pccl._watch.diagnosis import diagnose_run
from pccl.lab.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
METHOD = """One master, a process of its own, and light peers (bench/light_peers.c): the control part of each peer, shipped
code, with a real connection to the master; links between peers are taken for made, there are no tensors; all over loopback.
CPU is the on-CPU time of the master's threads (/proc/PID/task/*/schedstat), system calls included, over the phase;
`op`, `vote` and `loss` are means of several. Bytes are those on the master's connections, both ways, without TCP's own."""
SIZES = (16, 64, 256, 1024)
#: Word for the light peers, how often, what it is.
PHASES = (
    ("join", 1, "all register at once"),
    ("admit", 1, "one epoch: candidate, links, epoch, reports"),
    ("vote", 10, "all vote, all hear the outcome"),
    ("op", 10, "a large op: DONE of all, a verdict to all"),
    ("tell", 10, "all report their operations, as each second while they call some"),
    ("page", 10, "the question of `pccl web` and `pccl top`, each second"),
    ("loss", 4, "one member ends, one epoch"),
    ("losses", 1, "an eighth ends at once"),
    ("takeover", 1, "another master takes the run up, all members there"),
    ("beat", 5, "all say a heartbeat"),
)


class ScalingError(Exception):
    """The measurement could not be made; says why."""


def cpu_ms(pid: int) -> float:
    """On-CPU time of all threads that live."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


class Master:
    """`pccl master` as a process."""

    def __init__(self, port: int, limit: float, keys: Path | None = None) -> None:
        command = [sys.executable, "-m", "pccl.cli", "master", "--listen", f"127.0.0.1:{port}", "--heartbeat-limit", str(limit)]
        command += ["--keys", str(keys)] if keys else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise ScalingError(f"no master could be started on 127.0.0.1:{port}")
        self.pid = self.process.pid

    def descriptors(self) -> int:
        """Open ones."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """Kills it, and its members' run is without a master."""
        self.process.kill()
        self.process.wait()


class Peers:
    """The light peers."""

    def __init__(self, program: Path, port: int, count: int, keys: Path | None = None) -> None:
        command: list[str | Path] = [program, f"127.0.0.1:{port}", str(count), *([keys] if keys else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, word: str) -> tuple[float, int]:
        """Milliseconds, and bytes both ways."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise ScalingError(f"the light peers ended in `{word}`: what they said is above")
        return float(answer[1]), int(answer[2]) + int(answer[3])

    def end(self) -> None:
        """Ends them."""
        self.process.kill()
        self.process.wait()


def ask(port: int) -> tuple[float, int]:
    """One question; a later one within 100 ms would get the same answer."""
    time.sleep(0.15)
    began = time.monotonic()
    diagnose_run(parse_endpoint(f"127.0.0.1:{port}"))
    return 1000 * (time.monotonic() - began), 0


def measure(program: Path, count: int, limit: float) -> dict[str, dict[str, float]]:
    """Phase by phase."""
    port = free_ports(1)[0]
    master = Master(port, limit)
    found: dict[str, dict[str, float]] = {}
    peers = Peers(program, port, count)
    try:
        time.sleep(0.3)  # a fresh master first waits for members of a lost run
        empty, resident = master.descriptors(), master.memory()
        for word, times, _ in PHASES:
            cpu = cpu_ms(master.pid)
            if word == "takeover":
                master.end()
                master, cpu = Master(port, limit), 0.0
                cpu = cpu_ms(master.pid)
            wall = size = 0.0
            for _ in range(times):
                ms, moved = ask(port) if word == "page" else peers.do(word)
                wall, size = wall + ms, size + moved
            time.sleep(0.05)  # what the master does after its last word is its cost, too
            found[word] = {"cpu_ms": (cpu_ms(master.pid) - cpu) / times, "wall_ms": wall / times, "bytes": size / times}
            if word == "admit":
                found[word] |= {"descriptors": master.descriptors() - empty, "memory": master.memory() - resident}
            print(
                f"{count:5} {word:9} {found[word]['cpu_ms']:10.2f} ms of CPU {size / times / 1e6:10.3f} MB",
                file=sys.stderr,
                flush=True,
            )
    finally:
        peers.end()
        master.end()
    return found


def table(results: dict[int, dict[str, dict[str, float]]], key: str, scale: float, digits: int) -> list[str]:
    """Markdown: a row for each phase, and how much each size takes beside the one before."""
    sizes = list(results)
    head = ["", *map(str, sizes), *(f"{a} to {b}" for a, b in itertools.pairwise(sizes))]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for word, _, _ in PHASES:
        values = [results[size][word][key] / scale for size in sizes]
        growth = [f"{b / a:.1f} x" if a > 0 else "-" for a, b in itertools.pairwise(values)]
        rows.append(f"| {word} | " + " | ".join([*(f"{value:.{digits}f}" for value in values), *growth]) + " |")
    return rows


def processor() -> str:
    """Its name, and how many there are."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{name}, {os.cpu_count()} processors, {platform.system()} {platform.release()}"


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, epilog=METHOD, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="numbers of members, 2 to 1024, by commas (default: %(default)s)"
    )
    limit_help = "seconds; long, since one process is slow to make all links of 1,024 (default: %(default)s)"
    parser.add_argument("--heartbeat-limit", type=float, default=60.0, help=limit_help)
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "bench", help="where the light peers are built (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="also write all figures here")
    arguments = parser.parse_args()
    try:
        sizes = sorted({int(size) for size in arguments.sizes.split(",")})
    except ValueError:
        parser.error(f"--sizes takes numbers by commas, as 16,64, not {arguments.sizes!r}")
    if not all(2 <= size <= 1024 for size in sizes):
        parser.error("--sizes: 2 to 1024 members")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(sizes) + 64
    if hard != resource.RLIM_INFINITY and hard < needed:
        parser.error(
            f"{max(sizes)} members need {needed} descriptors in the master, and this process may have {hard}: raise `ulimit -Hn`"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))  # the master inherits it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load = os.getloadavg()[0]
    try:
        program = harness.build("light_peers", arguments.build)
        results = {size: measure(program, size, arguments.heartbeat_limit) for size in sizes}
    except (ScalingError, harness.BenchError) as error:
        sys.exit(f"scaling: {error}")
    print(f"{processor()}; load {load:.1f} before\n")
    print("CPU of the master, ms\n", *table(results, "cpu_ms", 1, 2), "", sep="\n")
    print("bytes, MB\n", *table(results, "bytes", 1e6, 3), "", sep="\n")
    print("until all are done, ms\n", *table(results, "wall_ms", 1, 1), "", sep="\n")
    for size in sizes:
        admitted = results[size]["admit"]
        memory = f"{admitted['memory'] / 1e6:.1f} MB of memory"
        watched = (results[size]["tell"]["cpu_ms"] + results[size]["page"]["cpu_ms"]) / 10
        print(f"{size} members that report each second, and a page: {watched:.2f} % of a processor for the master")
        print(f"{size} members: {admitted['descriptors']:.0f} descriptors and {memory} in the master")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
