"""OpenTelemetry spans of operations, calls and steps."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from peers import ENVIRONMENT, PATIENCE, Background, address_of, form, until

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pccl import Communicator, MasterNode
from pccl._watch import recording
from pccl._watch.spans import SWITCHES, is_wanted


def test_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    with (
        MasterNode("127.0.0.1:0") as master,
        Communicator(address_of(master), name="traced", events=tmp_path / "traced", spans=True) as comm,
        Communicator(address_of(master), spans=False) as other,
    ):
        joined = Background(other.connect)
        comm.connect()
        form(comm, 2)
        joined.result()
        for step in (1, 2):
            reduced = Background(other.all_reduce, np.ones(8, np.float32))
            comm.all_reduce(np.ones(8, np.float32))
            reduced.result()
            comm.report(step=step, loss=0.5)
    spans = exporter.get_finished_spans()
    operations = [span for span in spans if span.name == "pccl.all_reduce"]
    assert len(operations) == 2  # of the one communicator alone, each once
    first = operations[0]
    assert first.attributes is not None
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.start_time <= first.end_time
    assert {name: first.attributes[f"pccl.{name}"] for name in ("sequence", "count", "dtype", "op", "bytes", "member")} == {
        "sequence": 1,
        "count": 8,
        "dtype": "float",
        "op": "sum",
        "bytes": 32,
        "member": "traced",
    }
    (step_span,) = [span for span in spans if span.name == "pccl.step"]  # from the first report to the second
    assert step_span.attributes is not None
    assert step_span.attributes["pccl.step"] == 2.0
    names = {span.name for span in spans}
    assert {"pccl.connect", "pccl.joined", "pccl.epoch"} <= names


def test_spans_without_events_are_a_warning():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master), events="off", spans=True) as comm:
        with pytest.warns(RuntimeWarning, match="PCCL_EVENTS or events= is off") as caught:
            comm.connect()
        assert caught[0].filename == __file__


class Calling(SpanProcessor):
    """Calls a function for each span that has ended."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def on_end(self, span: ReadableSpan) -> None:
        self._function()


def give_spans_to(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> InMemorySpanExporter:
    """Makes spans go to a processor that calls `function`, and then to the exporter that is returned."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(Calling(function))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_a_span_processor_that_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """The peer is closed, and the spans that follow are made."""
    calls: list[None] = []

    def fail() -> None:
        calls.append(None)
        if len(calls) <= 2:
            raise OSError("disk full")

    exporter = give_spans_to(monkeypatch, fail)
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(address_of(master), spans=True)
        comm.connect()
        comm.report(step=1)
        comm.report(step=2)
        with caplog.at_level(logging.WARNING, "pccl"):
            comm.close()
        assert comm._handle._destroyed
    assert len(exporter.get_finished_spans()) == len(calls) - 2 > 0
    assert [record.getMessage() for record in caplog.records if record.message.startswith("spans")] == [
        "spans: a span could not be made: OSError: disk full"
    ]


def test_a_span_processor_that_blocks(monkeypatch: pytest.MonkeyPatch):
    """The peer leaves the run, and the spans are made when the processor goes on."""
    monkeypatch.setattr("pccl._watch.spans.JOIN_SECONDS", 0.05)
    goes_on = threading.Event()
    exporter = give_spans_to(monkeypatch, goes_on.wait)
    with MasterNode("127.0.0.1:0") as master:
        comm = Communicator(address_of(master), spans=True)
        comm.connect()
        try:
            Background(comm.close).result(10)
            assert comm._handle._destroyed
            assert not exporter.get_finished_spans()
        finally:
            goes_on.set()
        until(lambda: "pccl.connect" in {span.name for span in exporter.get_finished_spans()})


def test_a_communicator_that_is_collected_in_the_thread_of_its_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pccl._watch.spans.PAUSE_SECONDS", 0.01)
    exporter = give_spans_to(monkeypatch, lambda: None)
    kept: list[Communicator] = []
    take = recording.take

    def drop_and_take(path: str) -> recording.Taken:
        if threading.current_thread().name == "pccl:spans":
            kept.clear()
        return take(path)

    with MasterNode("127.0.0.1:0") as master:
        kept.append(Communicator(address_of(master), spans=True))
        kept[0].connect()
        native = kept[0]._handle
        monkeypatch.setattr(recording, "take", drop_and_take)
        until(lambda: native._destroyed)
        until(lambda: "pccl.connect" in {span.name for span in exporter.get_finished_spans()})


IN_A_LOOK = """
import os, signal, sys, threading, types
import pccl
from pccl._watch import recording as _recording
from pccl._watch import spans as _spans

def stay(path):
    looks.set()
    threading.Event().wait()

looks = threading.Event()
_spans.PAUSE_SECONDS = 0.01
with pccl.MasterNode("127.0.0.1:0") as master:
    comm = pccl.Communicator(f"127.0.0.1:{master.port}", spans=True)
    comm.connect()
    # With globals of its own: its frame, which stays to the end, would keep those of this module, and with them the communicator.
    stays = types.FunctionType(stay.__code__, {"looks": looks, "threading": threading})
    take, _recording.take = _recording.take, stays
    looks.wait()
    if sys.argv[1] == "fork":
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            _recording.take = take
            comm.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "close() hangs in the child"
"""


@pytest.mark.parametrize("end", ["exit", "fork"])
def test_a_look_that_never_ends(end: str):
    """Since the thread has ended with the interpreter, or is not there after a fork."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", IN_A_LOOK, end], timeout=PATIENCE, check=True, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("asked", "environment", "wanted"),
    [
        (None, {}, False),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
        (True, {"OTEL_SDK_DISABLED": "true"}, False),
        (False, {"OTEL_TRACES_EXPORTER": "otlp"}, False),
        (True, {}, True),
    ],
)
def test_who_asks_for_them(monkeypatch: pytest.MonkeyPatch, asked: bool | None, environment: dict[str, str], wanted: bool):
    for name in (*SWITCHES, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_wanted(asked) is wanted
