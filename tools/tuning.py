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
SEGMENTS = "[segments are operations](decisions/segments-are-ops.md)"
STATE = "[shared state](benchmarks.md#state-for-a-joiner)"
CHOSEN = "chosen, not measured"

#: By source: the subject, and where its measurements are.
SOURCES = {
    "csrc/link/pace.h": ("Pace of a link", f"{TCP}; {FAR}"),
    "csrc/link/pace.c": ("Lanes, frames and chunks", f"{TCP}; {FAR}"),
    "csrc/link/throttle.c": ("Limit for all lanes of a far link", FAR),
    "csrc/link/failure_detector.c": ("Failure detector of a lane", CHOSEN),
    "csrc/net/arrival.c": ("Failure detector", f"{CHOSEN}; the estimator is that of RFC 6298"),
    "csrc/topology/weights.c": ("Weights of members", WEIGHTED),
    "csrc/topology/pairs.c": ("Links between each two members", WEIGHTED),
    "csrc/ops/plan.h": ("Small operations and segments", f"{TCP}, for small operations; {SEGMENTS}"),
    "csrc/ops/plan.c": ("Selection of algorithms", f"{TCP}; `SEGMENT_ALIGN`: {CHOSEN}"),
    "csrc/master/matrix.h": (
        "Reports that the master keeps",
        "`MATRIX_SENT`: of six bursts of DiLoCo over a far link, one alone overflowed a queue, so the worst report of a few is"
        f" left out; the others: {CHOSEN}",
    ),
    "csrc/master/matrix.c": ("Looks at the members' reports", CHOSEN),
    "csrc/master/selection.c": ("Survey of the links, and change of weights", CHOSEN),
    "csrc/state/leaf.h": ("Leaves that are packed", CHOSEN),
    "csrc/state/leaf.c": (
        "When packing a leaf pays, and its helpers",
        f"{STATE}; each constant: {CHOSEN}",
    ),
    "csrc/state/delta.h": ("Leaves that are asked of donors", CHOSEN),
    "csrc/state/content.c": ("Hashes of a shared state", CHOSEN),
}

HEAD = """# Tuning constants

Every constant that tunes lanes, rates, weights, operations, shared state and failure detection. `tools/tuning.py` writes this
page from the sources, which alone define the values; `make lint` compares. To change a constant, change it in its source, run
`python tools/tuning.py`, and add the measurement to the decision page. *Chosen, not measured* means that no measurement is
known.
"""

#: Indexes, sizes of arrays and units, which tune nothing.
INDEXES = {"IN", "OUT", "LIMITS", "BYTES_PER_MEGABYTE", "FIRST_RATE_SLOTS", "DELTA_MAX_DONORS"}

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
