"""Whether tensors at a GPU can be used.

Each of these loads the CUDA driver, where there is one, and initialises it, as `torch.cuda` does: CUDA does not work in
processes that are forked afterwards. Importing pccl does not, nor do ops on tensors of the CPU.
"""

from __future__ import annotations

from typing import Any

from pccl._core.library import _C, _ffi

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
    """The names of the GPUs, with commas, and whether the library has kernels for them; or why no GPU can be used."""
    count, text = _look()
    if count == 0:
        return text
    why_not = why_no_kernels(load=False)
    return f"{text}; {f'no kernels: {why_not}' if why_not else 'kernels in the library'}"


def why_no_kernels(*, load: bool) -> str:
    """Why the host does what kernels could do at the GPU; "" where they are there.

    With `load` the first GPU is asked whether it takes them, which makes its primary context; otherwise the library alone.
    """
    text = _ffi.new("char[]", _TEXT_BYTES)
    if _C.pccl_ext_cuda_kernels(load, text, _TEXT_BYTES):
        return ""
    return str(_ffi.string(text).decode("utf-8", "replace"))


def _look() -> tuple[int, str]:
    text = _ffi.new("char[]", _TEXT_BYTES)
    count = int(_C.pccl_ext_cuda(text, _TEXT_BYTES))
    return count, _ffi.string(text).decode("utf-8", "replace")


def __getattr__(name: str) -> Any:
    if name == "is_cuda_available":
        return is_available()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
