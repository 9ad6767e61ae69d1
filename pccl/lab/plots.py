"""The style of all pictures: sizes and colours.

Figures are as wide as the text of a page, so that their letters have the size of the text. They are opaque, and so can be read on
dark pages, too. They need no display, and touch no global state of matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH_INCHES = 7.2
DOTS_PER_INCH = 200
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY = COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
)  # fmt: skip
"""Told apart by the colour-blind (Okabe and Ito, 2008), the grey in place of their yellow, which is hard to see on white."""


def figure(height: float) -> Figure:
    """An empty picture; `height` in inches."""
    made = Figure(figsize=(WIDTH_INCHES, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(made)
    return made


def dress(*axes: Axes) -> None:
    """Leaves the frame out where nothing is read from it, and adds a faint grid."""
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.3)
        one.set_axisbelow(True)


def save(made: Figure, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a picture, and makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=DOTS_PER_INCH, metadata=metadata)
