"""Draws the pictures of the documentation anew, from the stored figures: python bench/pictures.py [FOLDER]

clouds.png is of bench/results.json, diloco_by_bytes.png of bench/diloco.json, which bench/diloco.py has written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import diloco
from harness import ROOT, Row
from line_labels import label_ends

from pccl.lab import plots

MEGABITS = 8 * 2**20 * 8 / 1e6
"""Of the tensor of bench/clouds.py."""
CONTROLS = {"cubic": ("CUBIC", plots.BLUE, -0.14), "bbr": ("BBR", plots.VERMILLION, 0.14)}
"""Name, colour, and how far beside the middle of a phase."""


def clouds(rows: list[Row], path: Path) -> None:
    """The rates at which bench/clouds.py reduced in each phase, the slowest and the fastest one, and what its links allow."""
    groups = sorted({row["sites"] for row in rows})
    made = plots.figure(2.6 * len(groups))
    for sites, axes in zip(groups, made.subplots(len(groups), sharex=True, squeeze=False)[:, 0], strict=True):
        here = [row for row in rows if row["sites"] == sites]
        phases = list(dict.fromkeys(row["phase"] for row in here))
        ends = []
        for row in here:
            name, colour, aside = CONTROLS[row["control"]]
            at, rate = phases.index(row["phase"]) + aside, MEGABITS / row["op s"]
            slowest, fastest = MEGABITS / row["to s"], MEGABITS / row["from s"]
            axes.vlines(at, slowest, fastest, color=colour, linewidth=2, alpha=0.5)
            axes.plot(at, rate, "o" if row["control"] == "cubic" else "s", color=colour, markersize=6)
            bounds = [("the links allow", plots.BLACK, MEGABITS / row["bound s"])]
            if row["by shares s"] > 1.01 * row["bound s"]:
                bounds.append(("best weights", plots.GREY, MEGABITS / row["by shares s"]))
            for text, shade, bound in bounds:
                axes.hlines(bound, at - 0.13, at + 0.13, color=shade, linewidth=1.6)
                if row is here[-1]:
                    ends.append((at + 0.13, bound, text, shade))
            if row["phase"] == phases[-1]:
                ends.append((at, rate, name, colour))
        axes.set_xticks(range(len(phases)), phases, fontsize="small")
        axes.set(ylabel="tensor reduced (Mbit/s)", xlim=(-0.5, len(phases) - 0.5))
        axes.set_title(f"{sites} sites: all-reduces of 8 MiB, the median of each phase", fontsize="medium", loc="left")
        axes.set_ylim(bottom=0)
        plots.dress(axes)
        axes.grid(visible=False, axis="x")
        label_ends(axes, ends, least=0.09)
    plots.save(made, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "images", help="default: docs/images")
    folder = parser.parse_args().folder
    clouds(json.loads((ROOT / "bench" / "results.json").read_text())["clouds"]["rows"], folder / "clouds.png")
    results = diloco.load(ROOT / "bench" / "diloco.json")
    diloco.draw(results, "sent", "MB sent per peer (logarithmic)", folder / "diloco_by_bytes.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
