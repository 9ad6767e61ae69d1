"""Environment variables: one list, and a word about each one that is not in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pccl._native import ffi, lib

ROOT = Path(__file__).parents[2]
READ = re.compile(r"""(?:getenv|environ|env|_allows|_environment|positive)\w*(?:\.\w+)?[(\[]\s*["'](PCCL_[A-Z0-9_]+)["']""")
LITERAL = re.compile(r"""["'](PCCL_(?!ATTRIBUTE_|SHARED_|SIM_)[A-Z0-9_]+)["']""")
MASTER = "import pccl\nfor _ in range(2):\n    with pccl.MasterNode('127.0.0.1:0'):\n        pass\n"


def known():
    """Returns the meaning of each variable, by name, in the order of the list."""
    meaning = ffi.new("char const **")
    meanings: dict[str, str] = {}
    while (name := lib.pccl_ext_environment(len(meanings), meaning)) != ffi.NULL:
        meanings[ffi.string(name).decode()] = ffi.string(meaning[0]).decode()
    return meanings


def said(**environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
    ended = subprocess.run(
        [sys.executable, "-c", MASTER], env={**clean, **environment}, capture_output=True, text=True, check=True, timeout=60
    )
    return [line for line in ended.stderr.splitlines() if "environment variable" in line]


def test_the_list_has_all_variables_that_sources_read():
    folders = ("csrc", "cuda", "pccl", "bench", "examples", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.[chp]*") if path.suffix in (".c", ".h", ".py")]
    read = {name for path in files for name in READ.findall(path.read_text())}
    read |= {name for path in (ROOT / "pccl").rglob("*.py") for name in LITERAL.findall(path.read_text())}
    assert {"PCCL_LOG_LEVEL", "PCCL_MASTER"} <= read
    assert read - set(known()) == set()
    assert list(known()) == sorted(known())


NOT_FOR_USERS = re.compile(
    r"(for|of) tests$|of the tests\b|tests/fakes|pccl (launch )?sets it|without effect|retry is divided into segments"
)
"""Meanings that `pccl info` alone shows."""


def test_the_guide_names_all_that_users_set():
    guide = (ROOT / "docs/operations.md").read_text()
    meanings = known()
    assert meanings["PCCL_LOG_LEVEL"] == "lowest level that is logged"
    users = [name for name, meaning in meanings.items() if name == "PCCL_JOIN" or not NOT_FOR_USERS.search(meaning)]
    assert [name for name in users if f"`{name}`" not in guide] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PCCL_LOGLEVEL", "PCCL_LOG_LEVEL"),
        ("PCCL_HEARTBEAT_LIMIT", "PCCL_HEARTBEAT_LIMIT_MS"),
        ("PCCL_MASTRE", "PCCL_MASTER"),
        ("PCCL_LZ", "PCCL_LZ4"),
    ],
)
def test_an_unknown_variable_is_reported_once_with_what_was_meant(name, meant):
    [line] = said(**{name: "1"})
    assert f"variable {name} is unknown" in line
    assert f"did you mean {meant}?" in line


def test_a_variable_like_no_other_is_reported_without_advice():
    [line] = said(PCCL_WEATHER_OF_TOMORROW="x")
    assert "did you mean" not in line
    assert said(**{name: "" for name in known() if name.startswith("PCCL_M")}) == []


def test_info_tells_all_with_their_values():
    environment = {**os.environ, "PCCL_LZ4": "0"}
    told = subprocess.run(
        [sys.executable, "-m", "pccl", "info", "--json"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    variables = json.loads(told.stdout)["environment"]
    assert list(variables) == list(known())
    assert variables["PCCL_LZ4"] == "0"
