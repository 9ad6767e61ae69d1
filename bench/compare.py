"""Two builds of pccl measured against each other, in turn, in one run: all-reduce, recovery, join, shared state, CPU time."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import harness
from harness import KIB, MIB, BenchError, Row

METHOD = """Three fleets of peers take turns: old, old again, new; the order changes from round to round. Each fleet has
processes and a master of its own, started by its build's Python. A time is the slowest peer's; CPU time is that of all peers
and the master. `new/old` is the median over the rounds of new divided by the geometric mean of both old fleets in the same
round; `old/old` is the second old fleet against the first: what a ratio is when nothing has changed. `+-` is the larger of
the distance of old/old from 1 and half of the 95 % interval of new/old (bootstrap over the rounds). `worse` is above the limit
by more than that, `open` by less, or measured in too few rounds to say. `CPU new/old` is the ratio of CPU times, which a
busy machine disturbs less."""

FLEETS = ("old", "old again", "new")
LIMIT = 1.03
ENOUGH_ROUNDS = 10
"""With fewer nothing is called worse."""
PATIENCE_SECONDS = 120.0
RESAMPLES = 1000
SCRIPT = Path(__file__).with_name("compare_peer.py")

SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
QUICK_SIZES = [4 * KIB, 256 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB]
BYTES_PER_BLOCK = 16 * MIB
CALLS_PER_BLOCK = 100


# ---- processes ----


class Worker:
    """A process of one build, that answers orders."""

    def __init__(self, python: Path, role: str, address: str = "", memory: bool = True, realtime: bool = False) -> None:
        environment = {**os.environ, "PCCL_SAME_HOST_MEMORY": str(int(memory)), "PCCL_LOG_LEVEL": "ERR"}
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [str(python), str(SCRIPT), role, address, "realtime" if realtime else "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent alone, who ends its workers
        )

    def send(self, word: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"word": word, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError("a worker has died; its words stand above") from None

    def answer(self) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise BenchError(f"a worker has said nothing for {PATIENCE_SECONDS:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise BenchError("a worker has died; its words stand above")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer["value"]

    def ask(self, word: str, **arguments: Any) -> Any:
        self.send(word, **arguments)
        return self.answer()

    def kill(self) -> float:
        """SIGKILL; gives the moment."""
        moment = time.monotonic()
        self.process.kill()
        return moment

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass(frozen=True)
class Place:
    """What kind of run a figure is taken in."""

    world: int
    memory: bool  # peers share memory; else TCP alone

    def __str__(self) -> str:
        return f"{self.world} peers, {'by memory' if self.memory else 'by TCP'}"


class Fleet:
    """A master and its peers, all of one build; ended at the end of the block."""

    def __init__(self, python: Path, place: Place, realtime: bool) -> None:
        if realtime:
            harness.require_realtime()
        self._python, self._place, self._realtime = python, place, realtime
        self.master = Worker(python, "master")
        self.peers: list[Worker] = []
        self.spare: Worker | None = None
        try:
            self._address = self.master.ask("address")
            self.peers = [self.start() for _ in range(place.world)]
            self.folder = self.ask("form", world=place.world, first=True)[0]
        except BaseException:
            self.close()
            raise

    def start(self) -> Worker:
        return Worker(self._python, "peer", self._address, self._place.memory, self._realtime)

    def ask(self, word: str, **arguments: Any) -> list[Any]:
        """The answers of all peers."""
        for peer in self.peers:
            peer.send(word, **arguments)
        return [peer.answer() for peer in self.peers]

    def close(self) -> None:
        for worker in [*self.peers, *([self.spare] if self.spare else []), self.master]:
            worker.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- cells: what is measured ----


@dataclass
class Cell:
    """One thing that is measured; a sample gives a figure in seconds for each of `shown`, and maybe others."""

    place: Place
    what: str
    sample: Callable[[Fleet, random.Random], dict[str, float]]
    shown: tuple[str, ...] = ("time",)
    found: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {name: [] for name in FLEETS})


def reduce(size: int, ops: int = 1, in_place: bool = False) -> Callable[[Fleet, random.Random], dict[str, float]]:
    calls = max(1, min(CALLS_PER_BLOCK, BYTES_PER_BLOCK // (size * ops)))

    def sample(fleet: Fleet, _: random.Random) -> dict[str, float]:
        masters = fleet.master.ask("cpu")
        by_peer = fleet.ask("reduce", size=size, calls=calls, ops=ops, in_place=in_place)
        masters = (fleet.master.ask("cpu") - masters) / calls
        return {"time": max(wall for wall, _ in by_peer), "CPU time": sum(cpu for _, cpu in by_peer) + masters}

    return sample


def recovery(size: int) -> Callable[[Fleet, random.Random], dict[str, float]]:
    def sample(fleet: Fleet, draw: random.Random) -> dict[str, float]:
        victim, part = draw.randrange(len(fleet.peers)), draw.random()
        undisturbed = max(wall for wall, _ in fleet.ask("reduce", size=size, calls=3, ops=1, in_place=False))
        start = time.monotonic() + 0.05
        for peer in fleet.peers:
            peer.send("lose", size=size, start=start)
        time.sleep(max(0.0, start + (1 + part) * undisturbed - time.monotonic()))
        killed = fleet.peers[victim].kill()
        moments = [peer.answer() for peer in fleet.peers if peer is not fleet.peers[victim]]
        fleet.peers[victim].end()
        fleet.peers[victim] = newcomer = fleet.start()
        for peer in fleet.peers:
            peer.send("form", world=len(fleet.peers), first=peer is newcomer)
        for peer in fleet.peers:
            peer.answer()
        return {
            "until the error": max(failed for failed, _ in moments) - killed,
            "until the repeat has succeeded": max(repeated for _, repeated in moments) - killed,
        }

    return sample


def join(visits: int) -> Callable[[Fleet, random.Random], dict[str, float]]:
    def sample(fleet: Fleet, _: random.Random) -> dict[str, float]:
        fleet.spare = fleet.spare or fleet.start()
        for peer in fleet.peers:
            peer.send("serve", visits=visits)
        [seconds] = fleet.spare.ask("visit", visits=visits)
        for peer in fleet.peers:
            peer.answer()
        return {"time": seconds}

    return sample


def sync(size: int, stale: str) -> Callable[[Fleet, random.Random], dict[str, float]]:
    def sample(fleet: Fleet, _: random.Random) -> dict[str, float]:
        for rank, peer in enumerate(fleet.peers):
            peer.send("sync", size=size, stale=stale if rank == len(fleet.peers) - 1 else "nothing")
        by_peer = [peer.answer() for peer in fleet.peers]
        if len(set(fleet.ask("hash"))) != 1:
            raise BenchError("the contents differ after a sync that succeeded")
        return {"time": max(wall for wall, _ in by_peer), "CPU time": sum(cpu for _, cpu in by_peer)}

    return sample


def cells(sizes: Sequence[int], quick: bool) -> list[Cell]:
    made = []
    for world, memory in itertools.product((2, 4), (True, False)):
        place = Place(world, memory)
        made += [Cell(place, f"all-reduce, {harness.size_text(size)}", reduce(size)) for size in sizes]
        for size in [size for size in (MIB, 16 * MIB, 64 * MIB) if size in sizes and not (quick and size != 16 * MIB)]:
            made.append(Cell(place, f"all-reduce in place, {harness.size_text(size)}", reduce(size, in_place=True)))
        made.append(Cell(place, "8 all-reduces of 16 MiB at once", reduce(16 * MIB, ops=8)))
    for memory in (True, False):
        two, three = Place(2, memory), Place(3, memory)
        for stale in ("nothing", "5 %", "all"):
            made.append(Cell(two, f"sync of 256 MiB, {stale} differs", sync(256 * MIB, stale)))
        for size in (64 * KIB, 16 * MIB):
            shown = ("until the error", "until the repeat has succeeded")
            made.append(Cell(three, f"recovery, {harness.size_text(size)}", recovery(size), shown))
    made.append(Cell(Place(2, True), "join", join(8)))
    for size in (4 * KIB, MIB):
        made.append(
            Cell(Place(8, True), f"all-reduce in place, {harness.size_text(size)}", reduce(size, in_place=True), ("CPU time",))
        )
    return made


# ---- the run ----


def measure(todo: Sequence[Cell], pythons: dict[str, Path], args: argparse.Namespace, folders: dict[str, str]) -> None:
    """Once all rounds of each cell, the cells of one place with the same fleets."""
    places = list(dict.fromkeys(cell.place for cell in todo))
    for place in places:
        with contextlib.ExitStack() as stack:
            fleets = {name: stack.enter_context(Fleet(pythons[name], place, args.realtime)) for name in FLEETS}
            folders.update({name: fleet.folder for name, fleet in fleets.items()})
            for cell in [cell for cell in todo if cell.place == place]:
                print(f"{place}: {cell.what}", file=sys.stderr, flush=True)
                take(cell, fleets, args.rounds)


def take(cell: Cell, fleets: dict[str, Fleet], rounds: int) -> None:
    """The first round warms up. A round counts only when all three have it."""
    orders = list(itertools.permutations(FLEETS))
    first = len(cell.found["new"])
    for round_ in range(-1, rounds):
        draws = f"{cell.what} {first + round_}"  # the same victim and moment for all three
        made = {name: cell.sample(fleets[name], random.Random(draws)) for name in orders[(first + round_) % len(orders)]}
        if round_ >= 0:
            for name, figures in made.items():
                cell.found[name].append(figures)


# ---- what it says ----


def rows(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Row]]:
    for cell in cells:
        for key in cell.shown if cell.found["new"] else ():
            yield cell, row(cell, key)


def row(cell: Cell, key: str) -> Row:
    first, second, new = ([sample[key] for sample in cell.found[name]] for name in FLEETS)
    ratios = [math.log(n) - (math.log(a) + math.log(b)) / 2 for a, b, n in zip(first, second, new, strict=True)]
    draw = random.Random(1)
    resampled = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    half = (resampled[int(0.975 * RESAMPLES)] - resampled[int(0.025 * RESAMPLES)]) / 2
    same = statistics.median(math.log(b) - math.log(a) for a, b in zip(first, second, strict=True))
    ratio, bound = math.exp(statistics.median(ratios)), math.expm1(max(half, abs(same)))
    return {
        "where": str(cell.place),
        "what": cell.what + (f", {key}" if key != "time" else ""),
        "old_ms": statistics.median(first + second) * 1e3,
        "new_ms": statistics.median(new) * 1e3,
        "new/old": ratio,
        "+-": bound,
        "old/old": math.exp(same),
        "CPU new/old": cpu_ratio(cell) if key == "time" else None,
        "rounds": len(new),
        "verdict": "ok" if ratio <= LIMIT else "worse" if ratio - bound > LIMIT and len(new) >= ENOUGH_ROUNDS else "open",
    }


def cpu_ratio(cell: Cell) -> float | None:
    """None: a cell without, or too short for the clock."""
    rounds = zip(*([sample.get("CPU time", 0.0) for sample in cell.found[name]] for name in FLEETS), strict=True)
    ratios = [new / math.sqrt(first * second) for first, second, new in rounds if first * second > 0]
    return statistics.median(ratios) if ratios else None


def cell_text(key: str, value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.3f}" if key in ("new/old", "+-", "old/old", "CPU new/old") else value


def report(args: argparse.Namespace, where: Row, cells: Sequence[Cell], folders: dict[str, str]) -> bool:
    """Prints and writes all that was measured; whether something is worse."""
    made = [line for _, line in rows(cells)]
    if not made:
        return False
    builds = {name: {"folder": folders[name], "commit": commit(folders[name])} for name in ("old", "new")}
    machine = {**where, "load_after": os.getloadavg()[0], "priority of peers": "real-time" if args.realtime else "the usual"}
    print("compare: " + " ".join(METHOD.split()))
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    for name, build in builds.items():
        print(f"{name}: {build['folder']} {build['commit']}")
    print()
    harness.print_table([{key: cell_text(key, value) for key, value in line.items()} for line in made])
    counts = {verdict: sum(line["verdict"] == verdict for line in made) for verdict in ("ok", "open", "worse")}
    print(f"\nlimit {LIMIT}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if args.json:
        samples = [{"where": str(cell.place), "what": cell.what, "seconds": cell.found} for cell in cells if cell.found["new"]]
        whole = {"benchmark": "compare", "method": " ".join(METHOD.split()), "machine": machine, "builds": builds}
        args.json.write_text(json.dumps({**whole, "rows": made, "samples": samples}, indent=1) + "\n")
    return bool(counts["worse"])


def commit(folder: str) -> str:
    done = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "no repository"


def python_of(text: str) -> Path:
    """Of a checkout with a .venv, or a Python that has pccl."""
    path = Path(text).absolute()
    python = path / ".venv" / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise argparse.ArgumentTypeError(f"{python} is no Python: name a checkout in which `make build` was done, or a Python")
    return python


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("old", type=python_of, help="a checkout with its .venv, or a Python that has pccl")
    parser.add_argument("new", type=python_of, help="likewise")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds, one session: some minutes")
    parser.add_argument("--rounds", type=int, help="rounds of each session  [default: 12, quick: 5]")
    parser.add_argument(
        "--sessions", type=int, help="how often all is measured, each time in new processes  [default: 3, quick: 1]"
    )
    parser.add_argument("--again", type=int, help="further sessions at most, of what is not ok alone  [default: 3, quick: 0]")
    parser.add_argument(
        "--only", metavar="TEXT", nargs="+", default=[], help="cells in whose name one of these stands, as in the table"
    )
    parser.add_argument("--realtime", action="store_true", help="peers at real-time priority (SCHED_FIFO 1), which needs root")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write there all samples and the table")
    args = parser.parse_args()
    args.rounds = args.rounds or (5 if args.quick else 12)
    sessions = args.sessions or (1 if args.quick else 3)
    again = args.again if args.again is not None else 0 if args.quick else 3
    wanted = [
        cell
        for cell in cells(QUICK_SIZES if args.quick else SIZES, args.quick)
        if not args.only or any(text in f"{cell.place}: {cell.what}" for text in args.only)
    ]
    if not wanted:
        parser.error("--only: no cell has such a name")
    wanted.sort(key=lambda cell: (cell.place.world, not cell.place.memory))
    where = harness.machine()
    folders: dict[str, str] = {}
    pythons = {"old": args.old, "old again": args.old, "new": args.new}
    interrupted = False
    try:
        for _ in range(sessions):
            measure(wanted, pythons, args, folders)
        for _ in range(again):
            undecided = list({id(cell): cell for cell, line in rows(wanted) if line["verdict"] != "ok"}.values())
            if undecided:
                measure(undecided, pythons, args, folders)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: this is what there is", file=sys.stderr)
    worse = report(args, where, wanted, folders)
    sys.exit(130 if interrupted else int(worse))


if __name__ == "__main__":
    harness.main(run)
