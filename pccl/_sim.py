"""`pccl sim`: seeds of the deterministic simulator, several at a time.

The simulator lets go of the GIL while it runs, so threads are enough; each has a simulator of its own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pccl._loader import load_simulator

_ffi, _C = load_simulator()

FAULTS: dict[str, int] = {
    name.removeprefix("PCCL_SIM_").lower().replace("_", "-"): number
    for number, name in sorted(_ffi.typeof("enum pccl_sim_fault").elements.items())
    if name != "PCCL_SIM_ALL"
}
"""What may go wrong, by name; docs/simulator.md explains each."""

EVENTS_PER_CALL = 20_000
"""About 10 ms, so that an interrupt is obeyed at once."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which seeds to run, and how."""

    first: int  # seed
    seeds: int  # how many, one after the other
    peers: int  # 0: by the seed
    masters: int  # likewise
    fault_ms: int  # virtual time with faults, of each seed; 0: by the seed
    faults: int  # bits of FAULTS; 0: by the seed
    lines: int  # of the trace, in the report of a failing seed
    trace: bool  # print every line as it happens, to standard output
    jobs: int  # seeds at a time
    failures: int  # after so many it stops


@dataclass
class Progress:
    """How far it is; written by the threads under the lock, read by anybody."""

    done: int = 0
    events: int = 0  # about
    reports: list[str] = field(default_factory=list)  # of failing seeds
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)  # why it could not go on


class Runner:
    """Runs a plan on threads of its own: `with Runner(plan) as runner: runner.wait(0.1) ...`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.progress = Progress()
        self._lock = threading.Lock()
        self._next = plan.first
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(plan.jobs)]

    def __enter__(self) -> Runner:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, seconds: float) -> bool:
        """Waits for the end, so long at most; False: it goes on."""
        for thread in self._threads:
            thread.join(seconds / len(self._threads))
        return not any(thread.is_alive() for thread in self._threads)

    def _take_seed(self) -> int | None:
        with self._lock:
            over = self._next >= self.plan.first + self.plan.seeds or len(self.progress.reports) >= self.plan.failures
            if over or self._stop.is_set():
                return None
            self._next += 1
            return self._next - 1

    def _work(self) -> None:
        sim = _ffi.gc(_C.pccl_sim_new(), _C.pccl_sim_free)
        while sim and (seed := self._take_seed()) is not None:
            state = self._run(sim, seed, 0)
            if state == _C.PCCL_SIM_FAILED and not self.plan.trace:
                self._run(sim, seed, self.plan.lines)  # the same once more, telling
            with self._lock:
                self.progress.done += state != _C.PCCL_SIM_RUNNING
                if state == _C.PCCL_SIM_FAILED:
                    self.progress.reports.append(_ffi.string(_C.pccl_sim_report(sim)).decode(errors="replace"))
        with self._lock:
            if not sim:
                self.progress.errors.append("the system refused memory for a simulator")
            else:
                self.progress.counts.update(counts_of(sim))

    def _run(self, sim: Any, seed: int, lines: int) -> int:
        """One seed; RUNNING when it was interrupted."""
        plan = self.plan
        config = {
            "seed": seed,
            "peers": plan.peers,
            "masters": plan.masters,
            "fault_ms": plan.fault_ms,
            "faults": plan.faults,
            "trace_lines": lines,
            "trace_fd": 1 if plan.trace else -1,
        }
        state = int(_C.pccl_sim_begin(sim, _ffi.new("struct pccl_sim_config *", config)))
        while state == _C.PCCL_SIM_RUNNING and not self._stop.is_set():
            state = int(_C.pccl_sim_go(sim, EVENTS_PER_CALL))
            if state == _C.PCCL_SIM_RUNNING:
                with self._lock:
                    self.progress.events += EVENTS_PER_CALL
        return state


def counts_of(sim: Any) -> Counter[str]:
    """What happened in all runs of this simulator, by name."""
    counts: Counter[str] = Counter()
    index = 0
    while (name := _C.pccl_sim_count_name(index)) != _ffi.NULL:
        counts[_ffi.string(name).decode()] = int(_C.pccl_sim_count(sim, index))
        index += 1
    return counts


def default_jobs() -> int:
    """Seeds at a time: one per processor that this process may use."""
    return len(os.sched_getaffinity(0))
