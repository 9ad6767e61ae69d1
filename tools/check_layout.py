"""Checks that the sources of csrc, cuda and sim keep to the layout of docs/design.md.

Includes go down the list of folders below, never up; no module includes another that includes it, however indirectly.
The library for GPUs (`cuda`) and the simulator (`sim`) may include everything of csrc, which never includes them. A module is
a header and its code. No file is longer than 600 lines, no line than 120 columns. Only `net` uses the descriptor of a stream:
all others call net/transport. Only csrc/base/descriptor.c opens and closes descriptors: one that it does not know stays open in
forked children, and hides the death of their parent. Each public function with a handle asks whose it is: a forked child that
uses one of its parent meets threads that are gone, and locks that nobody will give back.
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
    "link",
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


OPENERS = (
    "socket|socketpair|accept4?|epoll_create1?|eventfd|signalfd|timerfd_create|inotify_init1?|pidfd_open|memfd_create|userfaultfd"
    "|open|openat|creat|fopen|fdopen|opendir|pipe2?|dup[23]?|close|fclose|closedir|popen|mkstemp"
)
BARE = re.compile(rf"(?<![\w.>])({OPENERS})\(|\b(SYS|__NR)_(?!getdents64)\w+|F_DUPFD|SO_PEERPIDFD|SCM_RIGHTS")
FUNCTION = re.compile(r"^(?:static )?pcclResult_t (\w+)\(([^;{]*)\) (\{ [^\n]*|\{\n.*?^\})", re.MULTILINE | re.DOTALL)
HANDLE = re.compile(r"pcclComm_t \*comm\b|pcclMasterInstance_t \*master\b|pcclAsyncReduceOp_t \*reduce_handle\b")
ASKS = re.compile(r"REQUIRE_COMM|REQUIRE_MASTER|api_is_own")


def opens_descriptor(line: str) -> bool:
    """Whether a line opens or closes a descriptor. Those that base/descriptor.h has no function for call `descriptor_end`."""
    code = re.sub(r'"(\\.|[^"\\])*"|//.*', "", line)
    return bool(BARE.search(code)) and "descriptor_end(" not in code


def unasked(api: str) -> list[str]:
    """The public functions of this code that neither ask whose handle they get, nor pass it to one that does."""
    functions = FUNCTION.findall(api)
    asking = [name for name, _, body in functions if ASKS.search(body)]
    passed_on = rf"\b({'|'.join(asking)})\((?:\w+, )*(comm|master)\b"
    public = [(name, body) for name, parameters, body in functions if name.startswith("pccl") and HANDLE.search(parameters)]
    return [name for name, body in public if name not in asking and not re.search(passed_on, body)]


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
            if file.parts[0] != "sim" and file.suffix != ".cu" and file.name != "descriptor.c" and opens_descriptor(line):
                found.add(f"{file}:{number} opens or closes a descriptor without csrc/base/descriptor.h")
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            target = next((folder / name for folder in INCLUDES if (folder / name).is_file()), ROOT / name).relative_to(ROOT)
            if target not in files:
                found.add(f"{file} includes {name}, which is not in csrc, cuda or sim")
                continue
            if FOLDERS.index(folder_of(target)) > FOLDERS.index(folder_of(file)):
                found.add(f"{file} includes {name}, which stands above it")
            if module_of(target) != module_of(file):
                includes[module_of(file)].add(module_of(target))
    api = "\n".join(
        (ROOT / file).read_text(encoding="utf-8") for file in files if folder_of(file) == "api" and file.suffix == ".c"
    )
    found |= {f"{name} must begin with REQUIRE_COMM or REQUIRE_MASTER" for name in unasked(api)}
    found |= {f"modules include each other: {', '.join(circle)}" for circle in circles(includes)}
    for line in sorted(found - KNOWN):
        print(line)
    for line in sorted(KNOWN - found):
        print(f"mended, take it out of {Path(__file__).name}: {line}")
    return 1 if found != KNOWN else 0


if __name__ == "__main__":
    sys.exit(main())
