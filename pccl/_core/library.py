"""Loads the compiled core: `_C` has the functions and enumerators of pccl.h, `_ffi` all of its types."""

try:
    from pccl import _native
except ImportError as error:
    text = "pccl's compiled core is missing or was built for another Python; install the package with `pip install .`"
    raise ImportError(text) from error

_ffi, _C = _native.ffi, _native.lib
