"""What a build says of a machine that lacks something, before it downloads or compiles anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PREFLIGHT = Path(__file__).parents[2] / "tools" / "preflight.sh"


def preflight(python: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(PREFLIGHT), python], env=os.environ | environment, capture_output=True, text=True, timeout=30, check=False
    )


def pretend(folder: Path, answers: dict[str, str]) -> str:
    """A python that answers each `-c` program with the first entry of `answers` that stands in it, else like the real one."""
    cases = "".join(f'case "$2" in *{part!r}*) {answer}; exit $?;; esac\n' for part, answer in answers.items())
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n{cases}exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_machine_that_has_all():
    done = preflight()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("answers", "environment", "words"),
    [
        ({"get_path": "echo /nowhere"}, {}, ["Python's headers (Python.h)", "python3-dev"]),
        ({"ensurepip": "false"}, {}, ["venv module", "python3-venv"]),
        ({}, {"CC": "no-such-compiler"}, ["a C compiler (no-such-compiler)", "gcc libc6-dev"]),
        ({}, {"CC": "cc -nostdinc"}, ["the headers of the C library", "libc6-dev"]),
        ({"get_path": "echo /nowhere"}, {"CC": "no-such-compiler"}, ["Python.h", "C compiler", "python3-dev gcc libc6-dev"]),
    ],
)
def test_what_is_missing_is_named_in_the_first_line(tmp_path, answers, environment, words):
    done = preflight(pretend(tmp_path, answers), **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert rest == []
    assert first.startswith("pccl cannot be built: ")
    assert "Install (as root): " in first
    if "apt-get" in first:
        assert all(word in first for word in words)


def test_no_python_at_all():
    done = preflight("no-such-python")
    assert done.returncode == 1
    assert "Python 3.11 or later (no-such-python)" in done.stderr


def test_a_python_that_is_too_old(tmp_path):
    done = preflight(pretend(tmp_path, {"version_info": "false", "platform": "echo 3.9.2"}))
    assert done.returncode == 1
    assert "is 3.9.2" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_make_says_so_before_it_makes_anything(tmp_path):
    root = PREFLIGHT.parents[1]
    files = ["Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt", "tools", "csrc", "cuda", "bindings", "pccl"]
    for name in files:
        (tmp_path / name).symlink_to(root / name)
    for target in ("demo", "test"):
        done = subprocess.run(
            ["make", "PYTHON=no-such-python", target], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode != 0
        assert done.stderr.startswith("pccl cannot be built: ")
        assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(files)
