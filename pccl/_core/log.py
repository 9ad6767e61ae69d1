"""Hands the log lines of the C core to `logging`, once the program has configured it.

The core's threads never enter Python: they put lines into a bounded queue, and a daemon thread here empties it. A slow or
stuck handler costs log lines, which are counted, and never delays the core.

Without a handler of the root logger, of "pccl" or of one of its children, lines go to standard error, as in a C program.
Loggers are `pccl.master`, `pccl.peer` and `pccl.config`. NOTICE is level 25 and TRACE is 5; FATAL is CRITICAL.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from pccl._core.library import _C, _ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any

TRACE, NOTICE = 5, 25
LEVELS = (TRACE, 10, 20, NOTICE, 30, 40, 50)
"""The level of `logging` for each level of the core."""

COMPONENTS = ("pccl", "pccl.master", "pccl.peer", "pccl.config")

_PATIENCE = 1.0
"""Seconds that an exit waits for a line that is on its way through filters and handlers."""

_lock = threading.Lock()
_delivering = threading.Lock()
_process = 0
"""The process whose lines are queued; 0: none's."""


def attach() -> None:
    """Sends the core's lines to `logging` from now on if that has a handler for them. Call it before the core does something."""
    global _process
    if _process == os.getpid() or "logging" not in sys.modules:  # which nobody has configured
        return
    import logging

    if not any(_has_handler(logging.getLogger(name)) for name in COMPONENTS):
        return
    import atexit

    with _lock:
        if _process != 0:  # in a forked child the core writes to standard error
            return
        event = _C.pccl_ext_log_begin()
        if event < 0:
            return
        _process = os.getpid()
    for level, name in ((TRACE, "TRACE"), (NOTICE, "NOTICE")):
        if logging.getLevelName(level) == f"Level {level}":
            logging.addLevelName(level, name)
    try:
        threading.Thread(target=_forward, args=(event,), name="pccl:log", daemon=True).start()
    except RuntimeError:  # the system refuses the thread; the next call tries again
        _detach()
        _process = 0
        return
    _C.pccl_ext_log_prefer(_level_of_core(logging.getLogger("pccl").getEffectiveLevel()))
    atexit.register(_detach)


def _has_handler(logger: logging.Logger | None) -> bool:
    """Whether a line would go anywhere. The NullHandler that a library adds writes nothing."""
    import logging

    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _level_of_core(level: int) -> int:
    """Returns the least level of the core that a logger with this level takes."""
    return next((number for number, mapped in enumerate(LEVELS) if mapped >= level), len(LEVELS))


def _forward(event: int) -> None:
    import select

    poll = select.poll()
    poll.register(event, select.POLLIN)
    while True:
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            os.read(event, 8)
        with _delivering:
            _drain()


def _detach() -> None:
    if _process == os.getpid():
        _C.pccl_ext_log_end()
        waited = _delivering.acquire(timeout=_PATIENCE)  # the thread ends with the process, and so would its line
        _drain()
        if waited:
            _delivering.release()


def _drain() -> None:
    line = _ffi.new("struct pccl_log_line *")
    while _C.pccl_ext_log_take(line):
        with contextlib.suppress(Exception):  # of a filter of the program; the lines that follow have to go out
            _deliver(line)


def _deliver(line: Any) -> None:
    import logging

    component = _ffi.string(line.component).decode("utf-8", "replace")
    logger = logging.getLogger(f"pccl.{component}")
    if not _has_handler(logger):
        _C.pccl_ext_log_write(line)
        return
    if line.dropped > 0:
        logger.warning("dropped %d log lines: logging did not take them in time", line.dropped)
    level = LEVELS[line.level]
    if not logger.isEnabledFor(level):
        return
    text = _ffi.string(line.text).decode("utf-8", "replace")
    record = logger.makeRecord(logger.name, level, "pccl", 0, text, (), None)
    record.created = line.time_ns / 1e9
    record.msecs = line.time_ns // 1_000_000 % 1000
    logger.handle(record)
