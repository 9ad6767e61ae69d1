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
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import distribution as _distribution
from importlib.util import find_spec as _find_spec

from pccl._exports import lazy as _lazy
from pccl._exports import modules_of as _modules_of

__all__ = sorted(_modules_of(__name__))
__getattr__, __dir__ = _lazy(__name__)


def _torch_will_ask() -> bool:
    """Whether torch makes the backend known when it is imported."""
    if "torch" in _sys.modules or _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return False
    try:
        return bool(_distribution("pccl").entry_points.select(group="torch.backends", name="pccl"))
    except _PackageNotFoundError:
        return False


if _find_spec("torch") is None:
    raise ModuleNotFoundError("pccl.distributed needs torch: pip install 'pccl[torch]'", name="torch")
if not _torch_will_ask():
    from pccl._torch_backend import register as _register

    _register()
