"""Whether `diagnose` names the right kind of fault at the right place: seeded trials of each kind. Needs root."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

import harness
from harness import MIB, ROOT, Peer, Row
from netlab import Lab, Place, fleet_at, hear
from netlab import run as shell

import pccl
from pccl import Diagnosis, FindingKind

METHOD = """Four peers in network namespaces around an emulated switch (bench/switch): every peer has a line with this rate to
and from it, 1 ms one way. They compute (sleep, with 10 % jitter) and all-reduce again and again. Each trial draws a fault, its
place and its strength from the seed, waits, asks the master, takes the fault away and waits again. Right: the first finding
has the kind and the place that were drawn; for no fault: nothing is found. Slow lines and edges have 0.15 to 0.4 of the rate;
losses are 0.7 to 3 %; a straggler computes for 0.5 to 1.5 of an op longer."""

KINDS = ["nothing", *(kind.name.lower() for kind in FindingKind if kind is not FindingKind.HUNG)]
LEAST = 0.98
COMPUTE_SECONDS = 0.02
JITTER = 0.1
DELAY_US = 1000
QUEUE_BYTES = 500_000


class Switch(Lab):
    """Namespaces around bench/switch."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        program = built()
        devices = [f"s{self._mark}{index}" for index in range(count)]
        command = [program, "--delay-us", str(DELAY_US), "--queue-bytes", str(QUEUE_BYTES), "--seed", str(seed), *devices]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hear(self._switch, "ready")
        self.places = [self._join(index, device) for index, device in enumerate(devices)]

    def _join(self, index: int, device: str) -> Place:
        namespace = f"pccl-{self._mark}-{index}"
        shell(f"ip netns add {namespace}")
        self._namespaces.append(namespace)
        shell(f"ip -n {namespace} link set lo up")
        shell(f"ip link set {device} netns {namespace}")
        place = Place(namespace=namespace, device=device, address=f"10.213.0.{index + 1}")
        self._address(place)
        return place

    def tell(self, command: str) -> None:
        """See bench/switch/switch.c."""
        assert self._switch.stdin is not None
        print(command, file=self._switch.stdin, flush=True)
        hear(self._switch, "ok")

    def close(self) -> str:
        self._switch.kill()
        self._switch.wait()
        return super().close()

    def __enter__(self) -> Self:
        return self


def built() -> str:
    """The switch, compiled when it is not there or older than its source."""
    program = ROOT / "build" / "bench" / "switch"
    shared = [ROOT / "bench" / "wan" / f"{name}.c" for name in ("command", "link", "packet", "queue")]
    sources = [ROOT / "bench" / "switch" / "switch.c", *shared]
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        program.parent.mkdir(parents=True, exist_ok=True)
        shell(f"cc -std=c11 -O2 -Wall -Wextra -I{ROOT}/bench/wan -o {program} {' '.join(map(str, sources))} -lm")
    return str(program)


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


def draw(kind: str, peers: int, seed: int) -> Fault:
    rng = random.Random(f"{kind} {seed}")
    span = {"loss": (0.007, 0.03), "straggler": (0.5, 1.5)}.get(kind, (0.15, 0.4))
    return Fault(kind=kind, member=rng.randrange(peers), strength=rng.uniform(*span))


class Trials:
    def __init__(self, switch: Switch, fleet: harness.Fleet, rate: float, settle: float) -> None:
        self._switch, self._fleet, self._rate, self._settle = switch, fleet, rate, settle
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
        rate = self._rate * fault.strength if on else self._rate
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


def run() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--trials", type=int, default=30, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--megabits", type=float, default=200, help="rate of each line, each way")
    parser.add_argument("--size", type=int, default=2 * MIB, metavar="BYTES", help="bytes of the tensor")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds with a fault before the question, and after it")
    parser.add_argument("--verbose", action="store_true", help="print what was found where it is not right")
    args = parser.parse_args()
    where = harness.machine()
    right: Counter[str] = Counter()
    instead: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    order = [(kind, trial) for kind in KINDS for trial in range(args.trials)]
    random.Random(args.seed).shuffle(order)
    with Switch(args.peers, args.seed) as switch:
        for index in range(args.peers):
            switch.tell(f"up {index} {args.megabits} 0")
            switch.tell(f"down {index} {args.megabits} 0")
        with fleet_at(switch.places, worker, size=args.size) as fleet:
            trials = Trials(switch, fleet, args.megabits, args.settle)
            for kind, trial in order:
                fault = draw(kind, args.peers, args.seed * 1000 + trial)
                good, diagnosis = trials.one(fault)
                right[kind] += good
                if not good:
                    found = diagnosis.findings[0].kind.name.lower() if diagnosis.findings else "nothing"
                    instead[kind][found if found != kind else f"{kind} elsewhere"] += 1
                    if args.verbose:
                        print(fault, diagnosis, sep="\n", flush=True)
    rows: list[Row] = [
        {
            "fault": kind.replace("_", " "),
            "trials": args.trials,
            "right kind and place": right[kind],
            "share": right[kind] / args.trials,
            "found instead": ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in instead[kind].items()) or "-",
        }
        for kind in KINDS
    ]
    faults = [kind for kind in KINDS if kind != "nothing"]
    share = sum(right[kind] for kind in faults) / (args.trials * len(faults))
    alarms = args.trials - right["nothing"]
    bars = [
        harness.bar("right kind and place of the fault", f"at least {LEAST:.0%}", f"{share:.1%}", share >= LEAST),
        harness.bar("false alarms without a fault", "none", str(alarms), alarms == 0),
    ]
    harness.report(args, "diagnosis", METHOD, where, rows, bars)


if __name__ == "__main__":
    harness.main(run)
