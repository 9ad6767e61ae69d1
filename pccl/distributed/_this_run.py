"""Which run this process belongs to, or is to join."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from pccl._core.errors import JoinError, Result, StateLostError, UsageError, reason_of
from pccl._exports import publish
from pccl._host.waits import tell_supervisor
from pccl._peer.communicator import Communicator
from pccl._run.supervisor import JOINED, KEYS, MASTERS


class ThisRun:
    """What this process knows of its run."""

    masters = ""
    keys = ""
    to_join = ""
    """The masters of a run that this process is to become a member of, by its first `Elastic.sync`; "" for any other process."""
    to_begin = False
    """Whether it may begin that run, if there is none."""
    acts_alone = False
    """Whether, with fixed membership, it makes all calls by itself until it joins: errors are for scripts of pccl."""
    meant: tuple[str, str] | None = None
    """The masters of the run that `connect` is told to join, and the file of keys, or ""; None: it is told nothing."""

    def note(self, addresses: str, path: str) -> None:
        """Keeps the masters and the keys, and tells them to the supervisor of this process, if any (`pccl.distributed.run`)."""
        self.masters, self.keys = addresses, path or os.environ.get("PCCL_KEYS", "")
        if path:
            tell_supervisor(KEYS + path)
        tell_supervisor(MASTERS + addresses)

    @contextlib.contextmanager
    def meant_to_join(self, addresses: str | None, *, begin: bool = False, keys: str = "") -> Iterator[None]:
        """In this block `connect` is told to join the run of these masters; None: of those that PCCL_MASTER names.

        `keys` is a file of keys; "": that of PCCL_KEYS, if any.
        """
        self.to_begin = begin
        self.meant = (addresses if addresses is not None else os.environ.get("PCCL_MASTER", "")), keys
        try:
            yield
        finally:
            self.meant = None

    def require_joined(self, call: str) -> None:
        """RuntimeError: this process has yet to join a run, so that a collective would be one of itself alone."""
        if self.to_join:
            raise RuntimeError(
                f"{call}: this process was started to join the run at {self.to_join} and has not joined it yet; "
                "call pccl.distributed.Elastic(model, optimizer, ...).sync() first, or launch it with --adapt"
            )

    @contextlib.contextmanager
    def joining(self, comm: Communicator) -> Iterator[None]:
        """In this block the process becomes a member. JoinError: it has not; StateLostError, and what is no Exception, stay."""
        try:
            yield
        except BaseException as error:
            comm.close()  # whatever went wrong, members must not wait for this process
            if not isinstance(error, Exception) or isinstance(error, StateLostError):
                raise
            text = f"this process could not join the run at {self.to_join}: {reason_of(error)}"
            result = error.result if isinstance(error, UsageError) else Result.MASTER_CONNECTION_FAILED
            raise JoinError(text, result=result) from error
        self.joined()

    def joined(self) -> None:
        """Notes that this process has become a member, and tells its supervisor."""
        self.to_join = ""
        tell_supervisor(JOINED)


this_run = ThisRun()


def join(
    masters: str | None = None,
    *,
    begin: bool = False,
    timeout: timedelta | None = None,
    keys: str | os.PathLike[str] | None = None,
) -> None:
    """Takes the place of `init_process_group("pccl")` in a process that joins a run, whose masters are `masters` or PCCL_MASTER.

    Afterwards this process is in a group of its own, so that DistributedDataParallel can be constructed. Its first `Elastic.sync`
    waits until the members of the run are in theirs, and makes it one of them. BootstrapError: no masters are named.

    With `begin` it begins the run if nobody is there, with the model that it has: for launchers under which a process does not
    know whether it is one of the first.

    `keys` is the file of keys of the run; a member prints it: `pccl.distributed.keys()`. None: that of PCCL_KEYS, if any.
    `timeout`: of the process group, as for `init_process_group`.
    """
    with this_run.meant_to_join(masters, begin=begin, keys=os.fspath(keys or "")):
        dist.init_process_group("pccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


def masters() -> str:
    """The masters of the run that this process belongs to, as `join` and PCCL_MASTER take them; "" before there is one."""
    return this_run.masters


def keys() -> str:
    """The file of keys of that run, as `join` and PCCL_KEYS take it; "" without keys, and before there is a run."""
    return this_run.keys


def is_joining() -> bool:
    """True in a process that has yet to join a run: until its first `Elastic.sync` it is in a group of its own."""
    return bool(this_run.to_join)


def launched(name: str) -> int:
    """Returns the number RANK or WORLD_SIZE that the launcher gave this process; -1 without one."""
    return int(text) if (text := os.environ.get(name, "")).isdecimal() else -1


publish(globals())
