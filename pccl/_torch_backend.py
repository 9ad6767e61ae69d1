"""What torch calls when it is imported, by the entry point "torch.backends" of this package: makes the backend "pccl" known.

It costs an import of pccl without the rest of `pccl.distributed`, which follows when a group is made.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Registers the backend, where this torch has torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and "PCCL" not in dist.Backend._plugins:
        dist.Backend.register_backend("pccl", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(asked: Any, options: Any = None) -> Any:
    from pccl.distributed._group import create

    return create(asked, options)
