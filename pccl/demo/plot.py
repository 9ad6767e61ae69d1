"""The picture of a run: the loss of every step and the moment of the kill."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pccl.demo.run import Run

SMOOTH = 10  # steps to either side


def plot(run: Run, path: Path) -> None:
    """Write a PNG. Needs no display, and touches no global state of matplotlib."""
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
    if run.kill is not None:
        axes.axvline(run.kill.step, color="tab:red", linestyle="--", linewidth=1.2)
        axes.annotate(
            f"peer {run.options.kill_peer} killed in step {run.kill.step}\n"
            f"{run.options.peers} peers, then {run.options.peers - 1}",
            xy=(run.kill.step, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(8, 0),
            textcoords="offset points",
            color="tab:red",
            verticalalignment="top",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per character)")
    axes.set_title(f"Character transformer, {run.parameters:,} parameters, {run.options.peers} peers averaged by pccl")
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    figure.savefig(path)


def _smooth(values: list[float]) -> list[float]:
    windows = (values[max(0, middle - SMOOTH) : middle + SMOOTH + 1] for middle in range(len(values)))
    return [sum(window) / len(window) for window in windows]
