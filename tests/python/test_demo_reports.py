"""What peers of the demo tell, as lines."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from demo_runs import admitted, joined, task  # noqa: E402

from pccl.demo.run import (  # noqa: E402
    Halted,
    Missed,
    Prepared,
    Recovered,
    Report,
    Task,
)


def test_reports_and_tasks_survive_the_wire() -> None:
    sent = task(halt_in_step=2, newcomer=True)
    assert Task.from_fields(json.loads(json.dumps(sent.to_fields()))) == sent
    reports = [Recovered(step=3, failed=2, buckets=4, world=2, at=1.5), Prepared(), Missed(), joined(), admitted()]
    for report in [*reports, Halted(step=None, place="here")]:
        assert Report.from_line(report.to_line()) == report


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"kind": "stepped"}', '{"kind": "other"}', "noise"])
def test_a_line_that_is_no_report_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Report.from_line(line)
