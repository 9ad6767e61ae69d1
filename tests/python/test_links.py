"""What the pages name is there: relative links, anchors, and paths of sources."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:bench|bindings|csrc|docs|examples|pccl|tests|tools)/[\w./*-]*)`")
IN_CSRC = re.compile(r"`((?:api|base|compute|data|device|master|net|ops|peer|sim|state|topology)/[\w./*-]*)`")
HISTORY = {"CHANGELOG.md"}
"""Names what was there then."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sources_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    named = [(ROOT, path) for path in PATH.findall(text)] + [(ROOT / "csrc", path) for path in IN_CSRC.findall(text)]
    gone = [path for folder, path in named if not any(folder.glob(path.rstrip("/") + end) for end in ("", ".h", ".c"))]
    assert not gone or page.name in HISTORY


def test_the_picture_is_what_its_script_draws():
    drawing = runpy.run_path(str(ROOT / "tools" / "draw_architecture.py"))
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"](), "run python tools/draw_architecture.py"


def test_every_picture_is_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in (ROOT / "docs" / "images").iterdir() if f"images/{path.name})" not in pages] == []
