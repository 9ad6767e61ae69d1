"""Whether tensors at a GPU can be used.

Each of these loads the CUDA driver, where there is one, and initialises it, as `torch.cuda` does: CUDA does not work in
processes that are forked afterwards. Importing pccl does not, nor do ops on tensors of the CPU.
"""

from __future__ import annotations

from typing import Any

from pccl._loader import load_native_module

is_cuda_available: bool
"""As `is_available()`; may be assigned."""

_TEXT_BYTES = 1024


def is_available() -> bool:
    """Tells whether tensors at a GPU can be used here and now: there is a driver, and it has found a GPU."""
    return bool(globals().get("is_cuda_available", device_count() > 0))


def device_count() -> int:
    """How many GPUs the driver has found; 0 without a driver."""
    return _look()[0]


def describe() -> str:
    """The names of the GPUs, with commas; or, where there is none that can be used, why."""
    return _look()[1]


def _look() -> tuple[int, str]:
    ffi, lib = load_native_module()
    text = ffi.new("char[]", _TEXT_BYTES)
    count = int(lib.pccl_ext_cuda(text, _TEXT_BYTES))
    return count, ffi.string(text).decode("utf-8", "replace")


def __getattr__(name: str) -> Any:
    if name == "is_cuda_available":
        return is_available()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
