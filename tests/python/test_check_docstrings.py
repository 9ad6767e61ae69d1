"""tools/check_docstrings.py: what it finds in docstrings."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "check_docstrings.py"))


def wait(timeout: float | None = None, count: int = 0) -> None:
    if count < 0:
        raise ValueError(count)


class Base:
    """Has a `path`, and a `size` in bytes."""

    def whole(self, size: int) -> int:
        """Returns the size."""
        return size

    def whole_async(self, size: int) -> int:
        """The same as a future."""
        return size


class Other:
    """Used as `Base` is, with the same arguments."""

    def whole(self, size: int) -> int:
        """Returns it."""
        return size


@pytest.mark.long
def test_public_names_lack_nothing():
    assert TOOL["main"]() == 0


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (None, ["pccl.wait: no docstring"]),
        ("Waits.", ["what `timeout` is", "what `count` is", "raises ValueError"]),
        ("Waits for `timeout`, `count` times. ValueError: below 0.", ["`timeout` is in seconds"]),
        ("Waits for `timeout` seconds, `count` times. ValueError: below 0.", []),
    ],
)
def test_what_a_docstring_lacks(monkeypatch, text, lacks):
    monkeypatch.setattr(wait, "__doc__", text)
    found = TOOL["breaches"]("pccl.wait", None, wait)
    assert len(found) == len(lacks)
    assert all(part in line for part, line in zip(lacks, found, strict=True))


def test_a_class_serves_its_methods_and_a_method_its_twin(monkeypatch):
    assert TOOL["breaches"]("pccl.Base.whole", Base, Base.whole) == []
    assert TOOL["breaches"]("pccl.Base.whole_async", Base, Base.whole_async) == []
    monkeypatch.setattr("pccl.Base", Base, raising=False)
    assert TOOL["breaches"]("pccl.Other.whole", Other, Other.whole) == []
