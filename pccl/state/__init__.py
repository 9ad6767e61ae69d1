"""The state of a training: how peers hand it to each other, and how it is saved.

Nothing here unpickles what another peer sends. Peers exchange plain trees (`encode`, `decode`): numbers, strings, bytes, tensors,
arrays, and lists, tuples, dicts and sets of these. `allow` adds a class. Tensors that all members hold alike are `Entries` of a
shared state. `save` and `load` are checkpoints in the format of `torch.distributed.checkpoint`. `MemoryWriter` and `MemoryReader`
keep checkpoints of torch in the memory of hosts; their metadata alone is unpickled.
"""

from pccl._exports import lazy as _lazy
from pccl._exports import modules_of as _modules_of
from pccl._exports import require_torch as _require_torch

_require_torch(__name__)
__all__ = sorted(_modules_of(__name__))
__getattr__, __dir__ = _lazy(__name__)
