"""What the death of one of three peers in an op in retry mode costs: bytes on the wire, and time. Needs root."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterator

import harness
import methods
from harness import MIB, BenchError, Master, Peer, Row

import pccl

METHOD = """Three peers in a network namespace of their own sum one fp32 tensor by TCP. One of them, drawn at random, is killed by
SIGKILL when a given part of the time of an undisturbed op has passed; the survivors' call returns without an error. Bytes: what
the namespace's loopback device has carried from before the op to its end, frames, acknowledgements and all. Extra: less
what an undisturbed op carries, for the part of the tensor that has three contributors in the end, and half of it, a ring of two,
for the part that has two. All as parts of what an undisturbed op carries. `time` is that of the slower survivor, in times of
an undisturbed op; a new process then takes the place of the killed one. `retry / plain` compares undisturbed ops in turn, the
slowest peer of each, also where peers of one host share memory."""

WORLD = 3
SETTLED_OPS = 3
EXTRA_BAR, TIME_BAR, UNDISTURBED_BAR = 0.10, 1.25, 1.05


def worker(peer: Peer, address: str, size: int, blocks: int) -> object:
    import numpy as np

    source = np.full(size // 4, 1.0, dtype=np.float32)
    target = np.ones_like(source)
    comm = pccl.Communicator(address)

    def reduce(retry: bool) -> pccl.ReduceInfo:
        return comm.all_reduce(source, target, op=pccl.ReduceOp.SUM, retry=retry)

    comm.connect()
    lost = False
    while True:
        word, argument = harness.order(peer)
        if word == "form":
            # A death after the last op shows in no attribute before the next vote.
            while lost or comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < WORLD:
                methods.update(comm)
                lost = False
            for _ in range(SETTLED_OPS):
                reduce(True)
            harness.tell(peer, None)
        elif word == "reduce":
            time.sleep(max(0.0, argument - time.monotonic()))
            info = reduce(True)
            ended = time.monotonic()
            for start, stop, peers in info.contributors:
                if target[start] != len(peers) or target[stop - 1] != len(peers):
                    raise BenchError("the sum is not that of its contributors")
            full = sum(stop - start for start, stop, peers in info.contributors if len(peers) == WORLD)
            harness.tell(peer, (ended, full / source.size))
        elif word == "lost":
            lost = True
        elif word == "compare":
            calls = {"plain": lambda: reduce(False), "retry": lambda: reduce(True)}
            harness.tell(peer, harness.alternate(peer, calls, blocks))
        else:
            comm.close()
            return "closed"


class Lab:
    """A network namespace whose loopback device carries nothing but the peers' bytes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def carried(self) -> int:
        """Bytes so far."""
        command = ["ip", "netns", "exec", self.name, "cat", "/proc/net/dev"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return int(next(line for line in lines if line.strip().startswith("lo:")).split(":")[1].split()[8])


@contextlib.contextmanager
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0:
        raise BenchError("a network namespace needs root")
    harness.require_program("ip")
    name = f"pccl-resume-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Lab(name)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def run() -> None:
    parser = harness.parser(__doc__, blocks=9)
    parser.add_argument("--size", type=int, default=256 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--seed", type=int, default=1, help="of the victims")
    args = parser.parse_args()
    where = harness.machine()
    draw = random.Random(args.seed)
    rows: list[Row] = []
    ratios = {"memory": compare(args.size, args.blocks)}
    os.environ[methods.SAME_HOST_MEMORY] = "0"
    with (
        lab() as place,
        Master(namespace=place.name) as master,
        harness.Fleet(worker, WORLD, [place.name] * WORLD, address=master.address, size=args.size, blocks=args.blocks) as fleet,
    ):
        ratios["TCP"] = compare_in(fleet)
        trials = {part: [trial(fleet, place, draw, part) for _ in range(args.blocks)] for part in (0.5, 0.9)}
    del os.environ[methods.SAME_HOST_MEMORY]
    for way, ratio in ratios.items():
        rows.append({"what": f"retry / plain, undisturbed, by {way}", "median": ratio})
    for part, made in trials.items():
        for key in ("extra bytes", "time", "of three"):
            values = [one[key] for one in made]
            rows.append({"what": f"killed at {part:.0%}: {key}", **harness.summary(values)})
    text = f"{WORLD} peers, {harness.size_text(args.size)}"
    extra = max(one["extra bytes"] for one in trials[0.5])
    total = statistics.median(one["time"] for one in trials[0.9])
    bars = [
        harness.bar(
            f"a death at 50 % of an op in retry mode, {text}: bytes beyond what is owed, of an op's, worst of {args.blocks}",
            f"at most {EXTRA_BAR:.0%}",
            f"{extra:.1%}",
            extra <= EXTRA_BAR,
        ),
        harness.bar(
            f"a death at 90 % of an op in retry mode, {text}: time, in times of an undisturbed op, median",
            f"at most {TIME_BAR:g} x",
            f"{total:.2f} x",
            total <= TIME_BAR,
        ),
    ]
    for way, ratio in ratios.items():
        bars.append(
            harness.bar(
                f"an undisturbed op in retry mode against a plain one, {text}, by {way}",
                f"at most {UNDISTURBED_BAR:g} x",
                f"{ratio:.2f} x",
                ratio <= UNDISTURBED_BAR,
            )
        )
    harness.report(args, "resume", METHOD, where, rows, bars)


def compare(size: int, blocks: int) -> float:
    with Master() as master, harness.Fleet(worker, WORLD, address=master.address, size=size, blocks=blocks) as fleet:
        return compare_in(fleet)


def compare_in(fleet: harness.Fleet) -> float:
    """Median time of an undisturbed op in retry mode, in times of a plain one."""
    form(fleet)
    fleet.send_all(("compare", None))
    by_method = harness.slowest(fleet.results())
    return statistics.median(by_method["retry"]) / statistics.median(by_method["plain"])


def form(fleet: harness.Fleet) -> None:
    fleet.send_all(("form", None))
    fleet.results()


def reduce(fleet: harness.Fleet, victim: int | None = None, after: float = 0.0) -> tuple[float, float]:
    """One op, in which `victim` is killed `after` seconds: its time, and the part of it that has all contributors."""
    start = time.monotonic() + 0.05
    fleet.send_all(("reduce", start))
    if victim is not None:
        time.sleep(max(0.0, start + after - time.monotonic()))
        fleet.kill(victim)
    answers = [fleet.receive(rank) for rank in range(WORLD) if rank != victim]
    return max(answer[0] for answer in answers) - start, answers[0][1]


def trial(fleet: harness.Fleet, place: Lab, draw: random.Random, part: float) -> dict[str, float]:
    form(fleet)
    times, volumes = [], []
    for _ in range(SETTLED_OPS):
        before = place.carried()
        times.append(reduce(fleet)[0])
        volumes.append(place.carried() - before)
    own, volume = statistics.median(times), statistics.median(volumes)
    victim = draw.randrange(WORLD)
    before = place.carried()
    seconds, full = reduce(fleet, victim, part * own)
    carried = place.carried() - before
    fleet.replace(victim)
    for rank in range(WORLD):
        if rank != victim:
            fleet.send(rank, ("lost", None))
    return {"extra bytes": carried / volume - full - (1 - full) / 2, "time": seconds / own, "of three": full}


if __name__ == "__main__":
    harness.main(run)
