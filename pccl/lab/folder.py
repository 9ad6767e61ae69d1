"""The folder that a run writes its files to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make_writable(folder: Path) -> None:
    """Makes it if need be. OSError: nothing can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


@contextlib.contextmanager
def alone_in(folder: Path, *leftovers: str) -> Iterator[None]:
    """The block is the only run that writes there, without the files of an earlier one. BlockingIOError: another one does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for pattern in leftovers:
            for old in folder.glob(pattern):
                old.unlink()
        yield
    finally:
        os.close(descriptor)
