"""Data for trainings whose members come and go: each sample of an epoch is in exactly one committed step (docs/data.md)."""

from pccl._exports import lazy as _lazy
from pccl._exports import modules_of as _modules_of
from pccl._exports import require_torch as _require_torch

_require_torch(__name__)
__all__ = sorted(_modules_of(__name__))
__getattr__, __dir__ = _lazy(__name__)
