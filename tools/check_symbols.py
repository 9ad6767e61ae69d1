"""Checks the symbols of the built core: what each object defines, and which objects it needs.

    python tools/check_symbols.py [--require] [BUILD]

No circle of objects, no global defined twice, and every global function carries the prefix of its module. Includes cannot
show these: a declaration of another module's symbol needs no include. The script reads the objects of `libpccl_core`,
`libpccl_cuda_parts` and `libpccl_sim` with `nm`, in BUILD or in the newest build below `build/` that has them. Without an
up-to-date build it says so and returns 0, or 1 with --require.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: By library: the folder of its sources, and the prefix of its modules in the messages and tables below.
LIBRARIES = {"pccl_core": ("csrc", ""), "pccl_cuda_parts": ("cuda", "cuda/"), "pccl_sim": ("sim", "sim/")}

#: Prefixes of a whole folder, beside those of its modules.
FOLDERS = {"api": ("api_", "pccl"), "sim": ("sim_", "pccl_sim_", "judge_")}

#: Circles that exist. Take them apart; add none.
CIRCLES: dict[str, str] = {}

#: Prefixes that are not the module's: what they name has no file of its own yet. Rename, split or merge; add none.
PREFIXES = {
    "base/platform": {"wake_": "the descriptor that wakes a thread, part of the interface to the system"},
    "compute/kernels": {"dtype_": "types and operators are those of the tables", "red_": "likewise"},
    "data/core": {"engine_": "the part of the engine that the modules below it may call"},
    "data/algorithms/direct": {"algorithm_": "called by data/algorithm alone"},
    "link/frame": {"block_": "what frames and ops lie in"},
    "master/survivors": {"configuration_": "the epoch that a survivor reports"},
    "ops/members": {"epoch_": "all members", "subgroup_": "those that a call names", "team_": "those that are both"},
    "peer/decision": {"member_": "the output of peer/member"},
    "sim/effect": {"refuse_": "asked by sim/refuse"},
}


class Objects:
    """The objects of a build, by the path of their source without its suffix: their global symbols and those they need."""

    def __init__(self, build: Path) -> None:
        self.defined: dict[str, dict[str, str]] = {}
        self.needed: dict[str, set[str]] = {}
        for library, (sources, prefix) in LIBRARIES.items():
            folder = build / "CMakeFiles" / f"{library}.dir" / sources
            for path in sorted(folder.rglob("*.c.o")):
                source = path.relative_to(folder).with_suffix("")
                if (ROOT / sources / source).is_file():  # not one that a removed file has left behind
                    self._read(path, prefix + str(source.with_suffix("")))

    def _read(self, path: Path, name: str) -> None:
        defined, needed = self.defined.setdefault(name, {}), self.needed.setdefault(name, set())
        for line in subprocess.run(["nm", "-g", path], capture_output=True, text=True, check=True).stdout.splitlines():
            *_, kind, symbol = line.split()
            if kind in "Uw":
                needed.add(symbol)
            else:
                defined[symbol] = kind

    def owners(self) -> dict[str, list[str]]:
        """By symbol: the objects that define it."""
        owners = defaultdict(list)
        for name, symbols in self.defined.items():
            for symbol in symbols:
                owners[symbol].append(name)
        return owners

    def graph(self) -> dict[str, set[str]]:
        """By object: those that it needs."""
        owners = self.owners()
        return {name: {owner for symbol in self.needed[name] for owner in owners[symbol]} - {name} for name in self.defined}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The largest sets of objects that need each other, by Tarjan's algorithm; the names in each are sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def prefixes_of(module: str) -> set[str]:
    """What a function of this module may begin with: its name in the singular or plural, or the name that it extends.

    `ops/call_table_epochs` is a part of `ops/call_table`, so `call_table_` is right for it.
    """
    words = Path(module).name.split("_")
    names = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
    names |= {name[:-1] for name in names if name.endswith("s")} | {name[:-2] for name in names if name.endswith("es")}
    return {f"{form}_" for name in names for form in (name, f"{name}s")}


def breaches(objects: Objects) -> list[str]:
    """One line for each breach, and for each exception that nothing needs any more."""
    lines = []
    for symbol, owners in sorted(objects.owners().items()):
        if len(owners) > 1:
            lines.append(f"{symbol} is defined in {' and '.join(owners)}")
    found = {" ".join(circle) for circle in circles(objects.graph())}
    lines += [f"objects need each other: {circle}" for circle in sorted(found - CIRCLES.keys())]
    lines += [f"mended, take it out of CIRCLES: {circle}" for circle in sorted(CIRCLES.keys() - found)]
    for module, symbols in sorted(objects.defined.items()):
        folder, unused = module.split("/")[0], set(PREFIXES.get(module, ()))
        for symbol in sorted(symbol for symbol, kind in symbols.items() if kind == "T" and not symbol.startswith("__wrap_")):
            name = Path(module).name
            if symbol == name or symbol.startswith((*prefixes_of(module), *FOLDERS.get(folder, ()))):
                continue
            known = {prefix for prefix in PREFIXES.get(module, ()) if symbol.startswith(prefix)}
            unused -= known
            if not known:
                lines.append(f"{module}.c: {symbol} has not the prefix of its module, {name}_")
        lines += [f"mended, take it out of PREFIXES: {module} {prefix}" for prefix in sorted(unused)]
    lines += [f"gone, take it out of PREFIXES: {module}" for module in sorted(PREFIXES.keys() - objects.defined.keys())]
    return lines


def is_fresh(build: Path) -> bool:
    """Whether each source was compiled since it changed; a source of another processor has no object."""
    for library, (folder, _) in LIBRARIES.items():
        made = (build / f"lib{library}.a").stat().st_mtime
        for source in (ROOT / folder).rglob("*.c"):
            path = build / "CMakeFiles" / f"{library}.dir" / f"{source.relative_to(ROOT)}.o"
            compiled = path.stat().st_mtime if path.is_file() else made
            if compiled < source.stat().st_mtime:
                return False
    return True


def newest_build() -> Path | None:
    """The newest build of the core without sanitizers or fuzzing that is up to date."""
    builds = {}
    for library in ROOT.glob("build/*/libpccl_core.a"):
        cache = library.with_name("CMakeCache.txt").read_text(encoding="utf-8")
        plain = "PCCL_SANITIZE:STRING=\n" in cache and "PCCL_BUILD_FUZZ:BOOL=OFF" in cache
        whole = all(library.with_name(f"lib{name}.a").is_file() for name in LIBRARIES)
        if plain and whole and is_fresh(library.parent):
            builds[library.parent] = library.stat().st_mtime
    return max(builds, key=lambda path: builds[path], default=None)


def main() -> int:
    """Prints each breach; returns 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=Path, help="folder of the build; default: the newest below build/")
    parser.add_argument("--require", action="store_true", help="fail if no build is up to date")
    arguments = parser.parse_args()
    build = arguments.build or newest_build()
    if build is None:
        print("symbols: not checked, no build is up to date (`make build` makes one)")
        return 1 if arguments.require else 0
    objects = Objects(build)
    lines = breaches(objects)
    print(*lines, sep=os.linesep, end=os.linesep if lines else "")
    largest = max(map(len, circles(objects.graph())), default=1)
    print(f"symbols: {len(objects.defined)} objects in {build}, {largest} in the largest circle")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
