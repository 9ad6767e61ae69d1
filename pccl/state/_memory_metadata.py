"""The metadata of a DCP checkpoint as bytes without pickle: reading it runs no code of whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from pccl.state._local.tree import TreeError, decode, encode, require_apart

_LAYOUTS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.layout)}
_FORMATS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.memory_format)}


class Content(NamedTuple):
    """What every rank keeps beside its items."""

    checkpoint_id: str | None
    metadata: Metadata


def encode_content(content: Content) -> bytes:
    """As a plain tree. TreeError: the metadata has an object of another class than torch's own metadata and plain values."""
    metadata = content.metadata
    _require(metadata, Metadata)
    meta = metadata.storage_meta
    if meta is not None:
        _require(meta, StorageMeta)
    tree = {
        "id": content.checkpoint_id,
        "state": {name: _item_tree(name, one) for name, one in metadata.state_dict_metadata.items()},
        "planner": metadata.planner_data,
        "storage": [[one.fqn, one.offset, one.index, name] for one, name in (metadata.storage_data or {}).items()],
        "meta": meta and [meta.checkpoint_id and str(meta.checkpoint_id), meta.save_id, meta.load_id, list(meta.modules)],
        "version": getattr(metadata, "version", None),
    }
    return bytes(encode(tree))


def decode_content(content: bytes) -> Content:
    """What `encode_content` was given. TreeError: the bytes are something else."""
    tree = decode(content)
    try:
        metadata = Metadata({str(name): _item(name, one) for name, one in tree["state"].items()})
        metadata.planner_data = tree["planner"]
        places = [MetadataIndex(str(fqn), offset, index) for fqn, offset, index, _ in tree["storage"]]
        require_apart(places)
        metadata.storage_data = {place: str(one[3]) for place, one in zip(places, tree["storage"], strict=True)}
        metadata.storage_meta = tree["meta"] and StorageMeta(*tree["meta"])
        if tree["version"] is not None:
            metadata.version = tree["version"]
        return Content(tree["id"], metadata)
    except TreeError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise TreeError(f"the metadata of the checkpoint is malformed: {type(error).__name__}: {error}") from None


def _require(value: Any, kind: type, place: str = "the metadata") -> None:
    if type(value) is not kind:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TreeError(f"{place} has a {name}, which cannot be kept in memory; it takes a {kind.__name__}")


def _item_tree(name: str, one: Any) -> Any:
    if type(one) is BytesStorageMetadata:
        return None
    _require(one, TensorStorageMetadata, name)
    _require(one.properties, TensorProperties, name)
    own = one.properties
    for chunk in one.chunks:
        _require(chunk, ChunkStorageMetadata, name)
    return {
        "properties": [own.dtype, str(own.layout), own.requires_grad, str(own.memory_format), own.pin_memory],
        "size": one.size,
        "chunks": [[chunk.offsets, chunk.sizes] for chunk in one.chunks],
    }


def _item(name: str, tree: Any) -> BytesStorageMetadata | TensorStorageMetadata:
    if tree is None:
        return BytesStorageMetadata()
    if not isinstance(tree, Mapping):
        raise TreeError(f"the metadata of {name} is malformed: a {type(tree).__name__}")
    dtype, layout, requires_grad, memory_format, pinned = tree["properties"]
    if not isinstance(dtype, torch.dtype):
        raise TreeError(f"the metadata of {name} is malformed: {dtype!r} is not a dtype")
    properties = TensorProperties(dtype, _LAYOUTS[layout], bool(requires_grad), _FORMATS[memory_format], bool(pinned))
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in tree["chunks"]]
    return TensorStorageMetadata(properties, torch.Size(tree["size"]), chunks)
