"""Checks the imports of the Python package: they go down the list of rooms below, and no modules import each other.

Most names of `pccl` come from the table in `pccl/_exports.py` when they are first used. `pccl.Communicator` counts as an import
of `pccl._communicator`, which tools that read import statements alone do not see.
"""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

from check_symbols import circles

ROOT = Path(__file__).resolve().parents[1]

#: From the bottom to the top; rooms in one line stand beside each other. `core`: the modules of `pccl` that have no room.
ROOMS = [
    ("_exports", "_version", "_files", "_waits"),
    ("core",),
    ("state", "lab"),
    ("diloco", "distributed", "_torch_backend"),
    ("torchft", "integrations"),
    ("demo", "stress"),
    ("cli", "_pccl"),
]
#: Imports between rooms of one line.
BESIDE = {("distributed", "_torch_backend"), ("_torch_backend", "distributed")}
#: What is still to be mended: take out what is, add nothing.
KNOWN = {
    "pccl._state imports pccl.state, which stands above it",
    "pccl._state imports pccl.state._entries, which stands above it",
    "pccl._state imports pccl.state._module, which stands above it",
    "modules import each other: pccl._enums pccl._errors",
    "modules import each other: pccl._state pccl.state pccl.state._entries",
}


def room_of(module: str) -> str:
    """The room of a module, by its name."""
    name = module.split(".")[1] if "." in module else "_exports"
    return name if any(name in row for row in ROOMS) else "core"


def level_of(module: str) -> int:
    """The row of ROOMS in which a module stands."""
    return next(level for level, row in enumerate(ROOMS) if room_of(module) in row)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The dotted names that a module imports, those for type checkers left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pccl":
            yield f"pccl.{node.attr}"
        yield from imported(node, package)


def graph(root: Path) -> dict[str, set[str]]:
    """By module: those that it imports."""
    table = runpy.run_path(str(root / "pccl" / "_exports.py"))["PUBLIC"]
    lazy = {f"pccl.{name}": f"pccl.{module}" for module, names in table.items() for name in names}
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in (root / "pccl").rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for module, path in modules.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in imported(ast.parse(path.read_text(encoding="utf-8")), package):
            target = lazy.get(name, name)
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != module:
                found[module].add(target)
    return found


def breaches(imports: dict[str, set[str]]) -> set[str]:
    """One line for each import that goes up or aside, and for each circle."""
    lines = {f"modules import each other: {' '.join(circle)}" for circle in circles(imports)}
    for module, targets in imports.items():
        for target in targets:
            here, there = room_of(module), room_of(target)
            if level_of(target) > level_of(module):
                lines.add(f"{module} imports {target}, which stands above it")
            elif here != there and level_of(target) == level_of(module) > 0 and (here, there) not in BESIDE:
                lines.add(f"{module} imports {target}, which stands beside it")
    return lines


def main() -> int:
    """Prints each breach; returns 1 if there is one."""
    found = breaches(graph(ROOT))
    for line in sorted(found - KNOWN):
        print(line)
    for line in sorted(KNOWN - found):
        print(f"mended, take it out of {Path(__file__).name}: {line}")
    return 1 if found != KNOWN else 0


if __name__ == "__main__":
    sys.exit(main())
