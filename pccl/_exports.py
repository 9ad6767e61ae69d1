"""Public names, imported when they are first used. The one list of a package's names is its stub, `__init__.pyi`."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_tables: dict[str, dict[str, str]] = {}


def modules_of(package: str) -> dict[str, str]:
    """Returns by public name of a package the module that defines it: the lines `from MODULE import NAME as NAME` of its stub."""
    if package not in _tables:
        path = os.path.join(os.path.dirname(os.path.dirname(__file__)), *package.split("."), "__init__.pyi")
        with open(path, encoding="utf-8") as lines:
            words = [line.split() for line in lines]
        _tables[package] = {line[3]: line[1] for line in words if line[:1] == ["from"]}
    return _tables[package]


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package that imports the modules of its public names when they are first used."""

    def import_name(name: str) -> Any:
        module = modules_of(package).get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        if module == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        own = vars(sys.modules[package])
        return sorted({*own, *own["__all__"], *(name for name, module in modules_of(package).items() if module != package)})

    return import_name, list_names


def publish(namespace: dict[str, Any]) -> None:
    """Adds the public names of a module to its package, and sets their `__module__` to it, for help(), tracebacks and pickles.

    The last call of each module that a stub names. A package is what stands before the first private part of a module's name.
    """
    module = namespace["__name__"]
    package = module.partition("._")[0]
    for name, home in modules_of(package).items():
        if home == module:
            value = namespace[name]
            setattr(sys.modules[package], name, value)
            if getattr(value, "__module__", "") == module:
                value.__module__ = package


def require_torch(package: str) -> None:
    """ModuleNotFoundError: torch, which a package needs, is not installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{package} needs torch: pip install 'pccl[torch]' ({error})", name=error.name) from None
