"""The public names of `pccl.data`, and where they are defined."""

from pccl.data._sampler import ElasticSampler as ElasticSampler
from pccl.data._shards import ElasticShards as ElasticShards

__all__: list[str]
