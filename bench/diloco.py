"""The methods of training over slow links against each other: loss by bytes sent, and by time on a limited link. Needs root.

    python bench/diloco.py --out build/diloco
    python bench/diloco.py --small --methods DiLoCo sparse     # a minute, to see that it works

Each method trains the GPT of examples/diloco.py with as many steps and tokens, by peers in network namespaces of their own, of
which each sends 100 Mbit/s at most. With --churn one peer is killed after a third of the outer steps, and another one joins after
half of them. Writes diloco.json, a table (diloco.md) and two plots into the folder. bench/diloco.json is one, without seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, BenchError, machine
from netlab import Lab, Place

PORT = 48148
LIMIT_SECONDS = 3600.0
"""How long a method may take."""

METHODS = {
    "data parallel": ["--method", "data-parallel"],
    "DiLoCo": ["--method", "diloco"],
    "DiLoCo int8": ["--method", "diloco", "--compression", "int8"],
    "DiLoCo int4": ["--method", "diloco", "--compression", "int4"],
    "DiLoCo e3m0": ["--method", "diloco", "--compression", "e3m0"],
    "async": ["--method", "async"],
    "async int8": ["--method", "async", "--compression", "int8"],
    "streaming int8": ["--method", "streaming", "--compression", "int8"],
    "streaming e3m0": ["--method", "streaming", "--compression", "e3m0"],
    "sparse": ["--method", "sparse"],
}

Line = dict[str, Any]


PRELOADED = """
import runpy, sys, pydoc_data.topics, torch._dynamo, pccl.diloco
sys.argv = sys.argv[1:]
sys.stdin.readline()
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that runs another one once it is told to, without the time that its imports take."""


class Peer:
    """A process of examples/diloco.py, in a namespace if `place` is given, and what it has told of its outer steps."""

    def __init__(self, number: int, place: Place | None, master: str, peers: int, arguments: list[str]) -> None:
        """It begins with `go`; a new run begins once `peers` have."""
        self.lines: list[Line] = []
        self._told: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: it has ended
        enter = ["ip", "netns", "exec", place.namespace] if place else []
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-c", PRELOADED, str(ROOT / "examples" / "diloco.py"), "--json", *arguments],
            env={**os.environ, "PCCL_MASTER": master, "PCCL_PEERS": str(peers), "PCCL_PEER": str(number), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self.lines.append({**json.loads(text), "at": time.monotonic()})
            self._told.put(True)
        self._told.put(False)

    def await_step(self, step: int | None) -> None:
        """Until it has told of this outer step; None: until its end."""
        while step is None or not self.lines or self.lines[-1]["step"] < step:
            try:
                ended = not self._told.get(timeout=LIMIT_SECONDS)
            except queue.Empty:
                raise BenchError(f"a peer has told nothing for {LIMIT_SECONDS:.0f} s") from None
            if ended:
                status = self._process.wait()
                if step is None and status == 0:
                    return
                raise BenchError(f"a peer has ended with status {status}; its words stand above")

    def usual_seconds(self) -> float:
        """From one outer step to the next."""
        moments = [line["seconds"] for line in self.lines]
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(moments))

    def kill(self) -> None:
        """SIGKILL; `ip netns exec` has become the peer itself."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a method is measured with."""

    peers: int
    steps: int
    sync_every: int
    megabits: float
    churn: bool
    model: list[str]

    def measure(self, arguments: list[str]) -> Line:
        """Trains once; gives the outer steps as the first peer has seen them."""
        arguments = [*arguments, *self.model, "--steps", str(self.steps), "--sync-every", str(self.sync_every)]
        rounds = self.steps // self.sync_every
        with Lab() as lab, contextlib.ExitStack() as stack:
            places = lab.star(self.peers + 1)
            for place in places:
                lab.limit(place, self.megabits)
            master = stack.enter_context(_master(places[0]))
            peers = []

            def start(number: int) -> None:
                peers.append(Peer(number, places[number], master, self.peers, arguments))
                stack.callback(peers[-1].kill)

            for number in range(self.peers + self.churn):
                start(number)
            for peer in peers[: self.peers]:
                peer.go()
            if self.churn:
                peers[0].await_step(max(1, rounds // 3))
                peers[1].kill()
                peers[0].await_step(max(2, rounds // 2))
                peers[-1].go()
            peers[0].await_step(None)
        return {"rounds": peers[0].lines}


@contextlib.contextmanager
def _master(place: Place) -> Iterator[str]:
    address = f"{place.address}:{PORT}"
    command = ["ip", "netns", "exec", place.namespace, sys.executable, "-m", "pccl", "master", "--listen", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        if "listening" not in process.stdout.readline():
            raise BenchError(f"no master listens at {address}")
        yield address
    finally:
        process.kill()
        process.wait()


# ---- what is written ----


def table(results: dict[str, Line]) -> str:
    """Markdown: the end of each method, with the bytes of data parallel over its own."""
    reference = results.get("data parallel")
    lines = [
        "| method | validation loss | against data parallel | MB sent per peer | fewer bytes | seconds | members |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        last = result["rounds"][-1]
        cells = [name, f"{last['validation']:.3f}", "", f"{last['sent'] / 1e6:.3g}", "", f"{last['seconds']:.0f}"]
        cells.append(", ".join(str(members) for members, _ in itertools.groupby(line["members"] for line in result["rounds"])))
        if reference is not None:
            end = reference["rounds"][-1]
            cells[2] = f"{last['validation'] / end['validation'] - 1:+.1%}"
            cells[4] = f"{end['sent'] / last['sent']:.0f} x" if last["sent"] else "-"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


KEPT = ("step", "sent", "seconds", "validation", "members")
"""What diloco.json has of each outer step, in a list each."""


def store(results: dict[str, Line], machine: Line, path: Path) -> None:
    """Writes the outer steps of all methods, with the command and the machine."""
    columns = {
        name: {key: [line[key] for line in result["rounds"]] for key in KEPT if key in result["rounds"][0]}
        for name, result in results.items()
    }
    told = {"command": shlex.join(sys.argv), "machine": machine, "methods": columns}
    path.write_text(re.sub(r"\n {4,}|(?<=\d)\n *(?=])", "", json.dumps(told, indent=1)) + "\n")


def load(path: Path) -> dict[str, Line]:
    """The results that `store` has written."""
    columns = json.loads(path.read_text())["methods"]
    return {
        name: {"rounds": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}
        for name, lists in columns.items()
    }


BYTES = "MB sent per peer (logarithmic)"
HIGHEST_LOSS = 2.2
"""Of the plot by time: all methods are below soon."""


def draw(results: dict[str, Line], key: str, label: str, path: Path) -> None:
    """The validation loss by one of the numbers of an outer step, with a mark where members were lost or joined."""
    from line_labels import label_ends, label_near

    from pccl.lab import plots

    made = plots.figure(4.6)
    axes = made.add_subplot()
    ends = []
    for number, (name, result) in enumerate(results.items()):
        rounds = [line for line in result["rounds"] if key != "sent" or line["sent"] > 0]  # the axis has no 0
        if not rounds:
            continue
        scale = 1e6 if key == "sent" else 1
        colour, style = plots.COLOURS[number % len(plots.COLOURS)], "-" if number < len(plots.COLOURS) else "--"
        at, losses = [line[key] / scale for line in rounds], [line["validation"] for line in rounds]
        axes.plot(at, losses, color=colour, linestyle=style, linewidth=1.6)
        for before, after in itertools.pairwise(rounds):
            if before["members"] != after["members"]:
                mark = "v" if after["members"] < before["members"] else "^"
                axes.plot(after[key] / scale, after["validation"], mark, color=colour, markersize=7, markeredgecolor="white")
        ends.append((at[-1], losses[-1], name, colour))
    axes.set_xlabel(label)
    axes.set_ylabel("validation loss (nats per character)")
    axes.set_title("\u25bc a member is killed   \u25b2 another one joins", fontsize="medium", loc="left")
    if key == "sent":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(top=min(HIGHEST_LOSS, axes.get_ylim()[1]))
    plots.dress(axes)
    if key == "sent":
        axes.margins(y=0.12)
        axes.set_xlim(right=8 * max(x for x, *_ in ends))  # room for the last name
        label_near(made, axes, ends)
    else:
        label_ends(axes, ends)
    plots.save(made, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000, help="of the inner optimizer of each peer")
    parser.add_argument("--sync-every", type=int, default=100)
    parser.add_argument("--megabits", type=float, default=100.0, help="that each peer may send per second")
    parser.add_argument("--model", default="--width 128 --layers 4", help="options of examples/diloco.py, of the model")
    parser.add_argument("--churn", action=argparse.BooleanOptionalAction, default=True, help="a kill and a join in the middle")
    parser.add_argument("--small", action="store_true", help="few steps of a tiny model, to see that it works")
    parser.add_argument(
        "--draw", action="store_true", help="draw the picture of docs/diloco-results.md from bench/diloco.json alone"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "diloco", help="folder for what is written")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(load(ROOT / "bench" / "diloco.json"), "sent", BYTES, ROOT / "docs" / "images" / "diloco_by_bytes.png")
        return 0
    if arguments.small:
        arguments.steps, arguments.sync_every, arguments.model = 60, 10, "--width 16 --layers 1 --batch 4"
    run = Run(
        peers=arguments.peers,
        steps=arguments.steps,
        sync_every=arguments.sync_every,
        megabits=arguments.megabits,
        churn=arguments.churn,
        model=arguments.model.split(),
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Line] = {}
    where = machine()
    for name in arguments.methods:
        results[name] = run.measure(METHODS[name])
        last = results[name]["rounds"][-1]
        print(f"{name}: loss {last['validation']:.3f}, {last['sent'] / 1e6:.3g} MB, {last['seconds']:.0f} s", flush=True)
        store(results, {**where, "load_after": os.getloadavg()[0]}, arguments.out / "diloco.json")
    text = table(results)
    (arguments.out / "diloco.md").write_text(text)
    draw(results, "sent", BYTES, arguments.out / "loss_by_bytes.png")
    draw(results, "seconds", f"seconds, links of {arguments.megabits:g} Mbit/s", arguments.out / "loss_by_time.png")
    print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(str(error))
