"""Checks the imports of the Python package: they go down the list of layers below, and no modules import each other.

Imports below `if TYPE_CHECKING:` count like all others. The public names of a package come from the modules that its stub
`__init__.pyi` names, when they are first used. So `pccl.Communicator` counts as an import of `pccl._peer.communicator`, which
tools that read import statements alone do not see.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from check_symbols import circles

ROOT = Path(__file__).resolve().parents[1]

#: From the bottom to the top. A name is a module of `pccl`, or a folder with all that is in it. What is in one line stands beside
#: each other: no import goes from one to another. Inside a folder only circles are forbidden.
LAYERS = [
    ("_native", "_sparse_forms", "_snapshot_kernels", "_exports", "_version", "_host", "notice", "lab"),
    ("_core", "state._snapshots.code", "state._snapshots.placement"),
    ("_run", "_ops", "_watch", "cuda", "state._local", "state._snapshots.config"),
    ("_peer", "master"),
    ("state",),
    ("_torch_backend", "diloco", "distributed"),
    ("torchft", "data"),
    ("__init__", "integrations", "monitor", "stress"),
    ("__main__", "_pccl", "cli", "demo"),
]
#: Imports between rooms of one line: the backend that torch finds by itself is a part of `distributed`.
BESIDE = {("distributed", "_torch_backend"), ("_torch_backend", "distributed")}
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}


def room_of(module: str) -> str | None:
    """The name in LAYERS under which a module is; the longest one. None: there is none."""
    path = module.removeprefix("pccl").lstrip(".") or "__init__"
    while path and path not in LEVELS:
        path = path.rpartition(".")[0]
    return path or None


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The dotted names that a module imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pccl":
            yield f"pccl.{node.attr}"
        yield from imported(node, package)


def module_at(path: Path, root: Path) -> str:
    """The dotted name of a source."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def homes(stub: Path) -> Iterator[tuple[str, str]]:
    """The public names of a package, each with the name under which its module defines it."""
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def graph(root: Path) -> dict[str, set[str]]:
    """By module: those that it imports."""
    modules = {path: module_at(path, root) for kind in ("py", "pyi") for path in (root / "pccl").rglob(f"*.{kind}")}
    lazy = {f"{modules[stub]}.{name}": home for stub in modules if stub.name == "__init__.pyi" for name, home in homes(stub)}
    found: dict[str, set[str]] = {module: set() for module in modules.values()}
    for path, module in modules.items():
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        for name in imported(ast.parse(path.read_text(encoding="utf-8")), package):
            target = lazy.get(name, name)
            while target and target not in found:
                target = target.rpartition(".")[0]
            if target and target != module:
                found[module].add(target)
    return found


def breaches(imports: dict[str, set[str]]) -> set[str]:
    """One line for each module without a layer, for each import that goes up or aside, and for each circle."""
    lines = {f"modules import each other: {' '.join(circle)}" for circle in circles(imports)}
    for module, targets in imports.items():
        here = room_of(module)
        if here is None:
            lines.add(f"{module} has no layer")
            continue
        for target in targets:
            there = room_of(target)
            if there is None or there == here:
                continue
            if LEVELS[there] > LEVELS[here]:
                lines.add(f"{module} imports {target}, which stands above it")
            elif LEVELS[there] == LEVELS[here] and (here, there) not in BESIDE:
                lines.add(f"{module} imports {target}, which stands beside it")
    return lines


def main() -> int:
    """Prints each breach; returns 1 if there is one."""
    found = breaches(graph(ROOT))
    for line in sorted(found):
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
