"""Loads the compiled core."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MISSING = "pccl's compiled core is missing or was built for another Python; install the package with `pip install .`"


def load_native_module() -> tuple[Any, Any]:
    """The cffi pair (ffi, lib): `lib` has the functions and enumerators of pccl.h, `ffi` all of its types."""
    try:
        from pccl._native import ffi, lib
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return ffi, lib


def load_sparse_forms() -> tuple[Any, Any]:
    """Returns the cffi pair of bindings/sparse.h."""
    try:
        from pccl._sparse_forms import ffi, lib
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return ffi, lib


def load_snapshot_kernels() -> tuple[Any, Any]:
    """Returns the cffi pair of bindings/snapshots.h."""
    try:
        from pccl._snapshot_kernels import ffi, lib
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return ffi, lib
