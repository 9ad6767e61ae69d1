"""tools/check_tables.py: what it finds where docs/timers.md and the sources differ."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_tables.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_tables", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = "| `link_deadline` (`peer/link.c`), `PAUSE_MS`, `WAIT_SECONDS` |\nIn prose `anything` may stand.\n"
SOURCES = {
    "csrc/peer/link.c": "enum { PAUSE_MS = 10 };\nint64_t link_deadline(const struct link *link) {\n    return link->at;\n}\n",
    "pccl/_waits.py": "WAIT_SECONDS = 1.0\n",
}


def test_agreement(tool: ModuleType) -> None:
    assert tool.complaints(PAGE, SOURCES) == []


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("csrc/peer/other.c", "static int64_t other_deadline(struct other *other,\n    int x) {\n", "other_deadline"),
        ("csrc/net/other.c", "int64_t other_deadline_ns(void) {\n", "other_deadline_ns"),
        ("csrc/master/other.h", "enum {\n    OTHER_MS = 20,\n};\n", "OTHER_MS"),
        ("pccl/_other.py", "_OTHER_SECONDS = 2\n", "_OTHER_SECONDS"),
    ],
)
def test_a_timer_that_the_page_lacks(tool: ModuleType, path: str, text: str, name: str) -> None:
    (line,) = tool.complaints(PAGE, {**SOURCES, path: text})
    assert line.startswith(f"{path}: {name} ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("csrc/peer/other.c", "    if (other_deadline(other) > now) return;\n"),
        ("csrc/peer/other.h", "int64_t other_deadline(const struct other *other);\n"),
        ("csrc/compute/other.c", "enum { SPAN_MS = 20 };\n"),
        ("csrc/master/other.h", "enum { DEFAULT_MEGABYTES_PER_S = 1000 };\n"),
        ("pccl/stress/other.py", "OTHER_SECONDS = 2\n"),
    ],
)
def test_what_is_no_timer(tool: ModuleType, path: str, text: str) -> None:
    assert tool.complaints(PAGE, {**SOURCES, path: text}) == []


def test_a_row_without_code(tool: ModuleType) -> None:
    without = {
        "csrc/peer/link.c": SOURCES["csrc/peer/link.c"].replace("link_deadline", "link_until"),
        "pccl/_waits.py": "WAIT_SECONDS = 1.0",
    }
    (line,) = tool.complaints(PAGE, without)
    assert "link_deadline" in line


CALLBACKS = """static bool begin(struct op *op) {
    return true;
}

static bool ring_next(struct op *op) {
    return false;
}

const struct algorithm ring_algorithm = {
    .begin = begin,
    .next = ring_next,
};
"""


def test_callbacks_carry_a_prefix(tool: ModuleType) -> None:
    (line,) = tool.unprefixed({"csrc/data/algorithms/ring.c": CALLBACKS})
    assert "begin stands in a table" in line
    assert tool.unprefixed({"csrc/data/algorithms/ring.c": CALLBACKS.replace("begin", "ring_begin")}) == []


@pytest.mark.parametrize(
    ("page", "lines", "words"),
    [
        ("| 1 | `csrc/net/a.h`, `csrc/net/a.c` | that |", 3000, []),
        ("| 1 | `csrc/net/a.h`, `csrc/net/a.c` | that |", 3001, ["2 files to trust have 6002 lines"]),
        ("| 1 | `csrc/net/b.c` | that |", 1, ["there is no csrc/net/b.c"]),
        ("no table", 1, ["0 files to trust have 0 lines"]),
    ],
)
def test_what_must_be_read_to_trust_the_wire(tool: ModuleType, page: str, lines: int, words: list[str]) -> None:
    found = tool.oversized(page, dict.fromkeys(("csrc/net/a.h", "csrc/net/a.c"), "\n" * lines))
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))
