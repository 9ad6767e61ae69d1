"""The folder that a run writes its files to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click


def make_writable(folder: Path) -> None:
    """Makes it if need be. OSError: nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def find_file(folder: Path, *patterns: str) -> Path | None:
    """Returns a file of these patterns that is not empty; None: the folder has none."""
    found = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return next((path for path in found if path.stat().st_size > 0), None)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The block is the only run that writes there. UsageError: another one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.UsageError(f"another run writes to {folder}; name another folder with --out") from None
        yield
    finally:
        os.close(descriptor)
