"""Files of keys: how they are made, changed and described. The core reads them (csrc/net/keys.h); docs/security.md says what for.

pccl-keys 1 master              or peer
secret ID HEX                   one or two; a process connects with the first that the other side knows
master-key HEX                  the private key that signs for the run; only in the file of masters
master-public HEX               its public key, by which peers know their masters
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pccl._errors import PCCLError
from pccl._files import MODE
from pccl._loader import load_native_module

_ffi, _C = load_native_module()

BYTES = 32
MAX_SECRETS = 2
ROLES = ("master", "peer")


class KeysError(ValueError):
    """A file of keys cannot be made, read or changed; the text names the file and says what to do."""


def secret_id(secret: bytes) -> str:
    """Returns the name of a secret: the first 16 hexadecimal digits of a SHA-256, so it tells nothing of the secret."""
    return hashlib.sha256(b"pccl secret 1" + secret).hexdigest()[:16]


def fingerprint(public_key: bytes) -> str:
    """Returns the fingerprint of a public key, 16 hexadecimal digits."""
    return hashlib.sha256(b"pccl public 1" + public_key).hexdigest()[:16]


@dataclass(frozen=True)
class Keys:
    """What is in the file of the masters of a run."""

    secrets: tuple[bytes, ...]
    master_public: bytes
    master_key: bytes | None = None  # None: the file of peers

    def text(self, role: str) -> str:
        """Returns the content of the file of a role."""
        lines = [f"pccl-keys 1 {role}", f"# Whoever has this file can act as a {role} of the run. Keep it secret."]
        lines += [f"secret {secret_id(secret)} {secret.hex()}" for secret in self.secrets]
        if role == "master":
            assert self.master_key is not None
            lines.append(f"master-key {self.master_key.hex()}")
        lines.append(f"master-public {self.master_public.hex()}")
        return "\n".join(lines) + "\n"


def new_keys() -> Keys:
    """Makes the keys of a new run. PCCLError: this build has no encryption."""
    master_key = secrets.token_bytes(BYTES)
    public = _ffi.new("uint8_t[]", BYTES)
    PCCLError.check(_C.pccl_ext_key_public(master_key, public), "keys")
    return Keys((secrets.token_bytes(BYTES),), bytes(public), master_key)


def paths_of(run: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Returns where the files for masters and for peers of a run are: RUN.master and RUN.peer."""
    path = Path(run)
    if path.name in ("", ".", "..") or not path.parent.is_dir():
        raise KeysError(f"{run} is no name for files of keys: name a file in a folder that exists, without its ending")
    return path.with_name(path.name + ".master"), path.with_name(path.name + ".peer")


def _write(path: Path, text: str, *, new: bool) -> None:
    """Writes a file that only its owner reads, as a whole or not at all. FileExistsError: it is there and must be `new`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(temporary, path)  # fails if somebody else has made it
        else:
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def write_files(run: str | os.PathLike[str], keys: Keys, *, new: bool = True) -> tuple[Path, Path]:
    """Writes both files of a run, mode 0600, and returns their paths. KeysError: `new`, and one of them is there already."""
    master, peer = paths_of(run)
    for path in (master, peer):
        if new and os.path.lexists(path):
            raise KeysError(
                f"{path} exists, and a new one would shut out all who have it: `pccl keys {run} --add` adds a secret to it, "
                "or remove both files first"
            )
    # The masters' file first: if the second one fails, the first still has all that is needed to write it again.
    _write(master, keys.text("master"), new=new)
    _write(peer, keys.text("peer"), new=new)
    return master, peer


def _hex(path: Path, name: str, value: str) -> bytes:
    try:
        found = bytes.fromhex(value)
    except ValueError:
        found = b""
    if len(found) != BYTES:
        raise KeysError(f"{path}: its {name} is cut or changed; copy the file again")
    return found


def read_file(path: str | os.PathLike[str]) -> tuple[str, Keys]:
    """Returns the role and the content of a file of keys, whoever may read it. KeysError: it is not there, or it is none."""
    path = Path(path)
    try:
        lines = path.read_text("ascii").splitlines()
    except UnicodeDecodeError:
        raise KeysError(f"{path} is no file of keys") from None
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    role = lines[0].removeprefix("pccl-keys 1 ") if lines else ""
    if role not in ROLES:
        raise KeysError(f"{path} was not written by `pccl keys` of this version")
    items = [line.split() for line in lines[1:] if line.strip() and not line.startswith("#")]
    values: dict[str, list[bytes]] = {"secret": [], "master-key": [], "master-public": []}
    for name, *rest in items:
        if name not in values or not rest:
            raise KeysError(f"{path} has an item that this version does not know: {name}")
        values[name].append(_hex(path, name, rest[-1]))
        if name == "secret" and rest[0] != secret_id(values[name][-1]):
            raise KeysError(f"{path}: a secret is cut or changed; copy the file again")
    shape = {name: len(found) for name, found in values.items()}
    if not 1 <= shape["secret"] <= MAX_SECRETS or shape["master-public"] != 1 or shape["master-key"] != (role == "master"):
        raise KeysError(f"{path} is cut; copy the file again")
    return role, Keys(tuple(values["secret"]), values["master-public"][0], next(iter(values["master-key"]), None))


def _changed(run: str | os.PathLike[str], change: str) -> tuple[Path, Keys]:
    master, _ = paths_of(run)
    if not master.exists():
        raise KeysError(f"{change} changes {master}, which is not here; `pccl keys {run}` makes new keys")
    role, keys = read_file(master)
    if role != "master":
        raise KeysError(f"{master} is a file for peers, under the name of one for masters")
    return master, keys


def add_secret(run: str | os.PathLike[str]) -> Keys:
    """Adds a second secret to both files of a run: who has them connects with either. KeysError: there are two already."""
    master, keys = _changed(run, "--add")
    if len(keys.secrets) == MAX_SECRETS:
        raise KeysError(f"{master} has two secrets already; `pccl keys {run} --drop` drops the older one")
    keys = replace(keys, secrets=(*keys.secrets, secrets.token_bytes(BYTES)))
    write_files(run, keys, new=False)
    return keys


def drop_secret(run: str | os.PathLike[str]) -> Keys:
    """Drops the older secret from both files of a run: who has only that is shut out. KeysError: there is one alone."""
    master, keys = _changed(run, "--drop")
    if len(keys.secrets) == 1:
        raise KeysError(f"{master} has one secret alone; `pccl keys {run} --add` adds one")
    keys = replace(keys, secrets=keys.secrets[1:])
    write_files(run, keys, new=False)
    return keys
