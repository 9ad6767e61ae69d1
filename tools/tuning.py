"""Writes docs/tuning.md: the constants that tune the library, with the comments of the sources that define them.

python tools/tuning.py [--check]    # --check: complains if the page is out of date, and writes nothing
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tuning.md"

FAR = "[far links](decisions/far-links.md)"
TCP = "[what limits TCP](decisions/what-limits-tcp.md)"
WEIGHTED = "[weighted all-reduce](decisions/weighted-all-reduce.md)"

#: By source: the subject, and where its measurements are.
SOURCES = {
    "csrc/link/pace.h": ("Pace of a link", f"{TCP}; {FAR}"),
    "csrc/link/pace.c": ("Lanes, frames and chunks", f"{TCP}; {FAR}"),
    "csrc/link/throttle.c": ("Limit for all lanes of a far link", FAR),
    "csrc/link/silence.c": ("Silence of a lane", "chosen, not measured"),
    "csrc/net/arrival.c": ("Failure detector", "chosen, not measured; the estimator is that of RFC 6298"),
    "csrc/topology/weights.c": ("Weights of members", WEIGHTED),
    "csrc/topology/pairs.c": ("Links between each two members", WEIGHTED),
    "csrc/ops/plan.c": ("Selection of small operations and segments", TCP),
}

HEAD = """# Tuning constants

Every constant that tunes lanes, rates, weights and failure detection. `tools/tuning.py` writes this page from the
sources, which alone define the values; `make lint` compares. To change a constant, change it in its source, run
`python tools/tuning.py`, and add the measurement to the decision page.
"""

#: Indexes and sizes of arrays, which tune nothing.
INDEXES = {"IN", "OUT", "LIMITS"}

CONSTANT = re.compile(
    r"^(?:#define (?P<macro>[A-Z][A-Z0-9_]*) (?P<macro_value>[^/\n]+?)"
    r"|static const double (?P<number>[A-Z][A-Z0-9_]*) = (?P<number_value>[^;\n]+);"
    r"|    (?P<member>[A-Z][A-Z0-9_]*) = (?P<member_value>[^,\n]+),)[ \t]*(?://[ \t]*(?P<meaning>.*))?$",
    re.MULTILINE,
)


def constants(text: str) -> list[tuple[str, str, str]]:
    """The name, value and meaning of each constant of a source."""
    found = []
    for match in CONSTANT.finditer(text):
        name = match["macro"] or match["number"] or match["member"]
        value = match["macro_value"] or match["number_value"] or match["member_value"]
        above = text[: match.start()].rstrip("\n").rsplit("\n", 1)[-1].strip()
        meaning = match["meaning"] or (above.removeprefix("//").strip() if above.startswith("//") else "")
        if not name.endswith("_H") and name not in INDEXES:
            found.append((name, value.strip(), meaning.replace("|", "\\|")))
    return found


def page(root: Path) -> str:
    """The text of docs/tuning.md for the sources below `root`."""
    parts = [HEAD]
    for source, (subject, measured) in SOURCES.items():
        rows = constants((root / source).read_text(encoding="utf-8"))
        parts.append(
            f"## {subject}\n\n`{source}`. Measurements: {measured}.\n\n| constant | value | unit and meaning |\n|---|---|---|\n"
        )
        parts[-1] += "".join(f"| `{name}` | {value} | {meaning} |\n" for name, value, meaning in rows)
    return "\n".join(parts)


def main() -> int:
    """Writes or compares the page. Returns the exit status."""
    wanted = page(ROOT)
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print("docs/tuning.md is not what the sources say: run `python tools/tuning.py`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
