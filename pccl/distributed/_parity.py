"""Whether DDP's replicas still are the same."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pccl._core.results import ParityInfo
from pccl._exports import publish
from pccl.distributed._group import ProcessGroup, group_of_all
from pccl.distributed._training import Training, listed
from pccl.distributed._work import seconds_of


def check_parity(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    policy: str = "raise",
    fraction: float = 1.0,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
) -> ParityInfo:
    """Compares the parameters, and the optimizers' tensors of more than 16 elements, of all members, bit for bit.

    All members of `group`, by default of the group of all, call it between two steps. The other arguments and the errors: as of
    `pccl.Communicator.check_parity`; a member that is expelled leaves all process groups. TypeError: the model or an optimizer is
    sharded. RuntimeError: there is no process group of pccl.
    """
    world = group_of_all("check_parity")
    comm = world.communicator
    if group is not None and not isinstance(group, ProcessGroup):
        raise TypeError(f'group must be a process group of the backend "pccl", not {group!r}')
    return comm.check_parity(
        Training(model, listed(optimizer)).entries().tensors,
        policy=policy,
        fraction=fraction,
        group=None if group in (None, world) else comm.group(group._launcher.view.founders),
        timeout=None if timeout is None else seconds_of(timeout),
    )


publish(globals())
