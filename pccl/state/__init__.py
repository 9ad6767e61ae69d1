"""The state of a training: how peers hand it to each other, and how it is saved.

Nothing here unpickles what another peer sends. Peers exchange plain trees (`encode`, `decode`): numbers, strings, bytes, tensors,
arrays, and lists, tuples, dicts and sets of these. `allow` adds a class. Tensors that all members hold alike are `Entries` of a
shared state. `save` and `load` are checkpoints in the format of `torch.distributed.checkpoint`. `MemoryWriter` and `MemoryReader`
keep checkpoints of torch in the memory of hosts; their metadata alone is unpickled.
"""

from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"pccl.state needs torch: pip install 'pccl[torch]' ({_error})", name=_error.name) from None

from pccl._core.errors import StateLostError
from pccl._exports import rehome as _rehome
from pccl.state._entries import Entries, module_tensors
from pccl.state._local.checkpoint import CheckpointError, load, save, warn_if_overridden
from pccl.state._local.objects import extra_states, load_extra_states, load_object_state, object_state
from pccl.state._local.tree import LIMIT_BYTES, TreeError, allow, decode, encode
from pccl.state._snapshots.config import Restored, Snapshots
from pccl.state._start import Start, highest_step

__all__ = [
    "LIMIT_BYTES",
    "CheckpointError",
    "Entries",
    "MemoryReader",
    "MemoryWriter",
    "Restored",
    "Snapshots",
    "Start",
    "StateLostError",
    "TreeError",
    "allow",
    "decode",
    "drain",
    "encode",
    "extra_states",
    "highest_step",
    "load",
    "load_extra_states",
    "load_object_state",
    "module_tensors",
    "object_state",
    "save",
    "warn_if_overridden",
]

_LATE = ("MemoryReader", "MemoryWriter", "drain")
"""What imports torch's checkpoints, which takes a second."""

if TYPE_CHECKING:
    from pccl.state._memory_storage import MemoryReader, MemoryWriter, drain


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pccl.state import _memory_storage

    found = {late: getattr(_memory_storage, late) for late in _LATE}
    globals().update(found)
    _rehome(globals(), _LATE)
    return found[name]


_rehome(globals(), [name for name in __all__ if name not in _LATE])
