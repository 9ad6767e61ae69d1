"""Whether tensors in device memory can be used."""

is_cuda_available: bool = False
"""Set when the package is imported, from the compiled core; may be assigned."""


def is_available() -> bool:
    """Tells whether this build can use CUDA tensors here and now."""
    return is_cuda_available
