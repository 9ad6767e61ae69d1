"""Files for logs: they name hosts and paths, so only their owner reads them."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO, Literal

MODE = 0o600

PATH_BYTES = 1024
"""Of a file of events, with the zero behind it (csrc/base/recorder.h)."""


def open_log(path: str | os.PathLike[str], *, append: bool = True) -> int:
    """Returns a descriptor to write a log to, at the end of the file, or with `append` False to an empty one.

    A new file has mode 0600. OSError: also if `path` is a symbolic link, which could lead the log into a file of the same user
    that another user has chosen.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    try:
        return os.open(path, flags, MODE)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, "the path is a symbolic link; name the file itself", os.fspath(path)) from None
        raise


def event_file(path: str | os.PathLike[str] | Literal[False]) -> bytes:
    """Returns the path of a file of events as C takes it. False: none are kept. ValueError: the path is empty or too long."""
    if path is False:
        return b"off"
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"events must be the path of a file, or False for none, not {path!r}")
    encoded = os.fsencode(path)
    if not encoded or len(encoded) >= PATH_BYTES or b"\0" in encoded:
        raise ValueError(f"the path of a file of events must have 1 to {PATH_BYTES - 1} bytes and no zero, not {path!r}")
    return encoded


def open_log_file(path: Path, *, append: bool = True) -> IO[bytes]:
    """The same as an unbuffered file."""
    return os.fdopen(open_log(path, append=append), "wb", 0)
