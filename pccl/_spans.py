"""OpenTelemetry spans of a communicator's operations, calls and steps, made from its flight recorder (docs/events.md#traces).

A thread reads the recorder once a second and at the end, and gives the spans the times that stand there. So an operation pays
nothing for it, and a span of one that has not ended is made when it has.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import Any

from pccl import _recording
from pccl._recording import Event, RecordingError

PAUSE_SECONDS = 1.0
"""Between two looks at the recorder, which keeps 1,792 operations: those of 500 a second for three looks."""

JOIN_SECONDS = 5.0
"""For the look at hand."""

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
        self._one = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pccl:spans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Makes the spans of what has ended by now. The communicator must not be closed yet, as that removes the recorder."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join(JOIN_SECONDS)  # it may have ended with the interpreter
            self.look()

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_SECONDS):
            self.look()

    def look(self) -> None:
        with self._one:
            try:
                recording = _recording.read(self._path)
            except RecordingError:  # it was removed, or there was no memory for it
                return
            before, self._told = self._told, {}
            for event in recording.events:
                key = _key(event)
                self._told[key] = None
                if key not in before:
                    self._tell(event, recording.name)

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
