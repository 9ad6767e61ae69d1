"""Keys that a job on one host makes for itself, in a folder that only its user can enter.

Each process that needs the folder locks it (flock), for the kernel releases the lock whatever ends the process. The last one that
ends normally removes the folder. The next job removes those of killed jobs, but of its own host alone: hosts that share $TMPDIR
do not see each other's locks. Programs that clean /tmp, such as systemd-tmpfiles, keep locked folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import socket
import stat
import tempfile
from pathlib import Path

from pccl._core.library import _C
from pccl._host.files import MODE
from pccl._run import keys as _keys
from pccl._run.credentials import environment_has_some
from pccl._run.master import MasterNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

PREFIX = "pccl-keys-"
"""What the name of each such folder begins with. The folders of other names are the user's own."""
FILES = ("run.master", "run.peer")
INSECURE_VARIABLE = "PCCL_INSECURE"


def why_plain() -> str:
    """Returns why a job on this host makes no keys of its own; "" if it does."""
    if not _C.pccl_ext_has_tls():
        return "this build of pccl has no encryption (see `pccl info`)"
    return f"{INSECURE_VARIABLE}=1" if os.environ.get(INSECURE_VARIABLE) == "1" else ""


class OwnKeys:
    """New keys in a folder of their own, which this process holds. OSError: the folder cannot be made."""

    def __init__(self) -> None:
        keys = _keys.new_keys()
        _sweep()
        self._descriptor = -1
        while self._descriptor < 0:
            self.folder = Path(tempfile.mkdtemp(prefix=_prefix())).absolute()
            with contextlib.suppress(FileNotFoundError):  # another job has removed it before it was locked
                self._descriptor = _lock(self.folder)
        self.master, self.peer = (str(self.folder / file) for file in FILES)
        try:
            for path, role in ((self.master, "master"), (self.peer, "peer")):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
                with os.fdopen(descriptor, "w") as file:
                    os.fchmod(descriptor, MODE)  # whatever the umask
                    file.write(keys.text(role))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the folder, and removes it unless another process holds it. Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _remove(self.folder, descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def local_master() -> Iterator[dict[str, str]]:
    """Runs a master on this host, with keys of its own unless the environment names some. Yields the environment of its peers.

    OSError, PCCLError: the keys cannot be made or used, or the master cannot run.
    """
    with contextlib.ExitStack() as stack:
        plain = environment_has_some() or why_plain()
        keys = None if plain else stack.enter_context(OwnKeys())
        master = stack.enter_context(MasterNode("127.0.0.1:0", keys=None if keys is None else keys.master))
        yield {"PCCL_MASTER": f"127.0.0.1:{master.port}", **({} if keys is None else {"PCCL_KEYS": keys.peer})}


def check_folder(folder: str) -> tuple[str, str]:
    """Returns the paths of the files for masters and for peers in a folder that another process of this user has made.

    The last process that ends removes the folder, so one that the user made is refused.

    OSError, KeysError: the folder or a file in it is missing, belongs to somebody else, or is open to others.
    """
    if not Path(folder).name.startswith(PREFIX):
        raise _keys.KeysError(f"{folder} was not made for a job: its name does not begin with {PREFIX}")
    paths = [Path(folder, file) for file in FILES]
    for path, kind in ((Path(folder), stat.S_IFDIR), *((path, stat.S_IFREG) for path in paths)):
        status = os.lstat(path)
        if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise _keys.KeysError(f"{path} was not made by a process of this user, or other users can read it")
    return str(paths[0]), str(paths[1])


def _lock(folder: Path) -> int:
    """Returns a descriptor that holds the folder. FileNotFoundError: it was removed meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove(folder: Path, descriptor: int) -> None:
    """Removes the folder unless another process holds it, and closes its descriptor."""
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for file in FILES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file, dir_fd=descriptor)
            folder.rmdir()
    finally:
        os.close(descriptor)


def _prefix() -> str:
    return f"{PREFIX}{socket.gethostname()}-"


def _sweep() -> None:
    """Removes the folders of this user's jobs on this host that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(glob.escape(_prefix()) + "*"):
        with contextlib.suppress(OSError):  # it belongs to another user, or has just been removed
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            if os.fstat(descriptor).st_uid == os.geteuid():
                _remove(folder, descriptor)
            else:
                os.close(descriptor)
