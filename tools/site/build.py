#!/usr/bin/env python3
"""Builds the documentation as a site: tools/site/build.py OUT

It copies the pages and what they link to, makes the reference pages from the sources, and runs Sphinx, to which each warning is
an error. Beside the pages it puts the simulator for browsers. It needs the package as `make build` installs it, and what
`make site` installs.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from enum import EnumType
from pathlib import Path

import simulator

import pccl
from pccl import Diagnosis, Result
from pccl._core.errors import error_for
from pccl._exports import modules_of
from pccl.cli import info
from pccl.monitor.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
COMMENT = re.compile(r"// ?(.*)")
MODULES = {
    "pccl.distributed": "distributed",
    "pccl.diloco": "diloco",
    "pccl.data": "data",
    "pccl.notice": "leaving",
    "pccl.state": "checkpoints",
    "pccl.cuda": "cuda",
    "pccl.torchft": "torchft",
}
"""Public modules beside `pccl`, and the guide of each."""

SIMULATOR = """
## Try it

<p><a href="../simulator.html">The simulator in a window of its own</a></p>
<iframe src="../simulator.html" title="the simulator" style="width: 100%; height: 60rem; border: 1px solid #8888"></iframe>
"""


def main() -> int:
    """Returns the exit status of Sphinx."""
    out = Path(sys.argv[1] if len(sys.argv) == 2 else "build/site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        copy_pages(source)
        with (source / "docs" / "simulator.md").open("a") as page:
            page.write(SIMULATOR)
        (source / "reference").mkdir()
        (source / "reference" / "c.md").write_text(c_page(ROOT / "csrc" / "include" / "pccl.h"))
        (source / "reference" / "python.md").write_text(python_page())
        (source / "reference" / "commands.md").write_text(commands_page())
        (source / "reference" / "tables.md").write_text(tables_page(ROOT / "csrc" / "include" / "pccl.h"))
        (source / "index.md").write_text(index_page((ROOT / "docs" / "README.md").read_text()))
        command = ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-j", "2", "-c", str(HERE), str(source), str(out)]
        status = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
    if status == 0:
        simulator.build(out / "simulator.html")
        print(out / "index.html")
    return status


def copy_pages(to: Path) -> None:
    """All pages of the project, and the files that they link to, each at its place."""
    waiting = {ROOT / name for name in ("README.md", "CHANGELOG.md")} | set((ROOT / "docs").rglob("*.md"))
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        done.add(path)
        target = to / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copy(path, target)
            continue
        text, linked = rewrite(path)
        target.write_text(text)
        waiting |= linked - done


def rewrite(path: Path) -> tuple[str, set[Path]]:
    """The text of a page, in which each link leads to a file, and these files. A link to a folder without a page is left out."""
    linked = set()

    def link(match: re.Match[str]) -> str:
        target = (path.parent / match[2]).resolve()
        if target.is_dir() and not (target / "README.md").is_file():
            return match[1].removesuffix("](").removeprefix("[")
        if target.is_dir():
            linked.add(target / "README.md")
            return f"{match[1]}{match[2].rstrip('/')}/README.md{match[3] or ''})"
        if not target.is_file() or not target.is_relative_to(ROOT):
            raise SystemExit(f"{path}: there is no {match[2]}")
        linked.add(target)
        return match[0]

    return LINK.sub(link, path.read_text()), linked


def index_page(contents: str) -> str:
    """The first page: the README, and beside each page the groups of docs/README.md."""
    page = ["```{include} README.md", "```", ""]
    listed = set()
    for caption, entries in re.findall(r"^([A-Z][^\n:]*):?\n\n((?:- [^\n]*\n)+)", contents, re.M):
        links = [link for link in re.findall(r"\]\(([\w-]+)\.md\)", entries) if link not in listed]
        listed |= set(links)
        page += toctree(caption, [f"docs/{link}" for link in links])
    others = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if path.stem not in {*listed, "README"})
    page += toctree("Reference", ["reference/python", "reference/c", "reference/commands", "reference/tables", "CHANGELOG"])
    page += toctree("More", ["docs/README", *(f"docs/{name}" for name in others)])
    page += toctree(
        "Decisions and measurements", ["docs/decisions/*", "bench/*", "bench/*/*", "examples/*/README", "CONTRIBUTING"]
    )
    return "\n".join(page)


def toctree(caption: str, entries: list[str]) -> list[str]:
    """Pages in the bar beside each page."""
    return ["```{toctree}", f":caption: {caption}", ":maxdepth: 1", ":glob:", ":hidden:", "", *entries, "```", ""]


def c_page(header: Path) -> str:
    """The reference of the C library: its declarations, with the comments before them."""
    parts = (header, header.with_name("pccl_diagnosis.h"))
    head, *declarations = c_declarations([line for part in parts for line in part.read_text().splitlines()])
    page = ["# C", "", "`#include <pccl.h>`, and link with `-lpccl`.", "", *head[0], ""]
    for comment, code in declarations:
        names = re.findall(
            r"\b(pccl\w+|PCCL_[A-Z_]+)\b(?=\s*(?:\(|;$))", code[-1] if code[-1].startswith("}") else " ".join(code)
        )
        if not names or code[0].startswith("#"):
            continue
        page += [f"## {names[0]}", "", "```c", *(line.removeprefix("PCCL_EXPORT ") for line in code), "```", "", *comment, ""]
    return "\n".join(page)


def c_declarations(lines: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The comment and the lines of each declaration. The first has the comment of the file, and no lines."""
    comment: list[str] = []
    code: list[str] = []
    begun = False
    for line in lines:
        text = COMMENT.fullmatch(line)
        if text and not code:
            comment.append(text[1].replace("<", "\\<").replace("*", "\\*").replace("_", "\\_"))
            continue
        if not line.strip() and not code:
            continue
        if not begun:
            begun = True
            yield comment, []
            comment = []
        if line.startswith("#"):
            comment = []
            continue
        code.append(line)
        if (
            line.rstrip().partition("//")[0].rstrip().endswith(";")
            and sum(part.count("{") - part.count("}") for part in code) == 0
        ):
            yield comment, code
            comment, code = [], []
        elif line.startswith("extern") or line.strip() in ("}", "};"):
            comment, code = [], []


