"""The backend "pccl" of torch.distributed: training goes on when a process dies.

    import pccl.distributed
    torch.distributed.init_process_group("pccl")

Importing this module registers the backend. docs/distributed.md says what happens in each failure.
"""

import torch.distributed as _dist

from pccl.distributed._bootstrap import BootstrapError, masters
from pccl.distributed._elastic import Elastic, JoinError
from pccl.distributed._errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from pccl.distributed._group import Options, ProcessGroup, create
from pccl.distributed._join import join
from pccl.distributed._supervise import supervise

__all__ = [
    "BootstrapError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "Elastic",
    "JoinError",
    "Options",
    "PeerLostError",
    "ProcessGroup",
    "join",
    "masters",
    "supervise",
]

_dist.Backend.register_backend("pccl", create, extended_api=True, devices=["cpu", "cuda"])
