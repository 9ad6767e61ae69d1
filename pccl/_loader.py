"""Loads the compiled core."""

from typing import Any


def load_native_module() -> tuple[Any, Any]:
    """The cffi pair (ffi, lib): `lib` has the functions and enumerators of pccl.h, `ffi` all of its types."""
    try:
        from pccl._native import ffi, lib
    except ImportError as error:
        raise ImportError(
            "pccl's compiled core is missing or does not fit this Python: install the package with `pip install .`"
        ) from error
    return ffi, lib
