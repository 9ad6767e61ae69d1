"""Chromium for tests of pages, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or ""
_QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync")  # fmt: skip


@contextlib.contextmanager
def browser_page(chromium: str = CHROMIUM) -> Iterator[tuple[Any, list[str]]]:
    """An empty page, and the errors of its scripts so far. Skips the test if Playwright or Chromium is missing."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not chromium:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=chromium, args=list(_QUIET))
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield page, problems
        browser.close()
