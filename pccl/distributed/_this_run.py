"""Which run this process belongs to, or is to join."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pccl._supervisor import JOINED, KEYS
from pccl._waits import tell_supervisor

_masters = ""
_keys = ""
_to_join = ""
_to_begin = False
_acts_alone = False
_meant: tuple[str, str] | None = None


def masters() -> str:
    """The masters of the run that this process belongs to, as `join` and PCCL_MASTER take them; "" before there is one."""
    return _masters


def keys() -> str:
    """The file of keys of that run, as `join` and PCCL_KEYS take it; "" without keys, and before there is a run."""
    return _keys


def note_run(addresses: str, path: str) -> None:
    """Keeps what `masters` and `keys` give, and tells it to the supervisor of this process, if any (`pccl.distributed.run`)."""
    global _masters, _keys
    _masters, _keys = addresses, path or os.environ.get("PCCL_KEYS", "")
    if path:
        tell_supervisor(KEYS + path)
    tell_supervisor(addresses)


def to_join() -> str:
    """The masters of a run that this process is to become a member of, by its first `Elastic.sync`; "" for any other process."""
    return _to_join


def is_joining() -> bool:
    """True in a process that has yet to join a run: until its first `Elastic.sync` it is in a group of its own."""
    return bool(_to_join)


def launched(name: str) -> int:
    """Returns the number RANK or WORLD_SIZE that the launcher gave this process; -1 without one."""
    return int(text) if (text := os.environ.get(name, "")).isdecimal() else -1


def require_joined(call: str) -> None:
    """RuntimeError: this process has yet to join a run, so that a collective would be one of itself alone."""
    if _to_join:
        raise RuntimeError(
            f"{call}: this process was started to join the run at {_to_join} and has not joined it yet; "
            "call pccl.distributed.Elastic(model, optimizer, ...).sync() first"
        )


def act_alone() -> None:
    """From now on a process with fixed membership makes all calls by itself until it joins: errors are for scripts of pccl."""
    global _acts_alone
    _acts_alone = True


def acts_alone() -> bool:
    """Whether `act_alone` was called."""
    return _acts_alone


def to_begin() -> bool:
    """Whether it may begin the run that it is to become a member of, if there is none."""
    return _to_begin


def joined() -> None:
    """Notes that it has become one, and tells the supervisor of this process."""
    global _to_join
    _to_join = ""
    tell_supervisor(JOINED)


def note_to_join(addresses: str, path: str) -> None:
    """Notes that this process is to become a member of a run; `path` is a file of keys, or ""."""
    global _to_join
    _to_join = addresses
    note_run(addresses, path)


def meant() -> tuple[str, str] | None:
    """The masters of the run that this process is told to join, and the file of keys; None: it is told nothing."""
    return _meant


@contextlib.contextmanager
def meant_to_join(addresses: str | None, *, begin: bool = False, keys: str = "") -> Iterator[None]:
    """In this block `connect` is told to join the run of these masters; None: of those that PCCL_MASTER names.

    `keys` is a file of keys; "": that of PCCL_KEYS, if any.
    """
    global _meant, _to_begin
    _to_begin = begin
    _meant = (addresses if addresses is not None else os.environ.get("PCCL_MASTER", "")), keys
    try:
        yield
    finally:
        _meant = None
