"""How a run is shown: lines while it goes on; at its end figures, the verdict, and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stress.conductor import Run
from stress.judge import CLAIMS
from stress.lab import display
from stress.lab.display import rate_text
from stress.schedule import Fault

PLAIN_SECONDS = 5.0
"""Between two lines where there is no terminal."""
RECENT_SECONDS = 2.0
"""Over which the shown rates are taken."""


def recent_rate(run: Run) -> float:
    """Bytes per second of the last moments."""
    moments = [moment for moment in run.moments[-50:] if moment.at > run.lasted - RECENT_SECONDS]
    return sum(moment.bytes for moment in moments) / RECENT_SECONDS


def faults_text(run: Run) -> str:
    """How many of each kind have been applied."""
    kinds = [(kind, run.counts[kind]) for kind in ("kill", "stop", "cut", "delay", "join", "master", "missed")]
    return ", ".join(f"{count} {kind}" for kind, count in kinds if count) or "none yet"


class PlainDisplay(display.PlainDisplay):
    """A line every few seconds, for pipes and log files."""

    def __init__(self, console: Console, run: Run, title: str) -> None:
        super().__init__(console)
        self._next = 0.0
        self.say(title)

    def update(self, run: Run) -> None:
        """Prints a line when it is time for one."""
        if not run.epoch or run.lasted < self._next:
            return
        self._next = run.lasted + PLAIN_SECONDS
        members = sum(process.status == "member" for process in run.processes.values())
        self.say(
            f"[{run.lasted:6.1f} s] {members} members, step {run.step}, {run.counts['ops']:,} ops, "
            f"{rate_text(recent_rate(run))}; faults: {faults_text(run)}; {len(run.violations)} violations"
        )


# ---- at the end ----


BIN_SECONDS = 0.5
MEAN_SECONDS = 2.0
"""Operations differ in size, so shorter means fall to 0 without a fault."""
_MARKS = {"kill": "#d55e00", "stop": "#e69f00", "cut": "#cc79a7", "delay": "#56b4e9", "join": "#009e73", "master": "#000000"}


def outcome(run: Run, baseline: float, cut_short: str) -> dict[str, Any]:
    """The end of the run's log, and what a repetition is compared with. `baseline` is the goodput without faults, or 0."""
    return {
        "passed": not run.violations,
        "cut_short": cut_short,
        "broken": sorted({violation.claim for violation in run.violations}),
        "violations": [{"claim": violation.claim, "detail": violation.detail} for violation in run.violations],
        "seconds": round(run.lasted, 2),
        "counts": dict(run.counts),
        "goodput": round(run.goodput()),
        "baseline": round(baseline),
        "kept": round(run.goodput() / baseline, 4) if baseline else None,
        "longest_wait": round(run.longest[0], 3),
        "longest_wait_in": run.longest[1],
        "bound": run.options.bound,
    }


def print_summary(console: Console, run: Run, found: dict[str, Any]) -> None:
    """The verdict, claim by claim, and the figures."""
    figures = Table(show_header=False, box=None)
    counts = run.counts
    rows = [
        ("ran", f"{run.lasted:.0f} s, {run.options.peers} peers, {counts['processes']} processes, seed {run.options.seed}"),
        ("faults", faults_text(run)),
        ("committed", f"{counts['ops']:,} ops in {counts['steps']:,} steps, {counts['bytes'] / 1e9:.2f} GB"),
        (
            "seen",
            f"{counts['losses seen']} losses, {counts['expelled']} expulsions, {counts['alone']} times alone; "
            f"{counts['resumed']} ops went on from where they were",
        ),
        (
            "longest wait",
            f"{found['longest_wait']:.2f} s in {found['longest_wait_in'] or 'no call'}; the bound is {found['bound']:.1f} s",
        ),
        ("goodput", _goodput_text(run, found)),
    ]
    for name, text in rows:
        figures.add_row(Text(name, style="bold"), Text(text))
    console.print(figures)
    for claim, words in CLAIMS.items():
        broken = [violation for violation in run.violations if violation.claim == claim]
        judged = run.lasted > 0 and not (found["cut_short"] and claim == "end")
        mark = Text("FAILED", style="bold red") if broken else Text("ok    ", style="green") if judged else Text("-     ")
        console.print(mark, Text(words), soft_wrap=True)
        for violation in broken[:3]:
            console.print(Text(f"       {violation.detail}"), soft_wrap=True)
        if len(broken) > 3:
            console.print(Text(f"       and {len(broken) - 3} more"))


def _goodput_text(run: Run, found: dict[str, Any]) -> str:
    text = rate_text(run.goodput())
    if found["kept"] is not None:
        text += f", {found['kept']:.0%} of the {rate_text(found['baseline'])} without faults"
    return text


