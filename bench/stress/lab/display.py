"""How a run is shown: in lines."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from rich.console import Console

Run = TypeVar("Run", contravariant=True)


class Display(Protocol[Run]):
    """Where a run is shown while it goes on."""

    def update(self, run: Run) -> None:
        """Something in the run has changed, or some time has passed."""

    def say(self, text: str) -> None:
        """Print a line of news."""


class PlainDisplay:
    """Lines for pipes and log files."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.out(text, highlight=False)


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def rate_text(rate: float) -> str:
    """Bytes per second for people."""
    return f"{rate / 1e9:.2f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.1f} MB/s"
