"""Data for trainings whose members come and go: each sample of an epoch is in exactly one committed step (docs/data.md)."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(f"pccl.data needs torch: pip install 'pccl[torch]' ({_error})", name=_error.name) from None

from pccl._exports import rehome as _rehome
from pccl.data._sampler import ElasticSampler
from pccl.data._shards import ElasticShards

__all__ = ["ElasticSampler", "ElasticShards"]

_rehome(globals(), __all__)
