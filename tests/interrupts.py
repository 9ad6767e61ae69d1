"""Signals that interrupt a call, like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator


class InterruptError(BaseException):
    """What the handler raises. Unlike KeyboardInterrupt it ends only the test, if it comes where nobody expects it."""


def _raise(*_: object) -> None:
    raise InterruptError


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """In it the main thread may `interrupt`."""
    previous = signal.signal(signal.SIGALRM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, previous)


def interrupt(call: Callable[[], object], seconds: float) -> bool:
    """Makes a call, and raises an error in it after some time. Whether that came before the call had returned.

    A signal cannot be called back once another thread of the process has taken it, so one that comes late is awaited.
    """
    returned = False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()
        returned = True
        while True:
            time.sleep(1)
    except InterruptError:
        return not returned