def write_files(run: Run, found: dict[str, Any]) -> None:
    """summary.json, summary.md (the row of a table) and throughput.png."""
    out = run.options.out
    (out / "summary.json").write_text(json.dumps({"options": run.options.to_fields(), **found}, indent=1) + "\n")
    (out / "summary.md").write_text(_table(run, found))
    plot(run, found["baseline"], out / "throughput.png")


def _table(run: Run, found: dict[str, Any]) -> str:
    options, counts = run.options, run.counts
    kept = f"{found['kept']:.0%}" if found["kept"] is not None else "not measured"
    masters = f", {options.standbys} standby masters" if options.standbys else ""
    what = f"{options.backend}, {options.workload}"
    row = (
        f"{what}, {options.peers} peers{masters}, seed {options.seed}, {run.lasted:.0f} s, every {options.every:g} s",
        f"{faults_text(run)}; {counts['losses seen']} losses seen",
        f"{counts['ops']:,} ops in {counts['steps']:,} steps, {counts['bytes'] / 1e9:.1f} GB",
        kept,
        f"{found['longest_wait']:.1f} s of {found['bound']:.1f} s",
        ", ".join(found["broken"]) or "nothing",
    )
    head = ("run", "faults", "committed", "goodput kept", "longest wait", "found")
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), row))


def plot(run: Run, baseline: float, path: Path) -> None:
    """Throughput over time, with the faults marked."""
    from line_labels import label_ends

    from pccl.lab import plots

    figure = plots.figure(4.4)
    rates, worlds = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    times, values = _binned(run)
    rates.plot(times, values, color=plots.BLUE, linewidth=1.4)
    mean, end = run.goodput() / 1e6, run.lasted
    rates.axhline(mean, color=plots.BLUE, linestyle=":")
    ends = [(end, mean, f"mean {rate_text(run.goodput())}", plots.BLUE)]
    if baseline:
        rates.axhline(baseline / 1e6, color=plots.GREY, linestyle="--")
        ends.append((end, baseline / 1e6, f"no faults {rate_text(baseline)}", plots.GREY))
    for kind, colour in _MARKS.items():
        _mark(rates, [fault for fault in run.applied if fault.kind == kind], kind, colour)
    for violation in run.violations:
        if 0 <= violation.at - run.epoch <= run.lasted:  # others are of the run without faults
            rates.axvline(violation.at - run.epoch, color="red", linewidth=2.0)
    rates.set(ylabel=f"goodput over {MEAN_SECONDS:g} s (MB/s)", xlim=(0, max(run.lasted, 1)))
    rates.set_ylim(bottom=0, top=1.1 * max([*values, baseline / 1e6, 1]))
    rates.set_title(
        f"{run.options.workload} by {run.options.backend}: {run.options.peers} peers, "
        f"a fault every {run.options.every:g} s, seed {run.options.seed}: {'FAILED' if run.violations else 'passed'}",
        fontsize="medium",
        loc="left",
    )
    if run.applied:  # marks have no ends to write names at
        figure.legend(loc="outside lower center", fontsize="small", ncols=len(_MARKS), frameon=False, handlelength=1)
    worlds.plot(
        [moment.at for moment in run.moments], [moment.world for moment in run.moments], drawstyle="steps-post", color=plots.GREY
    )
    worlds.set_ylabel("members")
    worlds.set_ylim(bottom=0, top=max([moment.world for moment in run.moments], default=1) + 0.5)
    worlds.set_xlabel("time (s)")
    plots.dress(rates, worlds)
    label_ends(rates, ends, least=0.08)
    plots.save(figure, path)


def _mark(axes: Any, faults: list[Fault], kind: str, colour: str) -> None:
    if faults:
        name = f"{kind} ({len(faults)})"
        axes.vlines([fault.at for fault in faults], 0, 0.05, transform=axes.get_xaxis_transform(), color=colour, label=name)
    for fault in faults:  # for as long as it lasts
        if kind in ("stop", "delay") and fault.seconds > 0:
            axes.axvspan(fault.at, fault.at + fault.seconds, color=colour, alpha=0.15, linewidth=0)


def _binned(run: Run) -> tuple[list[float], list[float]]:
    """Middles of windows of MEAN_SECONDS, one for each BIN_SECONDS, and the rate in each."""
    bins: dict[int, int] = {}
    for moment in run.moments:
        place = int(moment.at / BIN_SECONDS)
        bins[place] = bins.get(place, 0) + moment.bytes
    count = round(MEAN_SECONDS / BIN_SECONDS)
    places = range(max(bins, default=0) - count + 2)
    times = [place * BIN_SECONDS + MEAN_SECONDS / 2 for place in places]
    return times, [sum(bins.get(place + i, 0) for i in range(count)) / MEAN_SECONDS / 1e6 for place in places]
