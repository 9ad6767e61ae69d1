"""`pccl sim`: runs seeds of the deterministic simulator, several at a time. `pccl/cli/sim.py` imports this file.

The simulator releases the GIL while it runs, so each seed has a thread and a simulator of its own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pccl.lab.ranges import Range

MODULE = Path(__file__).with_name("_simulator.abi3.so")


def _load() -> tuple[Any, Any]:
    """Returns the cffi pair (ffi, lib) of sim.h. UsageError, with status 2: the simulator is not built, or does not load."""
    try:
        spec = importlib.util.spec_from_file_location("sim._simulator", MODULE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        reason = "is not built" if not MODULE.is_file() else f"cannot be loaded ({error})"
        raise click.UsageError(f"pccl sim: the simulator {reason}; run `make build` in {MODULE.parents[1]}") from None
    return module.ffi, module.lib


_ffi, _C = _load()

FAULTS: dict[str, int] = {
    name.removeprefix("PCCL_SIM_").lower().replace("_", "-"): number
    for number, name in sorted(_ffi.typeof("enum pccl_sim_fault").elements.items())
    if name != "PCCL_SIM_ALL"
}
"""Faults by name; docs/simulator.md explains each."""

EVENTS_PER_CALL = 20_000
"""About 10 ms, so that Ctrl-C takes effect at once."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as that of a shell."""


class Runner:
    """Runs seeds on `jobs` threads: `with Runner(...) as runner: runner.wait(0.1) ...`. Stops after so many failures.

    `reports` has the last `lines` of the trace of each failing seed; `config` are fields of struct pccl_sim_config.
    """

    def __init__(self, seeds: range, *, jobs: int, failures: int, lines: int, **config: int) -> None:
        self._seeds, self._failures, self._lines, self._config = seeds, failures, lines, config
        self.done = self.events = 0
        self.reports: list[str] = []
        self.counts: Counter[str] = Counter()
        self.refused = False  # memory for a simulator
        self._lock = threading.Lock()  # of all above
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(jobs)]

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
            if not self._seeds or len(self.reports) >= self._failures or self._stop.is_set():
                return None
            seed, self._seeds = self._seeds[0], self._seeds[1:]
            return seed

    def _work(self) -> None:
        sim = _ffi.gc(_C.pccl_sim_new(), _C.pccl_sim_free)
        self.refused |= not sim
        while sim and (seed := self._take_seed()) is not None:
            state = self._run(sim, seed, 0)
            if state == _C.PCCL_SIM_FAILED and self._config["trace_fd"] < 0:
                self._run(sim, seed, self._lines)  # the same once more, telling
            with self._lock:
                self.done += state != _C.PCCL_SIM_RUNNING
                if state == _C.PCCL_SIM_FAILED:
                    self.reports.append(_ffi.string(_C.pccl_sim_report(sim)).decode(errors="replace"))
        index = 0
        while sim and (name := _C.pccl_sim_count_name(index)) != _ffi.NULL:
            with self._lock:
                self.counts[_ffi.string(name).decode()] += int(_C.pccl_sim_count(sim, index))
            index += 1

    def _run(self, sim: Any, seed: int, lines: int) -> int:
        """One seed; RUNNING when it was interrupted."""
        config = {"seed": seed, "trace_lines": lines, **self._config}
        state = int(_C.pccl_sim_begin(sim, _ffi.new("struct pccl_sim_config *", config)))
        seen = int(_C.pccl_sim_count(sim, 0))  # events of all runs of this simulator
        while state == _C.PCCL_SIM_RUNNING and not self._stop.is_set():
            state = int(_C.pccl_sim_go(sim, EVENTS_PER_CALL))
            before, seen = seen, int(_C.pccl_sim_count(sim, 0))
            with self._lock:
                self.events += seen - before
        return state


def default_jobs() -> int:
    """Seeds at a time: one per processor that this process may use."""
    return len(os.sched_getaffinity(0))


# ---- the command ----


def read_faults(text: str) -> int:
    """Bits of what may go wrong, from names: crash,stall; or all."""
    names = list(FAULTS) if text == "all" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no fault: choose from {', '.join(FAULTS)}, or write all")
    return sum(FAULTS[name] for name in set(names))


@click.command("sim", short_help="Simulate the protocol under faults.")
@click.option("--seed", type=click.IntRange(0, 2**63), default=1, show_default=True, help="the first seed")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="number of seeds, counting up from --seed")
@click.option(
    "--peers",
    type=click.IntRange(2, 1000),
    help="peers at a time; the programs of more than 16 only vote  [default: 2 to 8, chosen by the seed]",
)
@click.option("--masters", type=click.IntRange(1, 3), help="the first master and its standbys  [default: chosen by the seed]")
@click.option(
    "--minutes",
    type=Range(0.001, 10000),
    help="simulated minutes with faults per seed  [default: 0.005 to 0.02, chosen by the seed]",
)
@click.option(
    "--faults",
    type=read_faults,
    metavar="NAMES",
    help=f"comma-separated, from {', '.join(FAULTS)}; or all  [default: chosen by the seed]",
)
@click.option("--trace", is_flag=True, help="print every message with sender, receiver and time")
@click.option(
    "--lines", type=click.IntRange(1, 100000), default=60, show_default=True, help="lines of trace to print of a failing seed"
)
@click.option("--jobs", type=click.IntRange(1, 256), default=default_jobs, help="seeds at a time  [default: the processors]")
@click.option("--failures", type=click.IntRange(1), default=3, show_default=True, help="stop after so many failing seeds")
def command(seed: int, seeds: int, minutes: float | None, trace: bool, jobs: int, **given: Any) -> None:
    """Run the protocol in virtual time against faults drawn from a seed, and check it after every event.

    The same seed and options give the same run.

    Exit status: 0 all seeds pass, 1 a seed fails, 2 could not run, 130 Ctrl-C.
    """
    if trace and seeds > 1:
        raise click.UsageError("--trace is for one seed")
    began = time.monotonic()
    numbers = {name: number or 0 for name, number in given.items()}
    numbers |= {"fault_ms": round((minutes or 0) * 60000), "trace_fd": 1 if trace else -1}
    jobs = min(jobs, seeds)
    interrupted = False
    with Runner(range(seed, seed + seeds), jobs=jobs, **numbers) as runner:
        try:
            _watch(runner, seeds)
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - began
    for report in runner.reports:
        click.echo(report)
    if runner.refused:
        click.echo("the system refused memory for a simulator", err=True)
    click.echo(", ".join(f"{count} {name}" for name, count in runner.counts.items() if count), err=trace)
    failed = f"{len(runner.reports)} failed" if runner.reports else "all passed"
    click.echo(
        f"{'interrupted after ' if interrupted else ''}{runner.done} seeds from {seed} in {seconds:.1f} s "
        f"({runner.done / max(seconds, 0.001):.0f} a second, {jobs} at a time): {failed}",
        err=trace,
    )
    sys.exit(INTERRUPTED if interrupted else 2 if runner.refused else 1 if runner.reports else 0)


def _watch(runner: Runner, seeds: int) -> None:
    """Tells how far it is until it is over."""
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    told = 0.0  # when the next line is due where nobody watches
    with console.status("simulating") as status:
        while not runner.wait(0.1):
            seconds = max(time.monotonic() - began, 0.001)
            line = (
                f"{runner.done} of {seeds} seeds, {runner.done / seconds:.0f} a second, "
                f"{runner.events / 1e6:.1f} million events, {len(runner.reports)} failed"
            )
            status.update(line)
            if not console.is_terminal and seconds >= told:
                click.echo(line, err=True)
                told += 10
