"""OpenTelemetry spans of a communicator's operations, calls and steps, made from its flight recorder (docs/events.md#traces).

A thread reads the recorder once a second, and gives the spans the times that stand there. So an operation pays nothing for it,
and a span of one that has not ended is made when it has. Only this thread calls the program's span processors, which may be slow
or fail: closing waits for it, within bounds.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import sys
import threading
from typing import Any

from pccl._watch import recording as _recording
from pccl._watch.recording import Event, RecordingError, Taken

_log = logging.getLogger("pccl")

PAUSE_SECONDS = 1.0
"""Between two looks at the recorder, which keeps 1,792 operations: those of 500 a second for three looks."""

JOIN_SECONDS = 5.0
"""For the last look, after the peer has left the run."""

SWITCHES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables of OpenTelemetry by which a user asks for traces."""

ATTRIBUTES = ("tag", "sequence", "epoch", "members", "count", "dtype", "op", "bytes", "algorithm", "root")

STEP = "step"
"""The name of the reported number that ends a step: `comm.report(step=step)`."""


def is_wanted(asked: bool | None) -> bool:
    """Whether spans are made. `asked`: the argument; None: as the environment says, if OpenTelemetry is installed.

    ValueError: they are asked for, and opentelemetry-api is not installed.
    """
    if asked is False or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    installed = False
    with contextlib.suppress(ImportError):  # of a part of OpenTelemetry alone, such as opentelemetry-proto
        importlib.import_module("opentelemetry.trace")
        installed = True
    if asked:
        if not installed:
            raise ValueError("spans need OpenTelemetry: pip install opentelemetry-sdk")
        return True
    named = [os.environ.get(name, "") for name in SWITCHES]
    return installed and any(named) and os.environ.get(SWITCHES[0], "").lower() != "none"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class Spans:
    """Makes the spans of one communicator."""

    def __init__(self, path: str) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("pccl")
        self._path = path
        self._told: dict[tuple[Any, ...], None] = {}
        self._step_at: float | None = None
        self._has_failed = False
        self._process = os.getpid()
        self._stopping = False
        self._last: Taken | None = None
        # Not an Event, whose lock a finished thread or a fork may leave taken, and which the garbage collector may find taken.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pccl:spans", daemon=True)
        self._thread.start()

    @property
    def _runs(self) -> bool:
        """Whether the thread can run: not in a forked child, and not once the interpreter is going down."""
        return self._process == os.getpid() and not sys.is_finalizing()

    def stop(self) -> None:
        """Reads the recorder for the last time. Call it before the communicator is closed, which removes the recorder."""
        if not self._runs:
            return
        self._stopping = True  # before the last read, so a look that does not see this has read earlier
        try:
            self._last = self._last or self._take()
        finally:
            self._wakes.put(None)

    def close(self) -> None:
        """Waits until the spans of what had ended at `stop` are made, at most JOIN_SECONDS."""
        if self._runs and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
            if self._thread.is_alive():
                _log.warning("spans: the span processor has not taken all spans within %g s", JOIN_SECONDS)

    def _run(self) -> None:
        while not self._is_woken():
            taken = self._take()
            if not self._stopping:  # else the last one is as new
                self._look(taken)
        self._look(self._last)

    def _is_woken(self) -> bool:
        try:
            self._wakes.get(timeout=PAUSE_SECONDS)
        except queue.Empty:
            return False
        return True

    def _take(self) -> Taken | None:
        """Copies the recorder. None: it was removed, or there was no memory for it."""
        try:
            return _recording.take(self._path)
        except RecordingError:
            return None
        except Exception as error:  # such as MemoryError, which must not keep the peer from leaving
            self._warn(error)
            return None

    def _look(self, taken: Taken | None) -> None:
        """Makes the spans of what the look before has not seen."""
        if taken is None:
            return
        try:
            recording = taken.recording()
            before, self._told = self._told, {}
            for event in recording.events:
                key = _key(event)
                self._told[key] = None
                if key not in before:
                    self._try_to_tell(event, recording.name)
        except RecordingError:
            pass
        except Exception as error:
            self._warn(error)

    def _try_to_tell(self, event: Event, member: str) -> None:
        try:
            self._tell(event, member)
        except Exception as error:  # of a span processor of the program
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Logs the first failure."""
        if not self._has_failed:
            self._has_failed = True
            _log.warning("spans: a span could not be made: %s: %s", type(error).__name__, error)

    def _tell(self, event: Event, member: str) -> None:
        match event["kind"]:
            case "operation" if event["ended"] is not None:
                numbers = {f"pccl.{name}": _attribute(event[name]) for name in ATTRIBUTES if event[name] is not None}
                self._span(event["collective"], event["at"], event["ended"], event["error"], {**numbers, "pccl.member": member})
            case "call" if event["ended"] is not None:
                self._span(event["name"], event["at"], event["ended"], event["error"], {"pccl.member": member})
            case "report" if event["name"] == STEP:
                if self._step_at is not None:
                    facts = {"pccl.step": event["value"] or 0.0, "pccl.member": member}
                    self._span(STEP, self._step_at, event["at"], None, facts)
                self._step_at = event["at"]
            case "joined" | "left" | "epoch" | "master_lost" | "master_found" | "died" | "selection":
                facts = {f"pccl.{name}": value for name, value in event.items() if name not in ("at", "kind") and value != ""}
                self._span(event["kind"], event["at"], event["at"], None, facts)

    def _span(self, name: str, began: float, ended: float, error: str | None, attributes: dict[str, Any]) -> None:
        span = self._tracer.start_span(f"pccl.{name}", start_time=_nanoseconds(began), attributes=attributes)
        if error is not None:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
        span.end(_nanoseconds(ended))


def _attribute(value: int | str) -> int | str:
    """Exporters refuse integers beyond 64 bits with a sign."""
    return str(value) if isinstance(value, int) and value >= 1 << 63 else value


def _key(event: Event) -> tuple[Any, ...]:
    """The same event in two looks; one that has ended meanwhile is another one."""
    return event["at"], event["kind"], event.get("tag"), event.get("name"), event.get("member"), event.get("ended") is None
