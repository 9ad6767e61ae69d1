"""What opens encrypted connections: a file of keys, or a certificate with its private key and the trusted authorities."""

from __future__ import annotations

import os

from pccl._core.errors import ArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    Path = str | bytes | os.PathLike[str]


VARIABLES = ("PCCL_KEYS", "PCCL_CERT", "PCCL_KEY", "PCCL_CA")


def environment_has_some() -> bool:
    """Whether the environment names keys or a certificate."""
    return bool(os.environ.get("PCCL_KEYS") or os.environ.get("PCCL_CERT"))


def credentials(keys: Path | None, cert: Path | None, key: Path | None, ca: Path | None) -> bytes | None:
    """Returns the paths as `pccl_ext_comm_configure` takes them; None: what the environment names.

    ArgumentError: keys and a certificate, or a part of a certificate. TypeError: no path.
    """
    parts = {"cert": cert, "key": key, "ca": ca}
    for name, path in {"keys": keys, **parts}.items():
        if path is not None and not isinstance(path, str | bytes | os.PathLike):
            raise TypeError(f"{name} must be the path of a file, not {path!r}")
    missing = [name for name, path in parts.items() if path is None]
    if len(missing) == len(parts):
        return None if keys is None else os.path.abspath(os.fsencode(keys))
    if keys is not None:
        raise ArgumentError("keys and a certificate (cert, key, ca) exclude each other: name either")
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ArgumentError(f"cert, key and ca belong together: {' and '.join(missing)} {verb} missing; give all three")
    # Symbolic links stay: the renewal of a certificate may turn them.
    paths = [os.path.abspath(os.fsencode(path)) for path in parts.values() if path is not None]
    if any(b"\n" in path for path in paths):
        raise ArgumentError("the path of a certificate, key or authority contains a line break")
    return b"\n".join(paths)
