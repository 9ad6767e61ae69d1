"""Loads the compiled core."""

from collections.abc import Iterable
from typing import Any

_MISSING = "pccl's compiled core is missing or does not fit this Python: install the package with `pip install .`"


def load_native_module() -> tuple[Any, Any]:
    """The cffi pair (ffi, lib): `lib` has the functions and enumerators of pccl.h, `ffi` all of its types."""
    try:
        from pccl._native import ffi, lib
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return ffi, lib


def load_simulator() -> tuple[Any, Any]:
    """The same for sim.h: a module of its own, since it refuses memory to what it runs."""
    try:
        from pccl._simulator import ffi, lib
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return ffi, lib


def rehome(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Lets the public classes and functions of a package say that they are of it, in help() and tracebacks.

    `namespace` is that of the package. A name that another package already has keeps its home.
    """
    package = namespace["__name__"]
    for name in names:
        value = namespace[name]
        if getattr(value, "__module__", "").startswith(f"{package}._"):
            value.__module__ = package
