"""Plots of benchmarks: names stand beside the ends of lines, apart from each other, and lines begin where they were measured."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def diloco(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import diloco

    return diloco


@pytest.mark.parametrize("ends", [[1.3] * 8, [1.2, 1.2, 3.4, 3.4], [1.3], [3.5, 3.5, 3.5]])
def test_names_at_the_ends_do_not_overlap(diloco, ends):
    from line_labels import label_ends
    from matplotlib.text import Annotation

    from pccl.lab.plots import COLOURS, figure

    axes = figure(4.5).add_subplot()
    for y in ends:
        axes.plot([0, 1], [3.5, y])
    label_ends(axes, [(1, y, f"line {i}", COLOURS[i]) for i, y in enumerate(ends)])
    heights = sorted(text.xyann[1] for text in axes.texts if isinstance(text, Annotation))
    assert len(heights) == len(ends)
    assert all(after - before > 0.049 for before, after in pairwise(heights))
    assert heights[-1] <= 1.001


def test_names_near_the_ends_hide_neither_lines_nor_each_other(diloco):
    from line_labels import label_near

    from pccl.lab.plots import COLOURS, figure

    made = figure(4.5)
    axes = made.add_subplot()
    ends = [(2.0, 1.5), (2.0, 1.5), (2.0, 1.6), (6.0, 1.5)]
    for x, y in ends:
        axes.plot([0, x], [3.5, y])
    axes.margins(0.2)
    label_near(made, axes, [(x, y, f"line {i}", COLOURS[i]) for i, (x, y) in enumerate(ends)])
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(ends)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert not any(line.get_path().transformed(axes.transData).intersects_bbox(box) for line in axes.lines for box in boxes)


@pytest.mark.parametrize("key", ["sent", "seconds"])
def test_a_line_begins_where_it_was_measured(diloco, key, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    rounds = [{"sent": 1e6 * i, "seconds": 2.0 * i, "validation": 3 - i / 4, "members": 3 - (i > 2)} for i in range(6)]
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: drawn.append(self))
    diloco.draw({"async": {"rounds": rounds}, "idle": {"rounds": rounds[:1]}}, key, "label", tmp_path / "plot.png")
    (axes,) = drawn[0].axes
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert lines[0].get_xdata()[0] == (1.0 if key == "sent" else 0.0)
    (mark,) = [line for line in axes.lines if line.get_marker() == "v"]  # a member was lost
    assert list(mark.get_ydata()) == [rounds[3]["validation"]]
    assert "async" in {text.get_text() for text in axes.texts}
    if key == "seconds":
        assert axes.get_ylim()[1] <= 2.2


def test_results_are_read_as_they_were_stored(diloco, tmp_path):
    rounds = [{"step": i, "sent": 1000 * i, "seconds": i / 4, "validation": 3.5 - i / 8, "members": 3} for i in range(1, 5)]
    results = {"data parallel": {"rounds": rounds}, "async [0]": {"rounds": rounds[:1]}}
    diloco.store(results, {"cores": 2}, tmp_path / "diloco.json")
    assert diloco.load(tmp_path / "diloco.json") == results
    assert len((tmp_path / "diloco.json").read_text().splitlines()) < 30
