"""Names at the ends of the lines of a picture, in place of a legend."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.transforms import BboxBase

SAME_END_DOTS = 8.0
"""Lines that end within it end at one point."""


def label_ends(axes: Axes, ends: list[tuple[float, float, str, str]], least: float = 0.05) -> None:
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
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            fontsize="small",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


def label_near(made: Figure, axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Writes names beside the ends of lines that end anywhere (x, y, name, colour), where they hide least and other ends are far.

    Call it last: it lays the picture out.
    """
    made.draw_without_rendering()
    hidden = [pixel for line in axes.lines for pixel in _pixels(axes, line)]
    points = [axes.transData.transform((x, y)) for x, y, _, _ in ends]
    taken: list[BboxBase] = []
    for x, y, name, colour in sorted(ends):
        own = axes.transData.transform((x, y))
        others = [point for point in points if math.dist(own, point) > SAME_END_DOTS]
        text = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", color=colour, fontsize="small", va="center")

        def put(place: tuple[str, int], text: Annotation = text) -> BboxBase:
            side, rows = place
            text.set(ha=side, position=(7 if side == "left" else -7, 11 * rows))
            return text.get_window_extent()

        def cost(place: tuple[str, int], put: Any = put, own: Any = own, others: list[Any] = others) -> tuple[int, int]:
            box = put(place)
            outside = not (axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1))
            nearer = sum(_distance(box, point) <= _distance(box, own) for point in others)
            return box.count_contains(hidden) + 10 * nearer + 100 * box.count_overlaps(taken) + 1000 * outside, abs(place[1])

        taken.append(put(min(((side, rows) for side in ("left", "right") for rows in range(-4, 5)), key=cost)))


def _distance(box: BboxBase, point: Any) -> float:
    x, y = point
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


def _pixels(axes: Axes, line: Line2D) -> list[Any]:
    """Points on a line, near each other."""
    points = axes.transData.transform(line.get_xydata())
    return [*points, *(one + (other - one) * part / 8 for one, other in pairwise(points) for part in range(1, 8))]
