"""Backs "Far and slow links" of docs/benchmarks.md: whether `diagnose` names an injected fault. Needs root.

Four peers in network namespaces around an emulated switch (bench/switch), each with a line of 200 Mbit/s and 1 ms, compute
(sleep, with 10 % jitter) and all-reduce 2 MiB again and again. A trial draws a fault, its place and its strength from the
seed, waits, asks the master, takes the fault away, and waits again. Right: the first finding has the kind and the place that
were drawn; without a fault: nothing is found. Slow lines and edges have 0.15 to 0.4 of the rate; losses are 0.7 to 3 %; a
straggler computes for 0.5 to 1.5 of an operation longer.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass

import harness
from harness import MIB, Peer, Report, Row
from netlab import Switch, fleet_at

import pccl
from pccl import Diagnosis, FindingKind

KINDS = ["nothing", *(kind.name.lower() for kind in FindingKind if kind is not FindingKind.HUNG)]
LEAST = 0.98
COMPUTE_SECONDS = 0.02
JITTER = 0.1
PEERS, MEGABITS = 4, 200


# ---- the peers ----


def worker(peer: Peer, address: str, size: int) -> None:
    """Computes and reduces until it is killed. Orders: a number of seconds to compute for, or None: the diagnosis."""
    import numpy as np

    array = np.ones(size // 4, np.float32)
    random_wait = random.Random(peer.rank)
    compute = COMPUTE_SECONDS
    comm = pccl.Communicator(address)
    comm.connect()
    comm.wait_for_peers(peer.world)
    harness.tell(peer, comm.uuid)

    def apply() -> None:
        nonlocal compute
        while True:
            order = harness.order(peer)
            if order is None:
                harness.tell(peer, comm.diagnose())
            else:
                compute = order

    threading.Thread(target=apply, daemon=True).start()
    while True:
        time.sleep(compute * (1 + JITTER * random_wait.random()))
        comm.all_reduce(array, op=pccl.ReduceOp.MAX)


# ---- trials ----


@dataclass(frozen=True, kw_only=True)
class Fault:
    kind: str
    member: int  # place in the ring; of an edge, the sender
    strength: float


def draw(kind: str, seed: int) -> Fault:
    rng = random.Random(f"{kind} {seed}")
    span = {"loss": (0.007, 0.03), "straggler": (0.5, 1.5)}.get(kind, (0.15, 0.4))
    return Fault(kind=kind, member=rng.randrange(PEERS), strength=rng.uniform(*span))


class Trials:
    def __init__(self, switch: Switch, fleet: harness.Fleet, settle: float) -> None:
        self._switch, self._fleet, self._settle = switch, fleet, settle
        ids = [fleet.receive(rank) for rank in range(len(switch.places))]
        time.sleep(settle)
        self._ring = [ids.index(member.uuid) for member in self._ask().members]  # peers, by place
        self._ids = [ids[peer] for peer in self._ring]
        self.op_seconds = max(member.op_seconds / member.ops for member in self._ask().members)

    def _ask(self) -> Diagnosis:
        self._fleet.send(0, None)
        diagnosis: Diagnosis = self._fleet.receive(0)
        return diagnosis

    def _set(self, fault: Fault, on: bool) -> None:
        peer = self._ring[fault.member]
        following = self._ring[(fault.member + 1) % len(self._ring)]
        rate = MEGABITS * fault.strength if on else MEGABITS
        match fault.kind:
            case "straggler":
                self._fleet.send(peer, COMPUTE_SECONDS + (fault.strength * self.op_seconds if on else 0))
            case "slow_sender":
                self._switch.tell(f"up {peer} {rate} 0")
            case "slow_receiver":
                self._switch.tell(f"down {peer} {rate} 0")
            case "slow_edge":
                self._switch.tell(f"edge {peer} {following} {rate if on else 0} 0")
            case "loss":
                self._switch.tell(f"edge {peer} {following} 0 {fault.strength if on else 0}")

    def one(self, fault: Fault) -> tuple[bool, Diagnosis]:
        self._set(fault, True)
        time.sleep(self._settle)
        diagnosis = self._ask()
        self._set(fault, False)
        time.sleep(self._settle)
        if fault.kind == "nothing":
            return not diagnosis.findings, diagnosis
        other = self._ids[(fault.member + 1) % len(self._ids)] if fault.kind in ("slow_edge", "loss") else None
        wanted = (FindingKind[fault.kind.upper()], self._ids[fault.member], other)
        first = next(iter(diagnosis.findings), None)
        return first is not None and (first.kind, first.member, first.other) == wanted, diagnosis


def body(args: argparse.Namespace) -> Report:
    trials_each = 1 if args.quick else args.trials
    right: Counter[str] = Counter()
    instead: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    order = [(kind, trial) for kind in KINDS for trial in range(trials_each)]
    random.Random(args.seed).shuffle(order)
    with Switch(PEERS, args.seed) as switch:
        for index in range(PEERS):
            switch.tell(f"up {index} {MEGABITS} 0")
            switch.tell(f"down {index} {MEGABITS} 0")
        with fleet_at(switch.places, worker, size=2 * MIB) as fleet:
            trials = Trials(switch, fleet, args.settle)
            for kind, trial in order:
                fault = draw(kind, args.seed * 1000 + trial)
                good, diagnosis = trials.one(fault)
                right[kind] += good
                if not good:
                    name = diagnosis.findings[0].kind.name.lower() if diagnosis.findings else "nothing"
                    instead[kind][name if name != kind else f"{kind} elsewhere"] += 1
                    print(fault, diagnosis, sep="\n", flush=True)
    rows: list[Row] = [
        {"fault": kind, "trials": trials_each, "right": right[kind], "instead": dict(instead[kind])} for kind in KINDS
    ]
    faults = trials_each * (len(KINDS) - 1)
    found = right.total() - right["nothing"]
    alarms = trials_each - right["nothing"]
    what = "diagnosis: kind and place of an injected fault"
    figures = [
        harness.figure(what, f"{found} of {faults} trials", f"{LEAST:.0%}", found >= LEAST * faults),
        harness.figure("diagnosis: false alarms without a fault", f"{alarms} of {trials_each}", "none", alarms == 0),
    ]
    return Report(figures, rows)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=10, help="of each kind [10]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds with a fault before the question, and after it [5]")


if __name__ == "__main__":
    harness.measure(body, options=options)
