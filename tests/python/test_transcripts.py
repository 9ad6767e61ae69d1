"""tools/transcripts.py: what pages show of commands is what these print."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "transcripts.py"))
SOME = TOOL["Transcript"]("page.md", "pccl some", r"step|peer", r"\d+")


def test_each_transcript_of_a_page_has_a_command_that_makes_it():
    assert sorted(TOOL["blocks"]()) == sorted((each.page, each.command) for each in TOOL["TRANSCRIPTS"])


@pytest.mark.parametrize("transcript", [each for each in TOOL["TRANSCRIPTS"] if each.quick], ids=lambda each: each.command)
def test_quick_commands_print_what_pages_show(transcript: Any):
    TOOL["update"](transcript, TOOL["run"](transcript.command), check=True)


@pytest.mark.parametrize("transcript", TOOL["TRANSCRIPTS"], ids=lambda each: each.command)
def test_pages_show_kept_lines_only(transcript: Any):
    text = (ROOT / transcript.page).read_text(encoding="utf-8")
    [block] = [block for block in TOOL["BLOCK"].finditer(text) if block["command"] == transcript.command]
    shown = block["output"].splitlines()
    assert shown
    assert TOOL["kept"](transcript, block["output"]) == [line for line in shown if line != "..."]


def page_with(folder: Path, output: str) -> Path:
    page = folder / "page.md"
    page.write_text(f"before\n\n```\n$ pccl some\n{output}```\n\nafter\n", encoding="utf-8")
    TOOL["update"].__globals__["ROOT"] = folder
    return page


@pytest.fixture(autouse=True)
def _root_again():
    yield
    TOOL["update"].__globals__["ROOT"] = ROOT


def test_a_block_that_differs_in_volatile_places_stays(tmp_path: Path):
    page = page_with(tmp_path, "peer 1\nstep 5\n")
    before = page.read_text()
    assert not TOOL["update"](SOME, "noise\nstep 7\npeer 2\n", check=True)
    assert page.read_text() == before


def test_a_block_that_differs_is_written_or_refused(tmp_path: Path):
    page = page_with(tmp_path, "peer one\n")
    with pytest.raises(TOOL["TranscriptError"], match=r"page.md: `pccl some` prints now:\nstep 7"):
        TOOL["update"](SOME, "noise\nstep 7\n", check=True)
    assert TOOL["update"](SOME, "noise\nstep 7\n", check=False)
    assert page.read_text() == "before\n\n```\n$ pccl some\nstep 7\n```\n\nafter\n"
