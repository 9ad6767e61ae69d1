"""The end of a run by the user."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


class InterruptedRunError(Exception):
    """A signal wants the run to end."""


class Interruption:
    """The signals that end a program cancel what runs, and only that: so that it can put everything away."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._task: asyncio.Task[None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Signals that the parent ignored (nohup, a background job) stay ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._note, number)

    def _note(self, number: signal.Signals) -> None:
        self.number = number
        if self._task is not None:
            self._task.cancel()

    async def guard(self, body: Coroutine[Any, Any, None]) -> None:
        """Runs it to its end, or InterruptedRunError."""
        self._task = asyncio.ensure_future(body)
        try:
            await self._task
        except asyncio.CancelledError:
            if self.number is None:
                raise
        if self.number is not None:
            raise InterruptedRunError(f"ended by {self.number.name}")
