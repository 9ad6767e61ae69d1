"""tools/check_subjects.py: the form of a subject, and which commits it finds in a clone, a shallow clone and a release."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_subjects.py"

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="takes git")


@pytest.fixture
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("check_subjects", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *arguments: str) -> str:
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, env=os.environ | settings | names, capture_output=True, text=True, check=True)
    return str(done.stdout).strip()


def commit(folder: Path, subject: str) -> str:
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tool: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "full"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "An old subject")
    tool.BASE = commit(folder, "Another one")
    tool.BASE_SECONDS = 0
    commit(folder, "net: close the socket")
    commit(folder, "docs: describe it")
    return folder


@pytest.mark.parametrize(
    "subject",
    [
        "data: fix lost wake-up in weighted all-reduce",
        "data, state: pass x",
        "pccl/_exports.py: embed the table",
        "net: add " + "x" * (72 - len("net: add ")),
        "ci: address the failure",
    ],
)
def test_good_subjects(tool: Any, subject: str) -> None:
    assert tool.breach(subject, 1) is None


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("Tell once more after the loss of a master", "form"),
        ("Data: fix it", "form"),
        ("data: Fix it", "form"),
        ("data:fix it", "form"),
        ("data: fix", "form"),
        ("Merge branch 'main' into tools", "form"),
        ('Revert "data: fix it"', "form"),
        ("fixup! data: fix it", "form"),
        ("data: fixes it", "imperative"),
        ("data: fixed it", "imperative"),
        ("data: fixing it", "imperative"),
        ("data: fix it.", "full stop"),
        ("net: add " + "x" * (73 - len("net: add ")), "73"),
    ],
)
def test_bad_subjects(tool: Any, subject: str, why: str) -> None:
    assert why in tool.breach(subject, 1)


def test_merges(tool: Any) -> None:
    assert "rebase" in tool.breach("data: merge both halves", 2)


def test_only_commits_after_the_base(tool: Any, history: Path) -> None:
    assert [subject for _, _, subject in tool.commits(history)] == ["docs: describe it", "net: close the socket"]


def test_a_merge_is_seen(tool: Any, history: Path) -> None:
    git(history, "checkout", "--quiet", "-b", "side", "HEAD~1")
    commit(history, "net: open it")
    git(history, "checkout", "--quiet", "main")
    git(history, "merge", "--quiet", "--no-ff", "--message", "net: merge it", "side")
    assert [parents for _, parents, _ in tool.commits(history)].count(2) == 1


def test_a_shallow_clone(tool: Any, history: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth", "1", history.as_uri(), "shallow")
    assert [subject for _, _, subject in tool.commits(tmp_path / "shallow")] == ["docs: describe it"]
    tool.BASE_SECONDS = 1 << 40
    assert tool.commits(tmp_path / "shallow") == []


def test_a_release(tool: Any, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = history / "unpacked"  # in a checkout of something else
    inside.mkdir()
    for folder in (inside, tmp_path):
        assert tool.commits(folder) is None
        tool.ROOT = folder
        assert tool.main() == 0
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert tool.commits(history) is None
