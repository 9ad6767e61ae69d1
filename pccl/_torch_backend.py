"""What torch calls when it is imported, by the entry point "torch.backends" of this package: makes the backend "pccl" known.

It costs an import of pccl without the rest of `pccl.distributed`, which follows when a group is made.
"""

from __future__ import annotations

import gc
from typing import Any

TESTED = ("2.13", "2.14")
"""The versions of torch that the tests run with."""


def register() -> None:
    """Registers the backend, where this torch has torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and "PCCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("pccl", _create, extended_api=True, devices=["cpu", "cuda"])


def warn_if_untested(version: str) -> None:
    if ".".join(version.split(".")[:2]) not in TESTED:
        import warnings

        text = f"pccl.distributed is tested with torch {' and '.join(TESTED)}, not with {version}: it may fail"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _create(asked: Any, options: Any = None) -> Any:
    import torch

    collects = gc.isenabled()
    gc.disable()  # a collection of all objects of torch during the import would take as long as the import
    try:
        from pccl.distributed._group import create
    finally:
        if collects:
            gc.enable()
    warn_if_untested(torch.__version__)
    return create(asked, options)
