"""Where the threads of this process stand, for an operator who asks (`pccl stacks`).

A daemon thread for each communicator waits in C until the master asks, and answers at most once a second. It asks for no lock of
the program, and reads no file.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pccl._core.calls import ClosedError, NativeHandle
from pccl._core.library import _C

BYTES_MOST = 16 * 1024
"""As WIRE_MAX_STACKS."""

FRAMES_MOST = 64
"""Of a thread, the innermost."""

PAUSE_SECONDS = 1.0
"""After an answer. Who asks meanwhile gets the next one."""

JOIN_SECONDS = 5.0
"""For an answer at hand. Later the thread would find its handle closed."""


def stacks() -> bytes:
    """Each thread's name and calls, the innermost first; the main thread first, without the calling one; cut to BYTES_MOST."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda one: one[0] != main)
    parts = [_stack(names.get(ident, "unknown"), frame) for ident, frame in frames if ident != threading.get_ident()]
    text = "\n".join(parts).encode("utf-8", "replace")
    return text if len(text) <= BYTES_MOST else text[: BYTES_MOST - 4] + b"...\n"


def _stack(name: str, frame: FrameType | None) -> str:
    lines = [f"thread {name!r}, innermost call first:\n"]
    while frame is not None and len(lines) <= FRAMES_MOST:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_qualname}\n')
        frame = frame.f_back
    return "".join(lines)


class Watch:
    """A thread for one communicator, from `start` to `join`, which waits at most `seconds` for its end."""

    def __init__(self, does: Callable[..., object], name: str, seconds: float) -> None:
        self._does, self._name, self._seconds = does, name, seconds
        self._thread: threading.Thread | None = None
        # Not an Event, whose lock a finished thread may leave taken, and which the garbage collector may find taken.
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self, *arguments: object) -> None:
        """Begins, unless it has: calls what it does, with the arguments and the queue of which the first item ends it."""
        if self._thread is None or self._thread.ident is None:  # or the system has refused the thread
            self._thread = threading.Thread(target=self._does, args=(*arguments, self._ends), name=self._name, daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Ends it. The communicator has been stopped, and is not freed yet."""
        self._ends.put(None)
        thread = self._thread
        # A thread that is not alive yet finds the end before it waits in C.
        if thread is not None and thread.is_alive() and thread is not threading.current_thread() and not sys.is_finalizing():
            thread.join(self._seconds)


def answer(handle: NativeHandle, ends: queue.SimpleQueue[None]) -> None:
    """Answers for one communicator."""
    # C sends the thread out of this wait when the communicator is stopped. It is no user of the handle, for which `close` waits:
    # whoever stops joins it before the communicator is freed.
    while ends.empty() and _C.pccl_ext_comm_await_stacks(handle.pointer):
        text: Any = stacks()
        with contextlib.suppress(ClosedError), handle as pointer:
            _C.pccl_ext_comm_tell_stacks(pointer, text, len(text))
        with contextlib.suppress(queue.Empty):
            ends.get(timeout=PAUSE_SECONDS)
            return
