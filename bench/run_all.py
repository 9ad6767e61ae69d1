"""Runs the benchmarks behind docs/benchmarks.md, keeps their figures in bench/results.json, and writes the page's tables.

A table stands between `<!-- bench: NAME ... -->` and `<!-- end -->` and has the figures of these programs. The word `missed` in
place of names makes a table of all figures that miss their bars.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from typing import Any

from harness import ROOT, Row

PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "bench" / "results.json"
MOST_LINES = 200
"""Of the results, which are what the page shows and not all that was measured."""

TABLE = re.compile(r"(<!-- bench: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CLAIM = re.compile(r'"""Backs "([^"]+)" of (docs/[\w-]+\.md): ')
"""How the docstring of a benchmark begins."""

Results = dict[str, dict[str, Any]]


def names(page: str) -> list[str]:
    """Returns the benchmarks that the page has tables of, in its order."""
    return list(dict.fromkeys(name for _, words, _ in TABLE.findall(page) for name in words.split() if name != "missed"))


def write_tables(page: str, results: Results) -> str:
    """Returns the page with its tables made anew."""

    def fill(found: re.Match[str]) -> str:
        if found[2] == "missed":
            rows = [{**row, "benchmark": f"`bench/{name}.py`"} for name, made in results.items() for row in made["missed"]]
            return f"{found[1]}{table(rows)}{found[3]}"
        made = {name: results[name] for name in found[2].split()}
        where = "; ".join(f"`bench/{name}.py`: {one['where']}" for name, one in made.items())
        return f"{found[1]}{table([row for one in made.values() for row in one['figures']])}\n{where}.\n{found[3]}"

    return TABLE.sub(fill, page)


def table(rows: list[Row]) -> str:
    """Returns the rows in Markdown, without columns that are empty."""
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if value != ""))
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def text_of(results: Results) -> str:
    """Returns the file of results: a line for each figure."""
    made = (
        f' "{name}": {{\n  "where": {json.dumps(one["where"])},\n'
        + ",\n".join(
            f'  "{key}": [' + ",".join(f"\n   {json.dumps(row, ensure_ascii=False)}" for row in one[key]) + "]"
            for key in ("figures", "missed")
        )
        + "\n }"
        for name, one in results.items()
    )
    return "{\n" + ",\n".join(made) + "\n}\n"


def problems(page: str, stored: str) -> list[str]:
    """Returns what is wrong with the page, the results and the programs, without running any."""
    results: Results = json.loads(stored)
    found = []
    if write_tables(page, results) != page:
        found.append(f"{PAGE.name}: a table is not that of the results; run `python bench/run_all.py --page`")
    if stored != text_of(results) or stored.count("\n") > MOST_LINES:
        found.append(f"{RESULTS.name}: not written by bench/run_all.py, or longer than {MOST_LINES} lines")
    if list(results) != names(page):
        found.append(f"{RESULTS.name}: its benchmarks are not those of the page, in the page's order")
    for path in sorted((ROOT / "bench").glob("*.py")):
        text = path.read_text()
        claim = CLAIM.match(text)
        if "\n    harness.measure(" in text and (not claim or f"# {claim[1]}\n" not in (ROOT / claim[2]).read_text()):
            found.append(f"{path.name}: the docstring does not begin with the section that the program backs")
    return found


def measure(name: str, quick: bool) -> dict[str, Any] | None:
    """Runs a benchmark. Returns None if this machine cannot make it, which the program says. CalledProcessError: it failed."""
    with tempfile.NamedTemporaryFile() as report:
        command = [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--json", report.name, *(["--quick"] if quick else [])]
        subprocess.run(command, check=True)
        text = report.read()
    if not text:
        return None
    made: dict[str, Any] = json.loads(text)
    missed = [row for row in [*made["figures"], *made["bars"]] if row.pop("missed", False)]
    return {"where": made["where"], "figures": made["figures"], "missed": missed}


def run() -> int:
    page = PAGE.read_text()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=names(page), default=names(page), help="run these; others keep their figures"
    )
    parser.add_argument("--quick", action="store_true", help="see whether each program works; nothing is stored")
    parser.add_argument("--page", action="store_true", help="write the tables from the stored results, and run nothing")
    parser.add_argument("--check", action="store_true", help="complain if writing the tables would change the page")
    args = parser.parse_args()
    if args.check:
        found = problems(page, RESULTS.read_text())
        print(*found, sep="\n", end="\n" if found else "")
        return int(bool(found))
    results: Results = json.loads(RESULTS.read_text())
    failed = []
    for name in args.only if not args.page else ():
        print(f"---- {name}", flush=True)
        try:
            made = measure(name, args.quick)
        except subprocess.CalledProcessError:
            failed.append(name)
            continue
        if made is not None and not args.quick:
            results = {one: made if one == name else results[one] for one in names(page) if one == name or one in results}
            RESULTS.write_text(text_of(results))
            PAGE.write_text(write_tables(page, results))
    if args.page:
        PAGE.write_text(write_tables(page, results))
    if failed:
        print(f"failed, and their figures stay: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(run())
