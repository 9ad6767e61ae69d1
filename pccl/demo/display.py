"""How a run is shown: a live table on a terminal, plain lines elsewhere; and at its end the loss of every step, as a picture."""

from __future__ import annotations

import time
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pccl.demo.run import Peer, Run
from pccl.lab import display, plots
from pccl.lab.display import size_text

PLAIN_LINES = 20  # per run

HASH_DIGITS = 12  # of 32, where there is little room

SMOOTH = 10
"""Steps to either side, over which the picture takes a mean."""

_COLOURS = {"training": "green", "finished": "green", "killed": "red", "failed": "red"}


class LiveDisplay(display.LiveDisplay):
    """A table that is redrawn in place, with the news above it."""

    def __init__(self, console: Console, run: Run) -> None:
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("steps", total=run.options.steps)
        super().__init__(console, lambda: self._render(run))

    def update(self, run: Run) -> None:
        """Only the progress bar needs to be told; the table is drawn from the run a few times a second."""
        self._progress.update(self._task, completed=max(peer.step for peer in run.peers))

    def _render(self, run: Run) -> Group:
        table = Table(expand=True)
        table.add_column("peer")
        table.add_column("state")
        for heading in ("step", "loss", "world", "tokens/s", "sent", "received"):
            table.add_column(heading, justify="right")
        table.add_column("state (hash @ step)")
        for peer in run.peers:
            table.add_row(*self._row(peer), style="dim" if peer.status == "killed" else "")
        return Group(table, self._progress)

    @staticmethod
    def _row(peer: Peer) -> list[str | Text]:
        return [
            str(peer.index),
            Text(peer.status, style=_COLOURS.get(peer.status, "yellow")),
            str(peer.step),
            "" if peer.loss is None else f"{peer.loss:.3f}",
            "" if peer.world is None else str(peer.world),
            f"{peer.tokens_per_second:,.0f}",
            size_text(peer.tx_bytes),
            size_text(peer.rx_bytes),
            _state_text(peer),
        ]


def _state_text(peer: Peer) -> str:
    return "" if peer.digest is None else f"{peer.digest[:HASH_DIGITS]} @ {peer.digest_step}"


class PlainDisplay(display.PlainDisplay):
    """Some twenty lines for the whole run, for pipes and log files."""

    def __init__(self, console: Console, run: Run) -> None:
        super().__init__(console)
        self._every = max(1, run.options.steps // PLAIN_LINES)
        self._next = self._every
        self._began = time.monotonic()

    def update(self, run: Run) -> None:
        """Print a line once every living peer has made the next round number of steps."""
        living = [peer for peer in run.peers if peer.status in ("training", "halted", "finished")]
        if not living or min(peer.step for peer in living) < self._next:
            return
        self._next += self._every
        losses = " ".join(f"{peer.loss:.3f}" for peer in living if peer.loss is not None)
        rate = sum(peer.tokens_per_second for peer in living)
        sent = size_text(sum(peer.tx_bytes for peer in run.peers))
        first = living[0]
        state = "" if first.digest is None else f"  state {_state_text(first)}"
        self.say(f"step {first.step:4}  world {first.world}  loss {losses}  {rate:6,.0f} tokens/s  {sent} sent{state}")

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        super().say(f"[{time.monotonic() - self._began:6.1f} s] {text}")


# ---- the picture ----


def plot(run: Run, path: Path) -> None:
    """Write a PNG, whose description says in words what is marked."""
    marks = "; ".join(text.replace("\n", ", ") for _, text, _ in _marks(run))
    draw(run).savefig(path, metadata={"Title": "Training with pccl", "Description": marks})


def draw(run: Run) -> Figure:
    """The picture."""
    figure = plots.figure(9, 5)
    axes = figure.add_subplot()
    curve = run.curve()
    steps = [step for step, _ in curve]
    losses = [loss for _, loss in curve]
    axes.plot(steps, losses, color="tab:blue", alpha=0.35, linewidth=0.8, label="each step (mean over peers)")
    axes.plot(steps, _smooth(losses), color="tab:blue", linewidth=1.8, label=f"mean over {SMOOTH} steps to either side")
    ended = next((peer.finished for peer in run.peers if peer.finished is not None), None)
    if ended is not None:
        axes.plot(ended.step, ended.validation, "D", color="tab:green", label=f"held-out text: {ended.validation:.3f}")
    for row, (step, text, colour) in enumerate(_marks(run)):
        _mark(axes, step, text, colour, 0.97 - 0.15 * row)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.set_title(f"Character transformer, {run.parameters:,} parameters, {run.options.peers} peers averaged by pccl")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    return figure


def _marks(run: Run) -> list[tuple[int, str, str]]:
    """What happened: step, text, colour."""
    options, join, marks = run.options, run.join, []
    there = options.peers
    if run.kill is not None:
        marks.append(
            (
                run.kill.step,
                f"peer {options.kill_peer} killed in step {run.kill.step}\n{there} peers, then {there - 1}",
                "tab:red",
            )
        )
        there -= 1
    if join.joined is not None:
        step, world = join.joined.step + 1, join.joined.world
        text = f"peer {options.newcomer} joined in step {step}\nwith {size_text(join.joined.rx_bytes)} of state\n"
        text += f"{there} peers, then {world}"
        marks.append((step, text, "tab:green"))
    elif join.killed is not None and join.admitted:
        step = next(iter(join.admitted.values())).step + 1
        marks.append((step, f"peer {join.killed} killed while it joined in step {step}", "tab:red"))
    return marks


def _mark(axes: Axes, step: int, text: str, colour: str, height: float) -> None:
    axes.axvline(step, color=colour, linestyle="--", linewidth=1.2)
    right = step < axes.get_xlim()[1] * 0.65  # room for the text
    axes.annotate(
        text,
        xy=(step, height),
        xycoords=("data", "axes fraction"),
        xytext=(8 if right else -8, 0),
        textcoords="offset points",
        color=colour,
        horizontalalignment="left" if right else "right",
        verticalalignment="top",
    )


def _smooth(values: list[float]) -> list[float]:
    windows = (values[max(0, middle - SMOOTH) : middle + SMOOTH + 1] for middle in range(len(values)))
    return [sum(window) / len(window) for window in windows]
