"""Pictures of a run. They need no display, and touch no global state of matplotlib."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def figure(width: float, height: float) -> Figure:
    """An empty picture, in inches."""
    made = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    return made


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
"""Told apart by the colour-blind (Okabe and Ito, 2008), the grey in place of their yellow, which is hard to see on white."""


def label_ends(axes: Axes, ends: list[tuple[float, float, str, str]], least: float = 0.045) -> None:
    """Writes names beside the ends of lines (x, y, name, colour) in place of a legend, `least` of the height apart."""
    low, high = axes.get_ylim()
    at = [(y - low) / (high - low) for _, y, _, _ in ends]
    order = sorted(range(len(ends)), key=at.__getitem__)
    for before, place in pairwise(order):
        at[place] = max(at[place], at[before] + least)
    over = max(at, default=0.0) - 1
    if over > 0:  # from above, those that are too near go down
        at[order[-1]] -= over
        for place, before in pairwise(reversed(order)):
            at[before] = min(at[before], at[place] - least)
    for (x, y, name, colour), height in zip(ends, at, strict=True):
        axes.annotate(
            name,
            xy=(x, y),
            xytext=(1.04, height),
            textcoords="axes fraction",
            color=colour,
            fontsize="small",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)},
            annotation_clip=False,
        )