def python_page() -> str:
    """The reference of the Python package: first what programs make, last the errors."""
    names = [name for name, module in modules_of("pccl").items() if module != "pccl"]
    errors = {name for name in names if name.endswith("Error")}
    first = ["Communicator", "MasterNode", "SharedState", "Group", "CollectiveHandle", "AsyncReduceHandle"]
    page = ["# Python", "", "## pccl", ""]
    for name in sorted(names, key=lambda name: (name in errors, first.index(name) if name in first else len(first), name)):
        options = [] if name in errors else ["   :inherited-members: object, tuple, int"]
        if isinstance(getattr(pccl, name), EnumType):
            options = ["   :undoc-members:"]
        page += [f"### {name}", "", "```{eval-rst}", f".. autoclass:: pccl.{name}", "   :members:", *options, "```", ""]
    for module, guide in MODULES.items():
        page += [f"## {module}", "", f"[Guide](../docs/{guide}.md)", ""]
        others = ["   :imported-members:"] if hasattr(importlib.import_module(module), "__path__") else []
        page += ["```{eval-rst}", f".. automodule:: {module}", "   :members:", *others, "```", ""]
    return "\n".join(page)


def commands_page() -> str:
    """The reference of the commands."""
    rst = ["```{eval-rst}", ".. click:: pccl.cli:main", "   :prog: pccl", "   :nested: full", "```"]
    return "\n".join(["# Commands", "", *rst, ""])


def tables_page(header: Path) -> str:
    """The reference of what has a name and no declaration: environment variables, result codes and metrics."""
    page = ["# Variables, codes and metrics", "", "## Environment variables", ""]
    page += ["`pccl info` shows their values. [Operations](../docs/operations.md#environment) has defaults.", ""]
    page += table(("variable", "meaning"), ((f"`{name}`", meaning) for name, meaning in info.environment().items()))
    page += ["## Result codes", "", "[Troubleshooting](../docs/troubleshooting.md#errors) says what to do.", ""]
    page += table(("code", "C", "Python", "raises", "meaning"), result_codes(header.read_text()))
    page += ["## Metrics", "", "`/metrics` of [the page](../docs/monitoring.md#metrics).", ""]
    metrics = Metrics()
    metrics.observe(Diagnosis((), (), (), 5.0), ())
    rows = []
    for family in metrics.collect():
        name = f"{family.name}{ {'counter': '_total', 'info': '_info'}.get(family.type, '') }"
        rows.append((f"`{name}`", family.type, ", ".join(getattr(family, "_labelnames", ())), family.documentation))
    return "\n".join(page + table(("name", "type", "labels", "meaning"), rows))


def result_codes(header: str) -> Iterator[tuple[str, ...]]:
    """A row for each code of `pcclResult_t`. Its comment stands behind it, or before it."""
    match = re.search(r"typedef enum pcclResult_t \{(.*?)\}", header, re.S)
    assert match is not None
    for before, name, code, behind in re.findall(r"(?:// ([^\n]*)\n *)?(pccl\w+) = (\d+),? *(?://([^\n]*))?", match[1]):
        result = Result(int(code))
        raised = "" if result is Result.SUCCESS else f"`{type(error_for(int(code), '')).__name__}`"
        yield code, f"`{name}`", f"`{result.name}`", raised, (before or behind).strip()


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)] + [""]


if __name__ == "__main__":
    sys.exit(main())
