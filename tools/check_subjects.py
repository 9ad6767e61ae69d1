"""Checks the subjects of commits: `area: imperative verb and object`, at most 72 characters, no merges.

A maintainer knows from the subject whether to open the commit. The script checks what follows BASE. In a shallow clone
without BASE it checks the commits that are there and newer. It checks nothing outside of a git checkout, as in a release.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "40396b8d84f5d016612a88e9f2e556686b54e32f"
BASE_SECONDS = 1795548571  # when it was committed
LONGEST = 72

SUBJECT = re.compile(r"(?P<areas>[a-z0-9_./-]+(, [a-z0-9_./-]+)*): (?P<verb>[a-z][a-z-]*) \S.*")
#: Endings of verbs that are no imperatives: "fixes", "fixed", "fixing".
OTHER_FORM = re.compile(r".+([^s]s|ed|ing)")
#: Imperatives with such an ending.
IMPERATIVES = {"alias", "bias", "bleed", "breed", "bring", "embed", "exceed", "feed", "focus", "heed", "need", "ping"}
IMPERATIVES |= {"proceed", "ring", "seed", "shed", "speed", "spring", "string", "succeed", "swing", "weed"}


def breach(subject: str, parents: int) -> str | None:
    """Returns what is wrong with a commit, or None."""
    if parents > 1:
        return "is a merge: rebase instead"
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters, more than {LONGEST}"
    form = SUBJECT.fullmatch(subject)
    if form is None:
        return "is not of the form `area: verb object`, in lower case"
    if subject.endswith("."):
        return "ends with a full stop"
    verb = form["verb"]
    if OTHER_FORM.fullmatch(verb) and verb not in IMPERATIVES:
        return f"begins with {verb!r}, which is no imperative"
    return None


def git(root: Path, *arguments: str) -> str | None:
    """Returns the output of git in `root`, or None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def commits(root: Path) -> list[tuple[str, int, str]] | None:
    """Returns hash, number of parents and subject of each commit after BASE; None outside of a git checkout."""
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.rstrip("\n")).resolve() != root.resolve():
        return None
    past = [] if git(root, "cat-file", "-e", f"{BASE}^{{commit}}") is None else [f"^{BASE}"]
    log = git(root, "log", "--format=%h%x00%ct%x00%p%x00%s", "HEAD", *past)
    if log is None:  # no commit yet
        return []
    rows = [line.split("\0") for line in log.splitlines()]
    return [(name, len(parents.split()), text) for name, time, parents, text in rows if past or int(time) > BASE_SECONDS]


def main() -> int:
    """Prints each breach; returns 1 if there is one."""
    found = commits(ROOT)
    if found is None:
        print("subjects: not checked, this is no git checkout")
        return 0
    bad = 0
    for name, parents, subject in found:
        why = breach(subject, parents)
        if why is not None:
            bad += 1
            print(f"{name} {subject!r} {why}")
    print(f"subjects: {len(found)} commits checked")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
