"""Files of keys: how they are made, changed and described. The core reads them (csrc/net/keys.h); docs/security.md says what for.

pccl-keys 1 master              or peer
secret ID HEX                   one or two; a process connects with the first that the other side knows
master-key HEX                  the private key that signs for the run; only in the file of masters
master-public HEX               its public key, by which peers know their masters
run NAME                        the run whose secrets these are; only in a file of peers. They follow from those of all runs
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pccl._core.address import RUN_NAME
from pccl._core.errors import PCCLError
from pccl._core.library import _C, _ffi
from pccl._host.files import MODE

BYTES = 32
FILE_BYTES = 4096
"""Of a file of keys, at most (csrc/net/keys.c)."""
MAX_SECRETS = 2
ROLES = ("master", "peer")


class KeysError(ValueError):
    """A file of keys cannot be made, read or changed; the text names the file and says what to do."""


def secret_id(secret: bytes) -> str:
    """Returns the name of a secret: the first 16 hexadecimal digits of a SHA-256, so it tells nothing of the secret."""
    return hashlib.sha256(b"pccl secret 1" + secret).hexdigest()[:16]


def fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(b"pccl public 1" + public_key).hexdigest()[:16]


def derived_secret(secret: bytes, run: str) -> bytes:
    """Returns the secret of a named run, which follows from the one of all runs (csrc/net/keys.c)."""
    return hashlib.sha256(f"pccl run secret 1 {run} ".encode() + secret).digest()


@dataclass(frozen=True)
class Keys:
    """What is in the file of the masters of a run."""

    secrets: tuple[bytes, ...]
    master_public: bytes
    master_key: bytes | None = None  # None: the file of peers
    run: str = ""  # "": of all runs

    def of_run(self, run: str) -> Keys:
        """Returns the keys for peers of one of the masters' runs. KeysError: it cannot be a name."""
        if not re.fullmatch(RUN_NAME, run, re.ASCII):
            raise KeysError(f"{run!r} is no name of a run: write 1 to 64 letters, digits, dots, hyphens and underscores")
        return Keys(tuple(derived_secret(secret, run) for secret in self.secrets), self.master_public, run=run)

    def text(self, role: str) -> str:
        which = f"run {self.run}" if self.run else "the run"
        lines = [f"pccl-keys 1 {role}", f"# Whoever has this file can act as a {role} of {which}. Keep it secret."]
        if self.run:
            lines.append(f"run {self.run}")
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
        raise KeysError(f"'{run}' is no name for files of keys: name a file in a folder that exists, without its ending")
    return path.with_name(path.name + ".master"), path.with_name(path.name + ".peer")


def _write(path: Path, text: str, *, new: bool) -> None:
    """Writes a file that only its owner reads, as a whole or not at all. FileExistsError: it is there and must be `new`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(temporary, path)  # fails if somebody else has made it
        else:
            os.replace(temporary, path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_files(run: str | os.PathLike[str], keys: Keys, *, new: bool = True) -> tuple[Path, Path]:
    """Writes both files of a run, mode 0600, and returns their paths. KeysError: `new`, and one of them is there already."""
    master, peer = paths_of(run)
    for path in (master, peer):
        if new and os.path.lexists(path):
            there = _keys_in(path)
            if there is not None and there.run:
                raise KeysError(
                    f"{path} is the file of run {there.run}: choose another name, or `pccl keys` with --add to change it"
                )
            raise KeysError(
                f"{path} exists, and a new one would shut out all who have it: `pccl keys {run} --add` adds a secret to it, "
                "or remove both files first"
            )
    # The masters' file first: if the second one fails, the first still has all that is needed to write it again.
    _write(master, keys.text("master"), new=new)
    _write(peer, keys.text("peer"), new=new)
    return master, peer


def _keys_in(path: Path) -> Keys | None:
    """Returns the keys in a file; None: it is no file of keys."""
    try:
        return read_file(path)[1]
    except KeysError:
        return None


def files_of_runs(name: str | os.PathLike[str]) -> list[tuple[Path, Keys]]:
    """Returns the files for peers of one run, NAME-RUN.peer, that are beside NAME.master and have its master's key."""
    master, _ = paths_of(name)
    public = read_file(master)[1].master_public if master.exists() else None
    found = ((path, _keys_in(path)) for path in sorted(master.parent.glob(f"{glob.escape(master.stem)}-*.peer")))
    return [(path, keys) for path, keys in found if keys is not None and keys.run and keys.master_public == public]


