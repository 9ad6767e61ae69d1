"""Runs every benchmark; writes one JSON file, and the tables of bench/results.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import ROOT, Row

BENCHMARKS = [
    "allreduce",
    "small_ops",
    "recorder",
    "collectives",
    "distributed",
    "concurrent_ops",
    "lanes",
    "cards",
    "relay",
    "longlink",
    "ways",
    "clouds",
    "memory",
    "recovery",
    "resume",
    "master_loss",
    "join",
    "cpu",
    "quantised",
    "diloco_costs",
    "sync",
]
AS_ROOT = {"cards", "clouds", "diloco_costs", "lanes", "longlink", "quantised", "relay", "resume", "ways"}
PINNED = {"allreduce", "concurrent_ops"}
BEGIN, END = "<!-- made by bench/run_all.py: begin -->", "<!-- end -->"


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="run these; keep the others' last results"
    )
    parser.add_argument("--blocks", type=int, help="timed blocks of each method, for all benchmarks")
    parser.add_argument("--pin", action="store_true", help="each peer of allreduce and concurrent_ops on one core")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results.json", help="where the results are kept")
    parser.add_argument("--markdown", type=Path, default=ROOT / "bench" / "results.md", help="the page whose tables are written")
    args = parser.parse_args()
    reports: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
    failed = []
    for name in args.only:
        if name in AS_ROOT and os.geteuid() != 0:
            print(f"{name}: left out, needs root")
            continue
        print(f"{name} ...", flush=True)
        made = one(name, args.blocks, args.pin and name in PINNED)
        if made is None:
            failed.append(name)
        else:
            reports[name] = made
            for line in made["bars"]:
                print(f"  {'reached' if line['reached'] else 'MISSED '}  {line['what']}: {line['measured']} ({line['bar']})")
    reports = {name: reports[name] for name in BENCHMARKS if name in reports}
    args.json.write_text(json.dumps(reports, indent=1) + "\n")
    write_tables(args.markdown, reports)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def one(name: str, blocks: int | None, pin: bool) -> Any:
    command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--json", "-"]
    if blocks is not None:
        command += ["--blocks", str(blocks)]
    if pin:
        command.append("--pin")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def write_tables(page: Path, reports: dict[str, Any]) -> None:
    """Between the marks of the page; what stands around them is kept."""
    text = page.read_text() if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = ["## The bars", ""]
    bars = [
        {
            "what": line["what"],
            "bar": line["bar"],
            "measured": line["measured"],
            "reached": "yes" if line["reached"] else "**no**",
        }
        for made in reports.values()
        for line in made["bars"]
    ]
    parts += markdown(bars)
    for name, made in reports.items():
        where = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in made["machine"].items())
        parts += ["", f"## {name}", "", f"`python bench/{name}.py`. {made['method']}", "", *markdown(made["rows"]), "", where]
    page.write_text(before + BEGIN + "\n" + "\n".join(parts) + "\n" + END + after)


def markdown(rows: list[Row]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


if __name__ == "__main__":
    sys.exit(run())
