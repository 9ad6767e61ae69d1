"""OpenTelemetry spans of operations, calls and steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from peers import Background, address_of, form

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pccl import Communicator, MasterNode
from pccl._spans import SWITCHES, is_wanted


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
