"""What the benchmarks share: peers as processes, methods timed in turn, statistics, the report.

A worker is a module-level function `worker(peer, **arguments)`; a Fleet runs one per peer, each in a process of its own, and
hands back what they return. Times of a block are taken on every peer, and the slowest peer's counts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

ROOT = Path(__file__).resolve().parent.parent
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LIMIT_SECONDS = 600.0
"""How long a worker may go without a word before the run is given up."""

CLONE_NEWNET = 0x40000000

_spawn = get_context("spawn")
_libc = ctypes.CDLL(None, use_errno=True)

Row = dict[str, Any]

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "sysctl": "procps", "cc": "a C compiler"}
"""Where programs come from whose package has another name."""


class BenchError(Exception):
    """The measurement could not be made; says why."""


class SkippedError(BenchError):
    """This machine cannot make the measurement; says why. The program ends well."""


# ---- peers as processes ----


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer, as its worker sees it."""

    rank: int
    world: int
    pipe: Connection
    barrier: Any  # all peers of the fleet


def _run_worker(worker: Callable[..., Any], peer: Peer, namespace: str | None, realtime: bool, arguments: dict[str, Any]) -> None:
    from pccl._host.processes import die_with_parent

    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its peers
    try:
        if namespace is not None:
            enter_namespace(namespace)
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        message = ("result", worker(peer, **arguments))
    except BaseException:
        message = ("error", f"peer {peer.rank}: {traceback.format_exc()}")
    peer.pipe.send(message)


def enter_namespace(name: str) -> None:
    """Moves the calling thread, and what it starts from now on, into a network namespace."""
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {name}")
    finally:
        os.close(descriptor)


