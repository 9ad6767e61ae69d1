"""Checks that the sources of csrc, cuda and sim keep to the layout of docs/design.md.

Includes go down the list of folders below, never up; no module includes another that includes it, however indirectly.
The library for GPUs (`cuda`) and the simulator (`sim`) may include everything of csrc, which never includes them. A module is
a header and its code. No file is longer than 600 lines, no line than 120 columns. Only `net` uses the descriptor of a stream:
all others call net/transport.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

from check_symbols import circles

ROOT = Path(__file__).resolve().parents[1]
#: Where quoted includes are looked up.
INCLUDES = (ROOT / "csrc", ROOT / "csrc" / "include", ROOT)

#: From the bottom to the top; all but `cuda` and `sim` are in csrc.
FOLDERS = [
    "include",
    "base",
    "net",
    "compute",
    "topology",
    "device",
    "ops",
    "data",
    "state",
    "master",
    "peer",
    "api",
    "cuda",
    "sim",
]
LONGEST = 600
WIDEST = 120

#: What is still to be mended: take out what is, add nothing.
KNOWN: set[str] = set()


def folder_of(path: Path) -> str:
    """The room of a file: `csrc/data/algorithms` belongs to `data`."""
    return path.parts[1] if path.parts[0] == "csrc" else path.parts[0]


def module_of(path: Path) -> str:
    """The module of a file: its path without csrc and the suffix. Headers for the module's own files alone are part of it."""
    return re.sub(r"_(private|levels)$", "", str(path.with_suffix("")).removeprefix("csrc/"))


def main() -> int:
    """Print each breach of the layout; 1 where there is one."""
    paths = [path for folder in ("csrc", "cuda", "sim") for path in (ROOT / folder).rglob("*")]
    files = sorted(path.relative_to(ROOT) for path in paths if path.suffix in (".c", ".h", ".cu"))
    found: set[str] = set()
    includes: dict[str, set[str]] = defaultdict(set)
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        if text.count("\n") > LONGEST:
            found.add(f"{file} is longer than {LONGEST} lines")
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > WIDEST:
                found.add(f"{file}:{number} is wider than {WIDEST} columns")
            if folder_of(file) != "net" and re.search(r"\bstream->fd\b", line):
                found.add(f"{file}:{number} uses the descriptor of a stream, which belongs to net")
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            target = next((folder / name for folder in INCLUDES if (folder / name).is_file()), ROOT / name).relative_to(ROOT)
            if target not in files:
                found.add(f"{file} includes {name}, which is not in csrc, cuda or sim")
                continue
            if FOLDERS.index(folder_of(target)) > FOLDERS.index(folder_of(file)):
                found.add(f"{file} includes {name}, which stands above it")
            if module_of(target) != module_of(file):
                includes[module_of(file)].add(module_of(target))
    found |= {f"modules include each other: {', '.join(circle)}" for circle in circles(includes)}
    for line in sorted(found - KNOWN):
        print(line)
    for line in sorted(KNOWN - found):
        print(f"mended, take it out of {Path(__file__).name}: {line}")
    return 1 if found != KNOWN else 0


if __name__ == "__main__":
    sys.exit(main())
