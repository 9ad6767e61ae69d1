"""From the SIGKILL of the master, restarted at once, to the success of the next op."""

from __future__ import annotations

import itertools
import random
import statistics
import subprocess
import sys
import time

import harness
import methods
from harness import KIB, MIB, Peer, Row

import pccl
from pccl.lab.ports import free_ports

METHOD = """Three peers sum one fp32 tensor and ask whether newcomers wait, in turn, again and again; so each round needs the
master. It, a process of its own, is killed by SIGKILL at a random moment and started again at once at its address. Time from the
kill to the end, on the slowest peer, of the call that had to wait for it. `start`, which is a part of that, is how long the
new process needed until it listened, most of it the start of Python."""

WORLD = 3
BAR_MS = 1000.0
MASTER = "import sys, pccl, time\nm = pccl.MasterNode(sys.argv[1])\nm.run()\nprint(m.port, flush=True)\ntime.sleep(3600)"


class Restarted:
    """A master that can be killed and started again at its address."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MASTER, self.address], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def worker(peer: Peer, address: str, size: int) -> None:
    import numpy as np

    source = np.full(size // 4, 1.0, dtype=np.float32)
    target = np.ones_like(source)
    flag = np.zeros(1, np.int64)
    comm = pccl.Communicator(address)
    comm.connect()
    while True:
        word, argument = harness.order(peer)
        if word == "form":
            methods.form(comm, WORLD)
            harness.tell(peer, "formed")
        elif word == "reduce":
            ends: list[float] = []
            while True:
                comm.all_reduce(source, target, op=pccl.ReduceOp.SUM)
                ends.append(time.monotonic())
                comm.are_peers_pending()  # which only a master can answer
                ends.append(time.monotonic())
                flag[0] = ends[-1] < argument
                comm.all_reduce(flag, flag, op=pccl.ReduceOp.MIN, tag=1)
                if not flag[0]:
                    break
            harness.tell(peer, ends)
        else:
            comm.close()
            harness.tell(peer, "closed")
            return


def trial(fleet: harness.Fleet, master: Restarted, draw: random.Random) -> dict[str, float]:
    fleet.send_all(("reduce", time.monotonic() + 2.0))
    time.sleep(0.1 + 0.3 * draw.random())
    killed = time.monotonic()
    master.kill()
    master.start()
    listens = time.monotonic()
    moments = fleet.results()
    # each round needs the master once: the longest gap is the one in which it was gone
    after = [max(itertools.pairwise(ends), key=lambda pair: pair[1] - pair[0])[1] for ends in moments]
    return {"start": listens - killed, "until the next success": max(after) - killed, "after it listens": max(after) - listens}


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    args = parser.parse_args()
    where = harness.machine()
    draw = random.Random(args.seed)
    rows: list[Row] = []
    bars = []
    for size in (64 * KIB, 64 * MIB):
        master = Restarted()
        try:
            with harness.Fleet(worker, WORLD, address=master.address, size=size) as fleet:
                fleet.send_all(("form", None))
                fleet.results()
                trials = [trial(fleet, master, draw) for _ in range(args.blocks)]
                fleet.send_all(("close", None))
        finally:
            master.kill()
        for key in trials[0]:
            made = harness.summary([one[key] * 1e3 for one in trials])
            rows.append(
                {
                    "size": harness.size_text(size),
                    "kill to": key,
                    "median_ms": made["median"],
                    "min_ms": made["min"],
                    "max_ms": made["max"],
                    "trials": len(trials),
                }
            )
        median = statistics.median(one["until the next success"] for one in trials) * 1e3
        what = f"kill of the master until the next success, {WORLD} peers, {harness.size_text(size)}"
        bars.append(harness.bar(what, f"median under {BAR_MS:.0f} ms", f"{median:.0f} ms", median < BAR_MS))
    harness.report(args, "master_loss", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
