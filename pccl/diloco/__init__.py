"""Training over slow links: peers train by themselves and average what they have learned only now and then. Needs torch.

`DiLoCo` (arXiv 2311.08105) is one outer step after every `sync_every` steps of the inner optimizer. Peers may join and die at any
time: membership, averages and parity are handled inside. `AsyncDiLoCo` goes on training while the average travels, and
`StreamingDiLoCo` (arXiv 2501.18512) averages the model in fragments, one after another. See docs/diloco.md.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"pccl.diloco needs torch: pip install 'pccl[torch]' ({_error})", name=_error.name) from None

from pccl._core.errors import JoinError
from pccl._exports import rehome as _rehome
from pccl.diloco._async import AsyncDiLoCo
from pccl.diloco._base import Round
from pccl.diloco._compression import Compression
from pccl.diloco._diloco import DiLoCo
from pccl.diloco._streaming import StreamingDiLoCo

__all__ = ["AsyncDiLoCo", "Compression", "DiLoCo", "JoinError", "Round", "StreamingDiLoCo"]

_rehome(globals(), __all__)
