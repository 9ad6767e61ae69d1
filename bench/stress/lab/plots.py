"""Pictures of a run. They need no display, and touch no global state of matplotlib."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def figure(width: float, height: float) -> Figure:
    """An empty picture, in inches."""
    made = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(made)
    return made
