"""How a process takes the place of init_process_group for a run that goes on."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from pccl.distributed._this_run import this_run


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
