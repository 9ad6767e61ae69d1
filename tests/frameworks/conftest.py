"""The table of frameworks: filled by the tests, printed at the end, and written as Markdown."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

COLUMNS = ("equals gloo", "survives a kill", "a process joins")
_rows: dict[str, dict[str, str]] = {}
TABLE = pytest.StashKey[dict[str, dict[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TABLE] = _rows


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes the outcome of a test in the table."""
    report = yield
    cell = item.get_closest_marker("cell")
    if cell is not None and (report.when == "call" or report.outcome != "passed"):
        row = _rows.setdefault(item.callspec.params["case"].name, {})
        text = {"passed": "yes", "failed": "NO", "skipped": "-"}[report.outcome]
        if report.outcome == "skipped":
            text = str(report.longrepr[2]).removeprefix("Skipped: ")
        row[cell.args[0]] = text
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    if not _rows:
        return
    lines = ["| framework | version | " + " | ".join(COLUMNS) + " |", "|---|---|" + "---|" * len(COLUMNS)]
    for name, row in _rows.items():
        cells = [row.get(column, "not run") for column in COLUMNS]
        lines.append(f"| {name} | {_version(name)} | " + " | ".join(cells) + " |")
    terminalreporter.section("frameworks")
    for line in lines:
        terminalreporter.write_line(line)
    target = os.environ.get("FRAMEWORKS_TABLE")
    if target:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text("\n".join(lines) + "\n")


def _version(name: str) -> str:
    from test_frameworks import CASES

    distribution = next(case.distribution for case in CASES if case.name == name)
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
