"""What processes of a stress run tell, as lines."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numpy")
pytest.importorskip("click")
pytest.importorskip("rich")


from stress.reports import Accepted, Alone, Ended, Expelled, Flaw, Report, Task, Waiting
from stress_runs import op, step


@pytest.mark.parametrize(
    "report",
    [
        Accepted(at=1.5, world=3, seconds=0.1, life=1),
        step(),
        step(3, [], state="ab", received=7, lost=2, caught_up=True),
        step(4, [op(ranges=[(4, 7, ["a"]), (8, 3, [])])]),
        Alone(at=1.0, line=2, step=3),
        Waiting(at=2.0),
        Expelled(at=1.0, detail="the master was silent\nfor long"),
        Flaw(at=1.0, claim="sum", detail="x"),
        Ended(at=1.0, line=1, step=2, state="ff"),
    ],
)
def test_reports_survive_the_socket(report):
    line = report.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert Report.from_line(line) == report


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"kind":"accepted"}', b'{"kind":"nothing","at":1}', b"x"])
def test_what_is_no_report_is_refused(line):
    with pytest.raises(ValueError, match=r"."):
        Report.from_line(line)


def test_tasks_survive():
    task = Task(serial=1, slot=2, code=3, masters="h:1,h:2", seed=4, elements=5, beat=1.0)
    assert Task.from_fields(json.loads(json.dumps(task.to_fields()))) == task
