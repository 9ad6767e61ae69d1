"""The tables of docs/benchmarks.md come from the stored figures, and a rate that is steady is found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import far  # of bench
import run_all

PAGE = """# Speed
<!-- bench: one two -->
typed by hand
<!-- end -->
<!-- bench: missed -->
<!-- end -->
"""
FIGURE = {"what": "a sum", "measured": "2 x", "bar": ""}
MISSED = {"what": "a copy", "measured": "0.5 x", "bar": "1 x"}
RESULTS = {
    "one": {"where": "here", "figures": [FIGURE], "missed": []},
    "two": {"where": "there", "figures": [MISSED], "missed": [MISSED]},
}


def test_tables_are_made_of_the_figures():
    made = run_all.write_tables(PAGE, RESULTS)
    assert "typed by hand" not in made
    assert "| a sum | 2 x |  |\n| a copy | 0.5 x | 1 x |\n\n`bench/one.py`: here; `bench/two.py`: there.\n" in made
    assert "| a copy | 0.5 x | 1 x | `bench/two.py` |" in made
    assert run_all.write_tables(made, RESULTS) == made
    assert run_all.names(made) == ["one", "two"]


def test_results_are_read_as_they_are_written():
    assert json.loads(run_all.text_of(RESULTS)) == RESULTS


def test_the_page_and_the_programs_agree():
    assert run_all.problems(run_all.PAGE.read_text(), run_all.RESULTS.read_text()) == []


def test_a_table_that_was_typed_is_a_problem():
    page = run_all.PAGE.read_text().replace("<!-- bench: sync -->\n", "<!-- bench: sync -->\n| typed |\n")
    assert any("a table is not that of the results" in line for line in run_all.problems(page, run_all.RESULTS.read_text()))


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ((1, 1, 1, 1, 1), 0.0),
        ((4, 1, 1, 1, 1, 1), 4.0),
        ((1, 1, 1, 1, 1, 1, 1, 9), None),
    ],
)
def test_seconds_to_steady(seconds, steady):
    ops, begin = [], 0.0
    for one in seconds:
        ops.append(far.Op(begin, begin + one))
        begin += one
    assert far.seconds_to_steady(ops, change=0.0) == steady
