"""Metadata of DCP checkpoints as plain trees."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import pytest
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

from pccl.state._local.tree import TreeError, encode
from pccl.state._memory_metadata import Content, decode_content, encode_content


def made() -> Metadata:
    chunks = [
        ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3])),
        ChunkStorageMetadata(torch.Size([2, 0]), torch.Size([1, 3])),
    ]
    properties = TensorProperties(torch.bfloat16, requires_grad=True, memory_format=torch.channels_last)
    metadata = Metadata({"w": TensorStorageMetadata(properties, torch.Size([3, 3]), chunks), "v": BytesStorageMetadata()})
    metadata.planner_data = {"w": ("model", 0, "w"), "v": ("v",)}
    metadata.storage_data = {MetadataIndex("w", [2, 0], 1): "one", MetadataIndex("v"): "two"}
    metadata.storage_meta = StorageMeta("id", "save", None, ["a"])
    return metadata


def test_metadata_comes_back_equal():
    content = Content("7", made())
    found = decode_content(encode_content(content))
    assert found == content
    assert [one.index for one in found.metadata.storage_data] == [1, None]
    one = found.metadata.state_dict_metadata["w"]
    assert isinstance(one, TensorStorageMetadata)
    assert type(one.size) is type(one.chunks[1].offsets) is torch.Size
    empty = Content(None, Metadata({}))
    assert decode_content(encode_content(empty)).metadata.state_dict_metadata == {}


class Own:
    """A class that no reader needs to know."""


def test_other_objects_are_refused_by_name():
    metadata = made()
    metadata.planner_data = {"w": Own()}
    with pytest.raises(TreeError, match=r"test_memory_metadata\.Own"):
        encode_content(Content(None, metadata))
    metadata = made()
    metadata.state_dict_metadata["w"] = Own()  # type: ignore[assignment]
    with pytest.raises(TreeError, match=r"w has a .*test_memory_metadata\.Own"):
        encode_content(Content(None, metadata))


class Called:
    """Notes that somebody has unpickled it."""

    ran: ClassVar[list[int]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Called.ran.append, (1,)


def test_pickles_and_malformed_trees_are_refused_and_run_nothing():
    with pytest.raises(TreeError):
        decode_content(pickle.dumps(Called()))
    good: dict[str, Any] = {"id": None, "state": {}, "planner": None, "storage": [], "meta": None, "version": None}
    properties = [torch.float32, "torch.strided", False, "torch.contiguous_format", False]
    item = {"properties": properties, "size": [1], "chunks": []}
    assert decode_content(bytes(encode({**good, "state": {"w": item}}))).metadata.state_dict_metadata["w"]
    bads: list[Any] = [
        [],
        {},
        {**good, "storage": [["w"]]},
        {**good, "meta": [1, 2, 3, 4, 5]},
        {**good, "state": {"w": 7}},
        {**good, "state": {"w": {**item, "size": ["x"]}}},
        {**good, "state": {"w": {**item, "properties": ["float32", *properties[1:]]}}},
        {**good, "state": {"w": {**item, "properties": [torch.float32, "torch.ones", *properties[2:]]}}},
    ]
    for bad in bads:
        with pytest.raises(TreeError):
            decode_content(bytes(encode(bad)))
    assert not Called.ran
