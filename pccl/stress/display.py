"""How a run is shown: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pccl.lab import display
from pccl.lab.display import rate_text
from pccl.stress.conductor import Process, Run

PLAIN_SECONDS = 5.0
"""Between two lines where there is no terminal."""
RECENT_SECONDS = 2.0
"""Over which the shown rates are taken."""
SPARK_WIDTH = 60
_SPARKS = " ▁▂▃▄▅▆▇█"

_COLOURS = {"member": "green", "ended": "green", "killed": "red", "failed": "bold red", "expelled": "red", "stopped": "red"}


def recent_rate(run: Run) -> float:
    """Bytes per second of the last moments."""
    moments = [moment for moment in run.moments[-50:] if moment.at > run.lasted - RECENT_SECONDS]
    return sum(moment.bytes for moment in moments) / RECENT_SECONDS


def faults_text(run: Run) -> str:
    """How many of each kind have been applied."""
    kinds = [(kind, run.counts[kind]) for kind in ("kill", "stop", "cut", "delay", "join", "master", "missed")]
    return ", ".join(f"{count} {kind}" for kind, count in kinds if count) or "none yet"


class LiveDisplay(display.LiveDisplay):
    """A table that is redrawn in place, with the news above it."""

    def __init__(self, console: Console, run: Run, title: str) -> None:
        super().__init__(console, lambda: self._render(run))
        self._title = title

    def update(self, run: Run) -> None:
        """Nothing: the table is drawn from the run a few times a second."""

    def _render(self, run: Run) -> Group:
        table = Table(expand=True, title=self._title)
        table.add_column("peer", justify="right")
        table.add_column("pid", justify="right")
        table.add_column("state", no_wrap=True)
        for heading in ("world", "step", "in", "losses", "lives", "MiB", "fds", "age"):
            table.add_column(heading, justify="right", no_wrap=True)
        now = time.monotonic()
        for process in sorted(run.processes.values(), key=lambda process: (process.slot, process.serial)):
            table.add_row(*self._row(process, now))
        masters = ", ".join(f"{one.address} {'is up' if one.child is not None else 'was killed'}" for one in run.masters)
        lines = f"masters  {masters}\nfaults   {faults_text(run)}"
        return Group(table, self._rates(run), Text(lines), self._verdict(run))

    @staticmethod
    def _row(process: Process, now: float) -> list[str | Text]:
        usage = process.usages[-1] if process.usages else None
        return [
            str(process.slot),
            str(process.child.pid),
            Text(process.status, style=_COLOURS.get(process.status, "yellow")),
            str(process.world or ""),
            str(process.step) if process.step >= 0 else "",
            process.place.call if process.place else "",
            str(process.lost),
            str(process.life + 1),
            f"{usage.bytes / (1 << 20):.0f}" if usage else "",
            str(process.descriptors or ""),
            f"{now - process.began:.0f}s",
        ]

    @staticmethod
    def _rates(run: Run) -> Text:
        share = max(1, len(run.moments) // SPARK_WIDTH + 1)
        groups = [run.moments[at : at + share] for at in range(0, len(run.moments), share)]
        values = [sum(moment.bytes for moment in group) / len(group) for group in groups]
        most = max(values, default=0) or 1
        line = "".join(_SPARKS[round(value / most * (len(_SPARKS) - 1))] for value in values)
        return Text(
            f"goodput  {rate_text(recent_rate(run))} now, {rate_text(run.goodput())} in the mean  {line}\n"
            f"time     {run.lasted:.0f} of {run.options.seconds:.0f} s, "
            f"{run.counts['ops']:,} ops in {run.counts['steps']:,} steps"
        )

    @staticmethod
    def _verdict(run: Run) -> Text:
        found = len(run.violations)
        return Text(f"verdict  {found} violations", style="bold red") if found else Text("verdict  nothing found", style="green")


class PlainDisplay(display.PlainDisplay):
    """A line every few seconds, for pipes and log files."""

    def __init__(self, console: Console, run: Run, title: str) -> None:
        super().__init__(console)
        self._next = 0.0
        self.say(title)

    def update(self, run: Run) -> None:
        """Prints a line when it is time for one."""
        if not run.epoch or run.lasted < self._next:
            return
        self._next = run.lasted + PLAIN_SECONDS
        members = sum(process.status == "member" for process in run.processes.values())
        self.say(
            f"[{run.lasted:6.1f} s] {members} members, step {run.step}, {run.counts['ops']:,} ops, "
            f"{rate_text(recent_rate(run))}; faults: {faults_text(run)}; {len(run.violations)} violations"
        )