def write_run_file(name: str | os.PathLike[str], run: str) -> tuple[Path, Keys]:
    """Writes NAME-RUN.peer, mode 0600, for peers of one run, from NAME.master. One that was made for this run is replaced.

    KeysError: NAME.master is not there, the name cannot be that of a run, or the path is that of another file.
    """
    master, keys = _changed(name, "--run")
    keys = keys.of_run(run)
    path = master.with_name(f"{master.stem}-{run}.peer")
    there = _keys_in(path)
    old = there is not None and (there.run, there.master_public) == (run, keys.master_public)
    if not old and os.path.lexists(path):
        if path.with_suffix(".master").exists():
            raise KeysError(f"{path} belongs to {path.with_suffix('.master')}: choose another name for one of them")
        raise KeysError(f"{path} exists, and is not the file of run {run} with the keys of {master}: remove it first")
    _write(path, keys.text("peer"), new=not old)
    return path, keys


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
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            content = file.read(FILE_BYTES + 1)
        if len(content) > FILE_BYTES:
            raise KeysError(f"{path} is no file of keys: it is too long")
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise KeysError(f"{path} is no file of keys") from None
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from None
    if not lines:
        raise KeysError(f"{path} is empty; copy the file again")
    head = lines[0].split()
    if len(head) > 1 and head[0] == "pccl-keys" and head[1] != "1":
        raise KeysError(f"{path} is of another version of pccl; make new keys")
    if head[:2] != ["pccl-keys", "1"] or head[2:3] not in [[role] for role in ROLES]:
        raise KeysError(f"{path} was not written by `pccl keys`")
    role = head[2]
    items = [line.split() for line in lines[1:] if line.strip() and not line.startswith("#")]
    values: dict[str, list[bytes]] = {"secret": [], "master-key": [], "master-public": []}
    run = ""
    for name, *rest in items:
        if name == "run":
            if run or role == "master" or not rest or not re.fullmatch(RUN_NAME, rest[0], re.ASCII):
                raise KeysError(f"{path}: its run is cut or changed; copy the file again")
            run = rest[0]
            continue
        if name not in values or not rest:
            raise KeysError(f"{path} has an item that this version does not know: {name}")
        values[name].append(_hex(path, name, rest[-1]))
        if name == "secret" and rest[0] != secret_id(values[name][-1]):
            raise KeysError(f"{path}: a secret is cut or changed; copy the file again")
    shape = {name: len(found) for name, found in values.items()}
    if not 1 <= shape["secret"] <= MAX_SECRETS or shape["master-public"] != 1 or shape["master-key"] != (role == "master"):
        raise KeysError(f"{path} is cut; copy the file again")
    return role, Keys(tuple(values["secret"]), values["master-public"][0], next(iter(values["master-key"]), None), run)


def run_of(keys: str | bytes | None) -> str:
    """Returns the run that keys are confined to, or "". `keys`: as `credentials` returns them; None: those of PCCL_KEYS."""
    try:
        return read_file(os.fsdecode(keys or os.environ.get("PCCL_KEYS", "")))[1].run
    except KeysError:
        return ""


def _changed(run: str | os.PathLike[str], change: str) -> tuple[Path, Keys]:
    master, _ = paths_of(run)
    if not master.exists():
        raise KeysError(f"{change} needs {master}, which is not here; `pccl keys {run}` makes new keys")
    role, keys = read_file(master)
    if role != "master":
        raise KeysError(f"{master} is a file for peers, under the name of one for masters")
    return master, keys


def _rewrite(name: str | os.PathLike[str], keys: Keys) -> Keys:
    write_files(name, keys, new=False)
    for path, there in files_of_runs(name):
        _write(path, keys.of_run(there.run).text("peer"), new=False)
    return keys


def add_secret(run: str | os.PathLike[str]) -> Keys:
    """Adds a second secret to all files of a run: who has them connects with either. KeysError: there are two already."""
    master, keys = _changed(run, "--add")
    if len(keys.secrets) == MAX_SECRETS:
        raise KeysError(f"{master} has two secrets already; `pccl keys {run} --drop` drops the older one")
    return _rewrite(run, replace(keys, secrets=(*keys.secrets, secrets.token_bytes(BYTES))))


def drop_secret(run: str | os.PathLike[str]) -> Keys:
    """Drops the older secret from all files of a run: who has only that is shut out. KeysError: there is one alone."""
    master, keys = _changed(run, "--drop")
    if len(keys.secrets) == 1:
        raise KeysError(f"{master} has one secret alone; `pccl keys {run} --add` adds one")
    return _rewrite(run, replace(keys, secrets=keys.secrets[1:]))
