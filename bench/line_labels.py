"""Names at the ends of the lines of a picture, in place of a legend."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes


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
