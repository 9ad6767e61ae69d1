"""The backend "pccl" of torch.distributed: training goes on when a process dies.

    import pccl.distributed
    torch.distributed.init_process_group("pccl")

Where torch loads entry points as it is imported (unless TORCH_DEVICE_BACKEND_AUTOLOAD=0), the backend is known without the
import of this module. docs/distributed.md says what happens in each failure.

**Calls.** `all_reduce`, `reduce` and `reduce_scatter` take SUM, AVG, PRODUCT, MIN and MAX, for integers and bool also BAND, BOR,
BXOR, for complex numbers SUM and AVG; `all_reduce` takes sparse tensors too. `broadcast`, `all_gather`, `gather`, `scatter`,
`all_to_all`, `send` and `recv` take all types, float8 too, and unequal sizes. There are also `barrier`, object collectives,
coalesced and functional collectives, `new_group` and `DeviceMesh`. A process has at most 4,032 calls in flight.
If members pass different arguments, all get an error that says how; the group stays usable. On a GPU register
`fp16_compress_hook` in place of DDP's built-in hook in C++.

**Masters.** Without PCCL_MASTER the job starts a master on its first node, and standbys on up to two others; on a single node
one beside it. They end 15 s after the last peer has left. PCCL_MASTER_LOG is a file for their log. After a restart by torchrun
(`--max-restarts`), or a second `init_process_group`, all ranks start a new run, or join the one at PCCL_MASTER.

**Restarts.** In a worker that `pccl.distributed.run` has restarted, `is_joining()` is True until its first `Elastic.sync` has
joined the others; other calls raise an error until then. RANK and WORLD_SIZE stay those of the launcher. With fixed
membership `get_rank()` and `get_world_size()` return them from the start.
"""

import os as _os
import sys as _sys
from importlib.metadata import entry_points as _entry_points
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from pccl._exports import rehome as _rehome

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
    "ProtectionError",
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

_AT_ONCE = {
    "pccl._core.errors": ("JoinError", "Left", "ProtectionError", "StateLostError"),
    "pccl.distributed._board": ("BootstrapError",),
    "pccl.distributed._change": ("Change", "on_change"),
    "pccl.distributed._errors": ("CollectiveError", "CollectiveTimeoutError", "PeerLostError"),
    "pccl.distributed._group": ("Options", "ProcessGroup", "lost_ranks"),
    "pccl.distributed._supervise": ("supervise",),
    "pccl.distributed._this_run": ("is_joining", "join", "keys", "masters"),
}
"""Modules that are imported with torch, and their public names. Without torch a supervisor imports what it uses."""

_LATE = {
    "Elastic": "pccl.distributed._elastic",
    "Snapshots": "pccl.state",
    "check_parity": "pccl.distributed._parity",
    **{name: module for module, names in _AT_ONCE.items() for name in names},
}
"""By name: the module that is imported when the name is first used; not by init_process_group, since FSDP takes a second."""

if TYPE_CHECKING:
    from pccl._core.errors import JoinError, Left, ProtectionError, StateLostError
    from pccl.distributed._board import BootstrapError
    from pccl.distributed._change import Change, on_change
    from pccl.distributed._elastic import Elastic
    from pccl.distributed._errors import CollectiveError, CollectiveTimeoutError, PeerLostError
    from pccl.distributed._group import Options, ProcessGroup, lost_ranks
    from pccl.distributed._parity import check_parity
    from pccl.distributed._supervise import supervise
    from pccl.distributed._this_run import is_joining, join, keys, masters
    from pccl.state import Snapshots


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = found = getattr(import_module(_LATE[name]), name)
    _rehome(globals(), [name])
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE} - {"TYPE_CHECKING"})


def _load() -> None:
    for names in _AT_ONCE.values():
        for name in names:
            __getattr__(name)


if _find_spec("torch") is None:
    raise ModuleNotFoundError("pccl.distributed needs torch: pip install 'pccl[torch]'", name="torch")
_loads_backends = _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1" and _entry_points(
    group="torch.backends", name="pccl"
)
if "torch" in _sys.modules or not _loads_backends:  # else torch makes the backend known when it is imported
    from pccl._torch_backend import register as _register

    _register()
    _load()
