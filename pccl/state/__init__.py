"""The state of a training: how peers hand it to each other.

Nothing here unpickles. Peers exchange plain trees (`encode`, `decode`): numbers, strings, bytes, tensors, arrays, and lists,
tuples, dicts and sets of these. `allow` adds a class.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"pccl.state needs torch: pip install 'pccl[torch]' ({_error})", name=_error.name) from None

from pccl.state._objects import load_object_state, object_state
from pccl.state._tree import LIMIT_BYTES, TreeError, allow, decode, encode

__all__ = ["LIMIT_BYTES", "TreeError", "allow", "decode", "encode", "load_object_state", "object_state"]
