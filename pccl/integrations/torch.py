"""Lets restarted processes join a run of a script that uses DistributedDataParallel, and calls nothing of pccl."""

from __future__ import annotations

from pccl.integrations import _replay


def adapt() -> None:
    """With fixed membership, newcomers take a lost rank, and get to the place of the others in the script (docs/fixed.md)."""
    _replay.installed()
