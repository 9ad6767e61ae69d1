"""Training over slow links: peers train by themselves and average what they have learned only now and then. Needs torch.

`DiLoCo` (arXiv 2311.08105) is one outer step after every `sync_every` steps of the inner optimizer. Peers may join and die at any
time: membership, averages and parity are handled inside. `AsyncDiLoCo` goes on training while the average travels, and
`StreamingDiLoCo` (arXiv 2501.18512) averages the model in fragments, one after another. See docs/diloco.md.
"""

from pccl._exports import lazy as _lazy
from pccl._exports import modules_of as _modules_of
from pccl._exports import require_torch as _require_torch

_require_torch(__name__)
__all__ = sorted(_modules_of(__name__))
__getattr__, __dir__ = _lazy(__name__)
