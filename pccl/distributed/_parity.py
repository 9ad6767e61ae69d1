"""Whether DDP's replicas still are the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pccl._results import ParityInfo
from pccl.distributed._group import ProcessGroup
from pccl.distributed._training import Training


def check_parity(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *, policy: str = "raise"
) -> ParityInfo:
    """Compares the parameters, and the optimizers' tensors of more than 16 elements, of all members, bit for bit.

    All members call it between two steps. `policy` and errors: as `pccl.Communicator.check_parity`; a member that is expelled
    leaves the process group. TypeError: the model or an optimizer is sharded. RuntimeError: there is no process group of pccl.
    """
    group = dist.GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        raise RuntimeError('check_parity needs a process group of the backend "pccl": call init_process_group("pccl") first')
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    entries = Training(model, optimizers).entries()
    return group.communicator.check_parity(entries.tensors, policy=policy)
