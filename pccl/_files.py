"""Files for logs: they name hosts and paths, so only their owner reads them."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

MODE = 0o600


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


def open_log_file(path: Path, *, append: bool = True) -> IO[bytes]:
    """The same as an unbuffered file."""
    return os.fdopen(open_log(path, append=append), "wb", 0)
