"""Finds the samplers of `pccl.data` in a framework's loaders."""

from __future__ import annotations

from typing import Any

from pccl.data import ElasticSampler


def elastic_samplers(*loaders: Any) -> dict[str, Any]:
    """Returns the ElasticSamplers of these loaders, by names for values of Elastic: the same on all members."""
    found: dict[str, Any] = {}
    for number, loader in enumerate(loaders):
        batches = getattr(loader, "batch_sampler", None)
        for one in (getattr(loader, "sampler", None), getattr(batches, "sampler", None)):
            if isinstance(one, ElasticSampler):
                found[f"data_{number}"] = one
    return found
