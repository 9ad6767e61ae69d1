"""Backs "DiLoCo: measured methods" of docs/diloco-results.md: loss by bytes sent, and by time on a limited link. Needs root.

Each method trains the GPT of examples/diloco.py with as many steps and tokens, by peers in network namespaces of their own,
of which each sends 100 Mbit/s at most. With --churn one peer is killed after a third of the outer steps, and another one
joins after half of them. Takes hours; --json FILE keeps all outer steps.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from typing import Any

import harness
from harness import ROOT, BenchError, Master, Report, Row
from netlab import Lab, Place

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
    """A process of examples/diloco.py, in a namespace, and what it has told of its outer steps."""

    def __init__(self, number: int, place: Place, master: str, peers: int, arguments: list[str]) -> None:
        """It begins with `go`; a new run begins once `peers` have."""
        self.lines: list[Line] = []
        self._told: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: it has ended
        enter = ["ip", "netns", "exec", place.namespace]
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
            self.lines.append(json.loads(text))
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

    def kill(self) -> None:
        """SIGKILL; `ip netns exec` has become the peer itself."""
        self._process.kill()
        self._process.wait()


def measure(method: list[str], args: argparse.Namespace) -> list[Line]:
    """Trains once. Returns the outer steps as the first peer has seen them."""
    arguments = [*method, *args.model.split(), "--steps", str(args.steps), "--sync-every", str(args.sync_every)]
    rounds = args.steps // args.sync_every
    with Lab() as lab, contextlib.ExitStack() as stack:
        places = lab.star(args.peers + 1)
        for place in places:
            lab.limit(place, args.megabits)
        master = stack.enter_context(Master(places[0].address, places[0].namespace))
        peers = [Peer(number, place, master.address, args.peers, arguments) for number, place in enumerate(places)]
        for peer in peers:
            stack.callback(peer.kill)
        for peer in peers[: args.peers]:
            peer.go()
        if args.churn:
            peers[0].await_step(max(1, rounds // 3))
            peers[1].kill()
            peers[0].await_step(max(2, rounds // 2))
            peers[-1].go()
        peers[0].await_step(None)
    return peers[0].lines


def figure(name: str, rounds: list[Line], reference: Line | None) -> Row:
    """Returns a row of the page: the end of a method, with the loss and the bytes of data parallelism beside its own."""
    last = rounds[-1]
    made: Row = {"method": name, "validation loss": f"{last['validation']:.3f}", "MB sent per peer": f"{last['sent'] / 1e6:.3g}"}
    if reference is not None and last["sent"]:
        made["against data parallel"] = f"{last['validation'] / reference['validation'] - 1:+.1%}"
        made["fewer bytes"] = f"{reference['sent'] / last['sent']:.0f} x"
    members = ", ".join(str(members) for members, _ in itertools.groupby(line["members"] for line in rounds))
    return made | {"seconds": f"{last['seconds']:.0f}", "members": members}


def body(args: argparse.Namespace) -> Report:
    if args.quick:
        args.steps, args.sync_every, args.model = 60, 10, "--width 16 --layers 1 --batch 4"
        args.methods = ["data parallel", "sparse"]
    results = {name: measure(METHODS[name], args) for name in args.methods}
    reference = results["data parallel"][-1] if "data parallel" in results else None
    figures = [figure(name, rounds, reference) for name, rounds in results.items()]
    return Report(figures, [{"method": name, **line} for name, rounds in results.items() for line in rounds])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6000, help="of the inner optimizer of each peer [6000]")
    parser.add_argument("--sync-every", type=int, default=20)
    parser.add_argument("--megabits", type=float, default=100.0, help="that each peer may send per second [100]")
    parser.add_argument("--model", default="--width 48 --layers 2 --batch 8", help="options of examples/diloco.py, of the model")
    parser.add_argument("--churn", action=argparse.BooleanOptionalAction, default=True, help="a kill and a join in the middle")


if __name__ == "__main__":
    harness.measure(body, options=options)
