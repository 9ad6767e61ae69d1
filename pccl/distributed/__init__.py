"""The backend "pccl" of torch.distributed: training goes on when a process dies.

    import pccl.distributed
    torch.distributed.init_process_group("pccl")

Where torch loads entry points as it is imported (unless TORCH_DEVICE_BACKEND_AUTOLOAD=0), the backend is known without the
import of this module. docs/distributed.md says what happens in each failure.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"pccl.distributed needs torch: pip install 'pccl[torch]' ({_error})", name=_error.name) from None

from pccl._errors import JoinError, Left, StateLostError
from pccl._exports import rehome as _rehome
from pccl._torch_backend import register as _register
from pccl.distributed._bootstrap import BootstrapError, is_joining, keys, masters
from pccl.distributed._change import Change, on_change
from pccl.distributed._elastic import Elastic
from pccl.distributed._errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from pccl.distributed._group import Options, ProcessGroup, lost_ranks
from pccl.distributed._join import join
from pccl.distributed._parity import check_parity
from pccl.distributed._supervise import supervise
from pccl.state import Snapshots

__all__ = [
    "BootstrapError",
    "Change",
    "CollectiveError",
    "CollectiveTimeoutError",
    "Elastic",
    "JoinError",
    "Left",
    "Options",
    "PeerLostError",
    "ProcessGroup",
    "Snapshots",
    "StateLostError",
    "check_parity",
    "is_joining",
    "join",
    "keys",
    "lost_ranks",
    "masters",
    "on_change",
    "supervise",
]

_register()

_rehome(globals(), __all__)
