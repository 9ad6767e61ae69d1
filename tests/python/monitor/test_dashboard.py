"""The Grafana dashboard of the examples asks for metrics that there are, and shows all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_history import member, straggler, told

from pccl.monitor.history import Recorder
from pccl.monitor.metrics import Metrics

DASHBOARD = Path(__file__).resolve().parents[3] / "examples" / "grafana" / "pccl.json"


def exported() -> dict[str, set[str]]:
    """The labels of each metric, by the name that queries use."""
    metrics, recorder = Metrics(), Recorder()
    answer = told(member(1, report={"loss": 1.0}), member(2), findings=(straggler(member(2)),))
    metrics.observe(answer, recorder.observe(1.0, answer))
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def expressions(part: Any) -> Iterator[tuple[str, str]]:
    """Each query, and the legend of its lines."""
    if isinstance(part, dict):
        for key in ("expr", "query"):
            if isinstance(part.get(key), str) and "pccl_" in part[key]:
                yield part[key], part.get("legendFormat", "")
        for one in part.values():
            yield from expressions(one)
    elif isinstance(part, list):
        for one in part:
            yield from expressions(one)


def test_every_query_names_a_metric_and_labels_that_it_has():
    found, asked = exported(), set()
    for query, legend in expressions(json.loads(DASHBOARD.read_text())):
        (name,) = re.findall(r"\bpccl_\w+", query)
        assert name in found, query
        assert set(re.findall(r"{{(\w+)}}", legend)) <= found[name], legend
        asked.add(name)
    assert found.keys() - asked == {"pccl_info"}


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
