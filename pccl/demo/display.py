"""How a run is shown: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pccl.demo.run import Peer, Run, size_text

PLAIN_LINES = 20  # per run

HASH_DIGITS = 12  # of 32, where there is little room

_COLOURS = {"training": "green", "finished": "green", "killed": "red", "failed": "red"}


class LiveDisplay:
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
        self._live = Live(console=console, refresh_per_second=4, get_renderable=lambda: self._render(run))

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Draw once more, and give the terminal back."""
        self._live.stop()

    def update(self, run: Run) -> None:
        """Only the progress bar needs to be told; the table is drawn from the run a few times a second."""
        self._progress.update(self._task, completed=max(peer.step for peer in run.peers))

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(Text(text))

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


class PlainDisplay:
    """Some twenty lines for the whole run, for pipes and log files."""

    def __init__(self, console: Console, run: Run) -> None:
        self._console = console
        self._every = max(1, run.options.steps // PLAIN_LINES)
        self._next = self._every
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Nothing to begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to end."""

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
        self._console.out(f"[{time.monotonic() - self._began:6.1f} s] {text}", highlight=False)
