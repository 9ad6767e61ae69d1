"""Checkpoints: plain trees in a folder in the format of `torch.distributed.checkpoint`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import logging
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pccl._exports import publish
from pccl.state._local.tree import decode, encode, with_tensors, without_tensors

_log = logging.getLogger("pccl.state")

TREE = "pccl"
"""The entry with all that is not a tensor, encoded as bytes."""

VERSION = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read: it is damaged, incomplete, or of another program. The state in memory is unchanged."""


def save(tree: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes `tree`, a dict of plain values and tensors, to a folder that `load` and `torch.distributed.checkpoint` read.

    Each tensor is an entry of the checkpoint, called by its keys joined with dots: `model.layer.weight`. All other values are
    in the entry "pccl". The folder is replaced at once when all is on the disk: after a crash it is the old one or the new one.
    Other files in it are lost. No other peer takes part.

    TreeError: a value is of a class that `allow` was not called for, or the tree is too deep. OSError: the disk is full, or the
    folder cannot be written; FileExistsError: at `path` is a file, or a folder that is neither empty nor a checkpoint.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # imported late: it takes a second
    from torch.distributed.checkpoint.state_dict_saver import save as save_entries

    folder = _folder(path)
    if folder.exists() and not (folder / ".metadata").exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} is not a checkpoint, and would be lost; name a folder that holds nothing else")
    skeleton, places = without_tensors(dict(tree), reserved=TREE)
    tensors = {name: _plain(tensor) for name, (_, tensor) in places.items()}
    entries: dict[str, Any] = {}
    for name, (keys, _) in places.items():  # torch joins the keys of dicts to the same names
        below = entries
        for key in keys[:-1]:
            below = below.setdefault(key, {})
        below[keys[-1]] = tensors[name]
    sums = {name: _checksum(tensor) for name, tensor in tensors.items()}
    content = encode({"version": VERSION, "sums": sums, "tree": skeleton})
    # The sum in front of the encoded tree covers the tree itself.
    content[:0] = zlib.crc32(content).to_bytes(8, "little")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    try:
        with _locked(temporary):
            writer = FileSystemWriter(temporary, sync_files=True)
            entries[TREE] = torch.frombuffer(content, dtype=torch.uint8)
            with _alone():
                save_entries(entries, storage_writer=writer, no_dist=True)
            temporary.chmod(0o777 & ~_umask())
            _sync_folder(temporary)
            _replace(folder, temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what `save` was given; tensors are on the CPU.

    FileNotFoundError: there is no checkpoint. CheckpointError: it is damaged, or was not written by `save`. Load checkpoints
    that you trust only: torch unpickles the index of the folder (`.metadata`).
    """
    folder = _folder(path)
    if not folder.exists() and _previous(folder).exists():  # a crash came between the two renames of `save`
        folder = _previous(folder)
    if not folder.exists():
        raise FileNotFoundError(f"there is no checkpoint at {folder}")
    try:
        tensors = _read(folder)
    except Exception as error:  # torch raises whatever its pickles and archives raise
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"cannot read the checkpoint {folder}: {type(error).__name__}: {error}") from error
    content = tensors.pop(TREE).numpy().tobytes()
    if zlib.crc32(content[8:]).to_bytes(8, "little") != content[:8]:
        raise CheckpointError(f"the checkpoint {folder} is damaged: the checksum of its values does not match")
    told = decode(content[8:], bounded=False)
    if told["version"] != VERSION:
        raise CheckpointError(f"the checkpoint {folder} has the format {told['version']}, and this pccl reads {VERSION}")
    for name, total in told["sums"].items():
        if name not in tensors or _checksum(tensors[name]) != total:
            raise CheckpointError(f"the checkpoint {folder} is damaged: the checksum of {name} does not match")
    found: dict[str, Any] = with_tensors(told["tree"], tensors)
    return found


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_entries

    reader = FileSystemReader(folder)
    entries = reader.read_metadata().state_dict_metadata
    if not isinstance(entries.get(TREE), TensorStorageMetadata):
        raise CheckpointError(f"the checkpoint {folder} was not written by pccl: it has no entry {TREE!r}")
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with _alone():
        load_entries(dict(tensors), storage_reader=reader, no_dist=True)
    return tensors


# ---- tensors ----


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if hasattr(tensor, "full_tensor"):
        raise TypeError("the state has a sharded tensor; save tensors that one process holds whole")
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without torch's warning that no other process takes part, and with the error itself instead of torch's wrapper."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as wrapper:
            for error, _ in wrapper.failures.values():
                raise error from None
            raise


# ---- folders ----


def _folder(path: str | os.PathLike[str]) -> Path:
    """The folder itself where the path is a symbolic link, which stays."""
    return Path(path).resolve()


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _replace(folder: Path, temporary: Path) -> None:
    """Gives `temporary` the name `folder`. What had it goes away only afterwards."""
    with _locked(folder.parent):
        if _exchanged(folder, temporary):
            _sync_folder(folder.parent)
            shutil.rmtree(temporary, ignore_errors=True)
            return
        previous = _previous(folder)
        if folder.exists():
            shutil.rmtree(previous, ignore_errors=True)
            folder.rename(previous)
        temporary.rename(folder)
        _sync_folder(folder.parent)
        shutil.rmtree(previous, ignore_errors=True)


def _exchanged(folder: Path, temporary: Path) -> bool:
    """Exchanges the names of two folders at once. False: there is no `folder`, or the file system cannot do it."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(folder), _RENAME_EXCHANGE) == 0)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""As in Linux's fcntl.h and fs.h."""


def _remove_abandoned(folder: Path) -> None:
    """Removes the folders that a `save` has left behind whose process died: nobody has them locked."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.new-*"):
        with contextlib.suppress(OSError), _locked(left, wait=False):
            shutil.rmtree(left)


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Keeps other processes of this host out. OSError: another one has it locked, and this one does not `wait`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # some network file systems have no locks
            if not wait:
                raise
        yield
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def warn_if_overridden(loaded: int | None, step: int, what: str) -> None:
    """Logs a warning if a state that was loaded from a checkpoint, of step `loaded`, gives way to another one, of step `step`."""
    if loaded is not None and loaded != step:
        _log.warning("%s: the state loaded from a checkpoint (step %d) is replaced by the run's (step %d)", what, loaded, step)


publish(globals())
