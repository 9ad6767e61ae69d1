"""The picture of a run: the loss of every step, and the moments of the kill and of the join."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pccl.demo.run import Run, size_text

SMOOTH = 10  # steps to either side


def plot(run: Run, path: Path) -> None:
    """Write a PNG, whose description says in words what is marked. Touches no global state of matplotlib."""
    marks = "; ".join(text.replace("\n", ", ") for _, text, _ in _marks(run))
    draw(run).savefig(path, metadata={"Title": "Training with pccl", "Description": marks})


def draw(run: Run) -> Figure:
    """The picture. Needs no display."""
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curve = run.curve()
    steps = [step for step, _ in curve]
    losses = [loss for _, loss in curve]
    axes.plot(steps, losses, color="tab:blue", alpha=0.35, linewidth=0.8, label="each step (mean over peers)")
    axes.plot(steps, _smooth(losses), color="tab:blue", linewidth=1.8, label=f"mean over {SMOOTH} steps to either side")
    ended = next((peer.finished for peer in run.peers if peer.finished is not None), None)
    if ended is not None:
        axes.plot(ended.step, ended.validation, "D", color="tab:green", label=f"held-out text: {ended.validation:.3f}")
    for row, (step, text, colour) in enumerate(_marks(run)):
        _mark(axes, step, text, colour, 0.97 - 0.15 * row)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.set_title(f"Character transformer, {run.parameters:,} parameters, {run.options.peers} peers averaged by pccl")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    return figure


def _marks(run: Run) -> list[tuple[int, str, str]]:
    """What happened: step, text, colour."""
    options, join, marks = run.options, run.join, []
    there = options.peers
    if run.kill is not None:
        marks.append(
            (
                run.kill.step,
                f"peer {options.kill_peer} killed in step {run.kill.step}\n{there} peers, then {there - 1}",
                "tab:red",
            )
        )
        there -= 1
    if join.joined is not None:
        step, world = join.joined.step + 1, join.joined.world
        text = f"peer {options.newcomer} joined in step {step}\nwith {size_text(join.joined.rx_bytes)} of state\n"
        text += f"{there} peers, then {world}"
        marks.append((step, text, "tab:green"))
    elif join.killed is not None and join.admitted:
        step = next(iter(join.admitted.values())).step + 1
        marks.append((step, f"peer {join.killed} killed while it joined in step {step}", "tab:red"))
    return marks


def _mark(axes: Axes, step: int, text: str, colour: str, height: float) -> None:
    axes.axvline(step, color=colour, linestyle="--", linewidth=1.2)
    right = step < axes.get_xlim()[1] * 0.65  # room for the text
    axes.annotate(
        text,
        xy=(step, height),
        xycoords=("data", "axes fraction"),
        xytext=(8 if right else -8, 0),
        textcoords="offset points",
        color=colour,
        horizontalalignment="left" if right else "right",
        verticalalignment="top",
    )


def _smooth(values: list[float]) -> list[float]:
    windows = (values[max(0, middle - SMOOTH) : middle + SMOOTH + 1] for middle in range(len(values)))
    return [sum(window) / len(window) for window in windows]
