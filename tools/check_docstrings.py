"""Checks the docstrings of public classes, functions and methods: python tools/check_docstrings.py

Each has one. It names each parameter (that of a class serves its methods, too), each error that the body raises, and the unit of
each parameter that is a time.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("pccl", "pccl.cuda", "pccl.data", "pccl.diloco", "pccl.distributed", "pccl.notice", "pccl.state", "pccl.torchft")
NOT_FOR_USERS = re.compile(
    r"pccl\.(distributed|torchft)\.ProcessGroup\.|pccl\.Communicator\.launch|pccl\.AsyncReduceHandle\.__init__|.*\.to_c_inpl|.*name_of_run"
    r"|pccl\.state\.(?!(allow|drain|load|save|MemoryReader|MemoryWriter|Snapshots)\b)|pccl\.notice\.as_notice"
)
"""What torch or the package itself calls."""
TIMES = re.compile(r"timeout|interval|limit|linger|every|within|patience|wait_for_master|(.*_)?seconds")
"""Parameters that are times if they are annotated as floats."""
OBVIOUS = {"self", "cls", "exc_type", "exc", "error", "traceback", "args", "kwargs", "path"}


def public(module: Any) -> Iterator[tuple[str, type | None, Callable[..., Any]]]:
    """Yields name, class and function of all that users call in a module: functions, and methods of classes of this package."""
    for name in getattr(module, "__all__", None) or [name for name, value in vars(module).items() if in_module(value, module)]:
        value = getattr(module, name)
        if inspect.isclass(value) and value.__module__.startswith("pccl"):
            for member, function in inspect.getmembers(value, inspect.isfunction):
                if in_package(function) and not given_by_others(value, member) and (member[0] != "_" or member == "__init__"):
                    yield f"{module.__name__}.{name}.{member}", value, function
        elif inspect.isfunction(value) and in_package(value):
            yield f"{module.__name__}.{name}", None, value


def in_module(value: Any, module: Any) -> bool:
    """Whether a module defines the public class or function."""
    return getattr(value, "__module__", "") == module.__name__ and str(value.__name__)[0] != "_"


def in_package(value: Any) -> bool:
    """Whether pccl defines it."""
    return str(value.__module__).startswith("pccl")


def given_by_others(owner: type, member: str) -> bool:
    """Whether a method belongs to an interface of another package, such as torch, which documents it."""
    bases = [base for base in owner.__mro__ if not in_package(base) and base is not object]
    return member != "__init__" and any(member in vars(base) for base in bases)


@functools.cache
def described_fields() -> set[tuple[str, str]]:
    """Returns class and name of each field of the package that a comment on its line, or a docstring behind it, describes."""
    found = set()
    for path in (ROOT / "pccl").rglob("*.py"):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
        for owner in classes:
            for field, after in itertools.zip_longest(owner.body, owner.body[1:]):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    if documented or "#" in lines[field.lineno - 1]:
                        found.add((owner.name, field.target.id))
    return found


def raised(function: Callable[..., Any]) -> set[str]:
    """Returns the names of the errors that a body raises itself."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:  # made at run time
        return set()
    raises = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    names = (ast.unparse(node.func) for node in raises if isinstance(node, ast.Call))
    return {name.rpartition(".")[2] for name in names if re.search(r"(Error|Exit|Left)$", name)}


def referred_to(value: Any) -> list[str]:
    """Returns the names of what has the same arguments as a class or function, by its docstring."""
    text = getattr(value, "__doc__", None) or ""
    return [
        one or other
        for one, other in re.findall(r"as `(\w+)` (?:is|does), with the same arguments|: as\s+of\s+`?([\w.]+\w)", text)
    ]


def named(target: str, name: str, owner: type | None, function: Callable[..., Any]) -> Any:
    """Returns what a docstring names: of a class, the method of the same name if it has one."""
    first, *rest = target.removeprefix("pccl.").split(".")
    places = [owner, sys.modules[name.rpartition(".")[0].rpartition(".")[0] or "pccl"], sys.modules["pccl"]]
    found = next((getattr(place, first) for place in places if hasattr(place, first)), None)
    for part in rest:
        found = getattr(found, part, None)
    return getattr(found, function.__name__, found) if function.__name__ != "__init__" else found


def breaches(name: str, owner: type | None, function: Callable[..., Any]) -> list[str]:
    """Returns what a docstring lacks."""
    own = function.__doc__ or ""
    if not own and not name.endswith("__init__"):
        return [f"{name}: no docstring"]
    twin = getattr(owner, function.__name__.removesuffix("_async"), None)
    texts = [function, twin, *(owner.__mro__[:-1] if owner else ())]
    texts += [named(target, name, owner, function) for each in texts for target in referred_to(each)]
    text = "\n".join(getattr(each, "__doc__", None) or "" for each in texts)
    lines = []
    for parameter in inspect.signature(function).parameters.values():
        word = parameter.name
        if (
            word in OBVIOUS
            or word[0] == "_"
            or any((base.__name__, word) in described_fields() for base in getattr(owner, "__mro__", ()))
        ):
            continue
        if not re.search(rf"\b{word}\b", text):
            lines.append(f"{name}: it does not say what `{word}` is")
        elif TIMES.fullmatch(word) and "float" in str(parameter.annotation) and not re.search(r"second|\bs\b", text):
            lines.append(f"{name}: it does not say that `{word}` is in seconds")
    lines += [f"{name}: it raises {error}, unnamed" for error in sorted(raised(function)) if error not in text]
    return lines


def main() -> int:
    """Returns 1 if a docstring lacks something."""
    seen: set[Any] = set()
    lines = []
    for module in MODULES:
        for name, owner, function in public(importlib.import_module(module)):
            if (owner, function) not in seen and not NOT_FOR_USERS.match(name):
                seen.add((owner, function))
                lines += breaches(name, owner, function)
    print(*lines, f"docstrings: {len(seen)} checked, {len(lines)} lack something", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
