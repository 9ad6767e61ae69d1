"""Checks tables. Of docs/timers.md: each name exists in the code, and each deadline and duration of the code is there.
Of functions: a static function in a constant table of csrc carries the prefix of its module, so that its name is its own.

Of docs/threat-model.md: what must be read to trust the wire is there, and short.

python tools/check_tables.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMERS = "docs/timers.md"
THREATS = "docs/threat-model.md"

#: What a reader can take in within two days: of the files on that page.
TRUSTED_LINES = 6000

#: Folders of `csrc` whose duration constants are all timers. In the others, some are spans of measurements.
FOLDERS_OF_TIMERS = ("api", "master", "peer", "state")

#: Programs for developers, whose timers no user meets.
PROGRAMS = ("pccl/stress/", "pccl/lab/", "pccl/demo")

#: Folders that do not ship.
ELSEWHERE = {"bench", "build", "docs", "examples", "sim", "tests", "tools"}

DEADLINE = re.compile(r"^[a-z][^\n;={]*?\b(\w*_deadline(?:_ns)?)\([^;]*\) \{", re.MULTILINE)
DURATION = re.compile(r"\b([A-Z][A-Z0-9_]*(?<!_PER)_(?:MS|S|SECONDS)) = ")
PYTHON_DURATION = re.compile(r"^(_?[A-Z][A-Z0-9_]*_SECONDS) = ", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[a-z_]+)?")


def sources(root: Path) -> dict[str, str]:
    """The text of each source that ships, by path."""
    folders = (path for path in root.iterdir() if path.is_dir() and path.name not in ELSEWHERE and path.name[0] != ".")
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted(folder.rglob("*.[chp]*"))
        if path.suffix in {".c", ".h", ".py"}
    }


def named_on(page: str) -> set[str]:
    """The identifiers in the rows of the page's tables, without the names of files."""
    spans = (span for line in page.splitlines() if line.startswith("|") for span in CODE.findall(line))
    return {span for span in spans if IDENTIFIER.fullmatch(span) and not span.endswith((".c", ".h", ".py"))}


def timers_of(texts: dict[str, str]) -> dict[str, str]:
    """Each function for a deadline and each duration constant, with the file that defines it."""
    found: dict[str, str] = {}
    for name, text in texts.items():
        room = name.split("/")[1] if name.startswith("csrc/") else ""
        names: list[str] = []
        if name.startswith("csrc/") and name.endswith(".c"):
            names += DEADLINE.findall(text)
        if room in FOLDERS_OF_TIMERS:
            names += DURATION.findall(text)
        if name.startswith("pccl/") and not name.startswith(PROGRAMS):
            names += PYTHON_DURATION.findall(text)
        found.update(dict.fromkeys(names, name))
    return found


def complaints(page: str, texts: dict[str, str]) -> list[str]:
    """What the page and the code disagree about, a line each."""
    listed = named_on(page)
    words = set(re.findall(r"\w+", "\n".join(texts.values())))
    unknown = sorted(name for name in listed if name.split(".")[-1] not in words)
    mentioned = set(re.findall(r"\w+", page))
    return [
        *(f"{TIMERS}: no source has {name}; remove the row or name its successor" for name in unknown),
        *(
            f"{file}: {name} is not in {TIMERS}; add a row there"
            for name, file in sorted(timers_of(texts).items())
            if name not in mentioned
        ),
    ]


STATIC = re.compile(r"^static [^\n;=({]*?\b(\w+)\([^;{]*?\) \{", re.MULTILINE)
TABLE = re.compile(r"\bconst struct \w+ [^=;]*= (\{.*?\n\}|\{[^\n]*\});", re.DOTALL)
MEMBER = re.compile(r"\.\w+ = (\w+)\b(?=[,}\s])")


def unprefixed(texts: dict[str, str]) -> list[str]:
    """The static functions in tables whose names do not begin with their module, a line each."""
    found = []
    for name, text in texts.items():
        if not (name.startswith("csrc/") and name.endswith(".c")):
            continue
        prefix = Path(name).stem.split("_")[0] + "_"
        static = set(STATIC.findall(text))
        members = {member for table in TABLE.findall(text) for member in MEMBER.findall(table)}
        found += [
            f"{name}: {member} stands in a table; begin its name with {prefix}"
            for member in sorted(members & static)
            if not member.startswith(prefix)
        ]
    return found


def oversized(page: str, texts: dict[str, str]) -> list[str]:
    """Complaints about the list of files that everybody who trusts the wire has to read: one is not there, or it is too long."""
    rows = [line for line in page.splitlines() if re.match(r"\| \d ", line)]
    listed = [name for line in rows for name in CODE.findall(line) if name.startswith("csrc/")]
    missing = [f"{THREATS}: there is no {name}" for name in listed if name not in texts]
    lines = sum(texts.get(name, "").count("\n") for name in listed)
    if not listed or lines > TRUSTED_LINES:
        missing.append(f"{THREATS}: {len(listed)} files to trust have {lines} lines; keep them below {TRUSTED_LINES}")
    return missing


def main() -> int:
    """Prints the complaints. Returns the exit status."""
    texts = sources(ROOT)
    found = complaints((ROOT / TIMERS).read_text(encoding="utf-8"), texts) + unprefixed(texts)
    found += oversized((ROOT / THREATS).read_text(encoding="utf-8"), texts)
    print("\n".join(found) or f"{TIMERS} agrees with the code; functions in tables carry their prefix")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