class Fleet:
    """`world` processes that run `worker` until the end of the block; `namespaces[rank]` is where each lives; with `realtime`
    each goes before what the machine does besides."""

    def __init__(
        self,
        worker: Callable[..., Any],
        world: int,
        namespaces: Sequence[str] | None = None,
        realtime: bool = False,
        **arguments: Any,
    ) -> None:
        if realtime:
            require_realtime()
        self._worker, self._world, self._arguments = worker, world, arguments
        self._namespaces, self._realtime = namespaces, realtime
        self._barrier = _spawn.Barrier(world)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(world):
            pipe, process = self._start(rank)
            self._pipes.append(pipe)
            self._processes.append(process)

    def _start(self, rank: int) -> tuple[Connection, Any]:
        ours, theirs = _spawn.Pipe()
        peer = Peer(rank=rank, world=self._world, pipe=theirs, barrier=self._barrier)
        namespace = self._namespaces[rank] if self._namespaces else None
        process = _spawn.Process(
            target=_run_worker,
            args=(self._worker, peer, namespace, self._realtime, self._arguments),
            daemon=True,
        )
        process.start()
        theirs.close()
        return ours, process

    def replace(self, rank: int) -> None:
        """Starts a new process in the place of one that died."""
        self._processes[rank].join()
        self._pipes[rank].close()
        self._pipes[rank], self._processes[rank] = self._start(rank)

    def kill(self, rank: int) -> float:
        """SIGKILL; gives the moment."""
        moment = time.monotonic()
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        return moment

    def send(self, rank: int, message: Any) -> None:
        self._pipes[rank].send(("order", message))

    def send_all(self, message: Any) -> None:
        for rank in range(self._world):
            self.send(rank, message)

    def begin(self, word: str, *arguments: Any, ranks: Sequence[int] | None = None) -> None:
        """Gives an order to workers that `serve`: to all, or to `ranks`."""
        for rank in range(self._world) if ranks is None else ranks:
            self.send(rank, (word, *arguments))

    def end(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """The answers of all workers, or of `ranks`, to the order before."""
        return self.results() if ranks is None else [self.receive(rank) for rank in ranks]

    def ask(self, word: str, *arguments: Any, ranks: Sequence[int] | None = None) -> list[Any]:
        self.begin(word, *arguments, ranks=ranks)
        return self.end(ranks)

    def receive(self, rank: int, timeout: float = LIMIT_SECONDS) -> Any:
        if not self._pipes[rank].poll(timeout):
            raise BenchError(f"peer {rank} has said nothing for {timeout:.0f} s")
        try:
            kind, value = self._pipes[rank].recv()
        except EOFError:
            raise BenchError(f"peer {rank} has died") from None
        if kind == "error":
            raise BenchError(value)
        return value

    def results(self, timeout: float = LIMIT_SECONDS) -> list[Any]:
        """What the workers tell next, or returned, by rank. An error of one does not wait for the others."""
        found: dict[int, Any] = {}
        end = time.monotonic() + timeout
        while len(found) < self._world:
            waiting = {self._pipes[rank]: rank for rank in range(self._world) if rank not in found}
            ready = wait([*waiting], max(0.0, end - time.monotonic()))
            if not ready:
                raise BenchError(f"peer {min(waiting.values())} has said nothing for {timeout:.0f} s")
            for pipe in ready:
                rank = waiting[cast(Connection, pipe)]
                found[rank] = self.receive(rank, 0)
        return [found[rank] for rank in range(self._world)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tell(peer: Peer, value: Any) -> None:
    """From a worker to its fleet's `receive`."""
    peer.pipe.send(("result", value))


def order(peer: Peer) -> Any:
    """The next order that the fleet sent to this worker."""
    return peer.pipe.recv()[1]


def serve(peer: Peer, actor: object) -> None:
    """Carries out the orders of a fleet's `ask`: calls the method that an order names, and tells what it returned."""
    while True:
        word, *arguments = order(peer)
        tell(peer, getattr(actor, word)(*arguments))


class Master:
    """`pccl_master` in a process of its own, with these keys if any; `address` is where peers find it."""

    def __init__(self, host: str = "127.0.0.1", namespace: str | None = None, keys: Path | None = None, port: int = 0) -> None:
        # The working directory, which -P leaves out, may hold sources without the library.
        command = [sys.executable, "-P", "-m", "pccl.master", "--listen-address", f"{host}:{port}"]
        if namespace is not None:
            command = ["ip", "netns", "exec", namespace, *command]
        environment = {**os.environ, **({"PCCL_KEYS": str(keys)} if keys else {})}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().rsplit(":", 1)
        if len(words) != 2:
            raise BenchError("the master did not start; its words stand above")
        self.address = f"{host}:{int(words[1])}"
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_realtime() -> None:
    """BenchError: the system does not let this process have real-time priority, which its peers are to have."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, policy, priority)
    except OSError as error:
        raise BenchError(
            f"--realtime: the system refuses real-time priority (SCHED_FIFO 1): {error.strerror}; run this as root or with "
            "CAP_SYS_NICE, or leave --realtime out"
        ) from None


def priorities() -> list[bool]:
    """Returns the values of `realtime` to measure with: both where the system allows it."""
    try:
        require_realtime()
    except BenchError:
        return [False]
    return [True, False]


def require_program(name: str) -> str:
    """Returns the path of a program. BenchError: it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise BenchError(f"the program {name} is missing: install {PACKAGES.get(name, name)}, or add its folder to PATH")
    return path


def build(target: str, folder: Path = ROOT / "build" / "bench") -> Path:
    """Builds a native program or library of this folder with CMake. Returns where CMake puts it."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        raise BenchError(f"{target} cannot be built without CMake: pip install cmake")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DPCCL_BUILD_BENCH=ON", "-DPCCL_BUILD_SHARED=OFF"]
    for command in (["-S", ROOT, "-B", folder, *options], ["--build", folder, "--target", target]):
        done = subprocess.run([cmake, *map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"CMake cannot build {target}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return folder / target


# ---- time ----


class Sample(NamedTuple):
    """Seconds per call of one block on one peer."""

    wall: float
    cpu: float  # user and system, all threads of the process


Samples = dict[str, list[Sample]]

FLOORS = {True: "floor: TCP with the sum", False: "floor: shared slots with the sum"}
"""The names of the methods of bench/floor.c, by whether they use TCP."""


def alternate(peer: Peer, calls: Mapping[str, Callable[[], object]], blocks: int, per_block: int = 1) -> Samples:
    """Times `blocks` blocks of `per_block` calls of each, the methods in turn (A B C, B C A ...)."""
    for call in calls.values():
        for _ in range(2):
            call()
    samples: Samples = {name: [] for name in calls}
    names = list(calls)
    for block in range(blocks):
        first = block % len(names)
        for name in names[first:] + names[:first]:
            call = calls[name]
            peer.barrier.wait()
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(per_block):
                call()
            wall, cpu = time.perf_counter() - start, time.process_time() - cpu
            samples[name].append(Sample(wall / per_block, cpu / per_block))
    return samples


def slowest(by_rank: Sequence[Samples]) -> dict[str, list[float]]:
    """Of each block the time of the peer that took longest."""
    return {name: [max(one.wall for one in block) for block in _blocks(by_rank, name)] for name in by_rank[0]}


def spent(by_rank: Sequence[Samples]) -> dict[str, list[float]]:
    """Of each block the CPU time of all peers together."""
    return {name: [sum(one.cpu for one in block) for block in _blocks(by_rank, name)] for name in by_rank[0]}


def costs(name: str, times: dict[str, list[float]], cpu: dict[str, list[float]], size: int) -> Row:
    """Returns what stands beside each ratio: CPU time, the slowest block over the median, and the speed as a part of the floor's.

    `times` and `cpu` are seconds of each block, by method; `size` is bytes of all tensors of a call.
    """
    floor = FLOORS["by TCP" in name or not name.startswith("pccl")]
    median = statistics.median(times[name])
    made = {"CPU s/GiB": statistics.median(cpu[name]) / (size / GIB), "slowest block": max(times[name]) / median}
    return made | ({"% of the floor": 100 * statistics.median(times[floor]) / median} if floor in times else {})


def _blocks(by_rank: Sequence[Samples], name: str) -> Iterator[tuple[Sample, ...]]:
    return zip(*(rank[name] for rank in by_rank), strict=True)


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": len(values)}


# ---- the report ----


class Report(NamedTuple):
    """What a benchmark returns."""

    figures: list[Row]  # the rows of its table in the page
    rows: Sequence[Row] = ()  # all that was measured, for --json and the terminal
    bars: Sequence[Row] = ()  # figures that the table does not have as they are, with their bars
    device: str = ""  # beside the processor


def figure(what: str, measured: str, bar: str = "", reached: bool = True) -> Row:
    """Returns a row of the page. `bar` is what was aimed at, if anything."""
    return {"what": what, "measured": measured, "bar": bar} | ({} if reached else {"missed": True})


def ratio(what: str, least: float, value: float) -> Row:
    """Returns the figure of a ratio that should be `least` or more."""
    return figure(what, f"{value:.2f} x", f"{least:g} x", value >= least)


def measure(
    body: Callable[[argparse.Namespace], Report],
    blocks: int = 15,
    options: Callable[[argparse.ArgumentParser], object] = lambda _: None,
) -> None:
    """Runs the benchmark that is the main program; its docstring says what it measures, and how.

    `blocks` is the default of --blocks, and `options` adds further options. With --quick `blocks` is 2, and `body` measures as
    little as shows that it works.
    """
    text = sys.modules["__main__"].__doc__
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--blocks", type=int, default=blocks, help=f"timed blocks of each method; the median counts [{blocks}]")
    made.add_argument("--json", type=Path, metavar="FILE", help="write there what was measured")
    made.add_argument("--quick", action="store_true", help="as little as shows that the program works")
    options(made)
    args = made.parse_args()
    if args.quick:
        args.blocks = 2

    def run() -> None:
        where = machine()
        _report(args, where, body(args))

    main(run)


def _report(args: argparse.Namespace, where: Row, report: Report) -> None:
    where = {**where, "load_after": os.getloadavg()[0]}
    device = f"{report.device}, " if report.device else ""
    text = f"{device}{where['cpu']}, {where['cores']} cores, {where['date'][:10]}, load {where['load_before']:.1f}"
    for rows in (report.rows, report.figures, report.bars):
        print_table(rows)
        print()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    if args.json:
        told = report._asdict() | {"where": text, "machine": where}
        args.json.write_text(json.dumps(told, indent=1) + "\n")


def machine() -> Row:
    """Where this was measured."""
    import pccl

    processors = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in processors if line.startswith("model name")), platform.machine())
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pccl": pccl.__version__,
        "scripts": commit or "no repository",
        "load_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def print_table(rows: Sequence[Row]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 1}f} ms"


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def known_congestion_controls() -> list[str]:
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def main(run: Callable[[], None]) -> None:
    """Runs a benchmark's body; an error that it foresees is one line, and SIGTERM cleans up as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        try:
            run()
        except FileNotFoundError as error:
            if isinstance(error.filename, str) and "/" not in error.filename:  # a program, not a file
                require_program(error.filename)
            raise
    except SkippedError as error:
        print(f"skipped: {error}")
    except BenchError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
