"""The simulator in a browser: a reader kills a peer and the master with the mouse, and the run goes on.

`make site` runs it on the page that it has built; without that, it builds one where Zig's compiler is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import CHROMIUM, browser_page
from performers import PATIENCE

pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium here")

ROOT = Path(__file__).resolve().parents[2]
SHOWN = """(() => [...document.querySelectorAll("#world .process")].map(
  (process) => [...process.querySelectorAll("text")].map((line) => line.textContent)))()"""
"""The lines in each box: first the master's, then those of peer 1 and so on."""
MEMBERS = (
    """([numbers, epoch, revision]) => {
  const shown = numbers.map((number) => """
    + SHOWN
    + """[number]);
  const groups = shown.map((lines) => /^epoch (\\d+), (\\d+) member/.exec(lines[2]));
  const states = shown.map((lines) => /^revision (\\d+), (\\w{8})$/.exec(lines[3]));
  return groups.every((one) => one && one[0] === groups[0][0] && Number(one[1]) > epoch && Number(one[2]) === numbers.length)
    && states.every((one) => one && one[0] === states[0][0] && Number(one[1]) > revision)
    && [Number(groups[0][1]), Number(states[0][1])];
}"""
)
"""Epoch and revision, once these peers are the members of a later epoch, and have the same state in a later revision."""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    if built := os.environ.get("TEST_SIMULATOR_PAGE"):
        return ROOT / built
    pytest.importorskip("ziglang", reason="no compiler for WebAssembly here; make site installs one")
    page: Path = tmp_path_factory.mktemp("simulator") / "simulator.html"
    subprocess.run([sys.executable, str(ROOT / "tools" / "site" / "simulator.py"), str(page)], check=True)
    return page


@pytest.fixture
def page(file) -> Iterator[Any]:
    with browser_page() as (page, problems):
        page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(file.as_uri())
        yield page
        assert problems == []
        assert page.inner_text("#failure") == ""


def await_members(page: Any, numbers: list[int], after: list[int]) -> list[int]:
    """Returns their epoch and the revision of their state, both later than those given."""
    found: list[int] = page.wait_for_function(MEMBERS, arg=[numbers, *after]).json_value()
    return found


def click(page: Any, number: int, expected: str) -> None:
    """Clicks a process; its box then says this."""
    page.locator("#world .process").nth(number).click()
    page.wait_for_function(f"number => {SHOWN}[number].includes('{expected}')", arg=number)


@pytest.mark.timeout(300)
def test_a_run_goes_on_without_a_peer_and_without_the_master_that_the_reader_kills(page):
    page.select_option("#speed", "100")
    began = await_members(page, [1, 2, 3], [0, 0])
    assert [lines[0] for lines in page.evaluate(SHOWN)] == ["master", "peer 1", "peer 2", "peer 3"]
    assert "3 members" in page.evaluate(SHOWN)[0][2]

    click(page, 2, "has ended")
    two = await_members(page, [1, 3], began)
    click(page, 2, "peer 2")
    three = await_members(page, [1, 2, 3], two)

    click(page, 0, "has ended")
    click(page, 0, "serves")
    await_members(page, [1, 2, 3], three)
    assert "3 members" in page.evaluate(SHOWN)[0][2]
