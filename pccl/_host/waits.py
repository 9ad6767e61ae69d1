"""What waits tell, and what the environment says of them."""

from __future__ import annotations

import contextlib
import os
import stat
import time

FIRST_SECONDS = 10.0
"""After which a wait is logged for the first time."""

AGAIN_SECONDS = 60.0

JOIN_VARIABLE = "PCCL_JOIN"
LEFT_STATUS_VARIABLE = "PCCL_LEFT_STATUS"
LEFT_STATUS = 75
"""With which a process that has left ends under a launcher of pccl: EX_TEMPFAIL, which asks for another try."""

PIPE_VARIABLE = "PCCL_SUPERVISOR_PIPE"
LEFT = "left"
"""What a program tells its supervisor when it has left: others may end with status 75, too."""

NOT_JOINED = "not joined"
"""What a program tells its supervisor when it may only join a run, and could not."""

IN_RUN = "in the run"
"""What a program tells its supervisor when it may only join a run, and has connected to it."""

PATIENCE_VARIABLE = "PCCL_CONNECT_TIMEOUT_S"


_pipe = ""


class WaitLog:
    """Logs a wait of one call after 10 s, and then once a minute."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._began = time.monotonic()
        self._next = self._began + FIRST_SECONDS

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def tell(self, text: str) -> None:
        """Logs what the call waits for, if it is time to; to be called again and again while it waits."""
        if self.is_due():
            now = time.monotonic()
            self._next = now + AGAIN_SECONDS
            import logging

            logging.getLogger("pccl").warning("%s: has waited for %.0f s: %s", self._call, now - self._began, text)


def left_status() -> int:
    """The status of a program that has left its run: what the launcher has set, else 0."""
    text = os.environ.get(LEFT_STATUS_VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def tell_supervisor(word: str) -> None:
    """Tells the supervisor of this process a word or a path, if there is one. Never blocks."""
    global _pipe
    _pipe = os.environ.pop(PIPE_VARIABLE, "") or _pipe  # programs that this one starts do not have the pipe
    if _pipe:
        with contextlib.suppress(OSError, ValueError):  # the supervisor has ended, or is stopped and the pipe is full
            if stat.S_ISFIFO(os.fstat(int(_pipe)).st_mode):
                os.set_blocking(int(_pipe), False)
                os.write(int(_pipe), f"{word}\n".encode())


def may_begin(begin: bool | None) -> bool:
    """Whether a peer may begin a run: as the program says, else unless PCCL_JOIN=1."""
    return os.environ.get(JOIN_VARIABLE, "") in ("", "0") if begin is None else begin


def master_patience(given: float | None) -> float | None:
    """For how many seconds a peer tries to reach a master: as given, else PCCL_CONNECT_TIMEOUT_S. None: neither, or 0.

    ValueError: not a number of seconds.
    """
    name, value = ("wait_for_master", given) if given is not None else (PATIENCE_VARIABLE, os.environ.get(PATIENCE_VARIABLE) or 0)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of seconds, not {value!r}") from None
    if not seconds >= 0:
        raise ValueError(f"{name} must be a non-negative number of seconds, not {value!r}")
    return seconds or None
