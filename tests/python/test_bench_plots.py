"""Plots of stress runs: names stand beside the ends of lines, apart from each other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize("ends", [[1.3] * 8, [1.2, 1.2, 3.4, 3.4], [1.3], [3.5, 3.5, 3.5]])
def test_names_at_the_ends_do_not_overlap(monkeypatch, ends):
    monkeypatch.syspath_prepend(str(BENCH))
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
