"""Images and their hashes, and what a configuration refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_boxes import boxes

from pccl.state._snapshots.boxes import Box, Slice, image_offsets
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Memory, Sum, changed_blocks, hash_image, hash_slice, runs, slice_of, write_image

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex128]


@given(st.data(), st.lists(st.integers(1, 4), max_size=3).map(tuple), st.sampled_from(DTYPES))
def test_the_hash_of_parts_is_that_of_the_whole(data, shape, dtype):
    whole = Box((0,) * len(shape), shape)
    content = torch.randint(0, 100, shape).to(dtype)

    def hashed(box: Box) -> Sum:
        part = Slice(str(dtype).removeprefix("torch."), dtype.itemsize, shape, box)
        return hash_slice("name", part, content[box.inside(whole)])

    box = data.draw(boxes(shape))
    total = hashed(box)
    for rest in whole.without(box):
        total += hashed(rest)
    assert total == hashed(whole)


@given(st.integers(0, 99), st.integers(0, 7), st.integers(1, 255))
def test_one_changed_bit_or_name_is_seen(place, byte, mask):
    content = torch.arange(100, dtype=torch.float64)
    part = Slice("float64", 8, (100,), Box((0,), (100,)))
    before = hash_slice("name", part, content)
    assert before != hash_slice("other", part, content)
    content.view(torch.uint8)[8 * place + byte] ^= mask
    assert before != hash_slice("name", part, content)


def test_exchanged_elements_are_seen():
    content = torch.arange(100, dtype=torch.int32)
    part = Slice("int32", 4, (100,), Box((0,), (100,)))
    before = hash_slice("name", part, content)
    content[[3, 60]] = content[[60, 3]]
    assert before != hash_slice("name", part, content)


@given(st.data(), st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_runs_are_the_elements_in_order(data, shape):
    box = data.draw(boxes(shape))
    index = torch.arange(math.prod(shape)).reshape(shape)
    run, starts = runs(shape, box)
    expected = index[box.inside(Box((0,) * len(shape), shape))].flatten().tolist()
    assert [start + at for start in starts for at in range(run)] == expected


def test_sums_go_through_signed_numbers():
    for one in (Sum(0, 1 << 63), Sum((1 << 64) - 1, 5)):
        assert Sum.of_signed(*one.signed()) == one
    assert Sum((1 << 64) - 1, 3) + Sum(2, 4) == Sum(1, 7)


def test_an_image_has_all_slices():
    shards = {
        "b": Slice("bfloat16", 2, (9, 3), Box((3, 0), (2, 3))),
        "a": Slice("float32", 4, (), Box((), ())),
        "none": Slice("float32", 4, (4,), Box((4,), (0,))),
    }
    tensors = {"a": torch.tensor(5.0), "b": torch.randn(2, 3).bfloat16(), "none": torch.empty(0)}
    offsets, size = image_offsets(shards)
    memory = Memory.new(size)
    write_image(tensors, shards, memory.bytes)
    for name, part in shards.items():
        assert torch.equal(slice_of(memory.bytes, offsets[name], part), tensors[name])
    total = hash_slice("a", shards["a"], tensors["a"]) + hash_slice("b", shards["b"], tensors["b"])
    assert hash_image(shards, memory.bytes, ["a", "b"]) == total


def test_changed_blocks_are_found():
    one = torch.zeros(3 * 65536 + 10, dtype=torch.uint8)
    other = one.clone()
    assert not changed_blocks(one, other).any()
    other[[65536, 3 * 65536 + 9]] = 1
    assert changed_blocks(one, other).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every must be 1 or more steps, not 0"),
        ({"copies": 1, "code": (2, 1)}, "copies or code, not both"),
        ({"copies": 0}, "copies must be from 1 to 255, not 0"),
        ({"code": (0, 1)}, r"code must be \(k, m\)"),
        ({"code": (200, 100)}, "at most 256 together"),
        ({"linger": -1.0}, "linger must be 0 or more seconds"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Snapshots(**options)


def test_a_run_is_named_by_its_job_or_its_master(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert Snapshots().name_of_run("host:1") == "host:1"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # of each job that torchrun starts without a rendezvous
    assert Snapshots().name_of_run("host:1") == "host:1"
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_STEP_ID", "2")
    assert Snapshots().name_of_run("host:1") == "17.2"
    assert Snapshots(name="mine").name_of_run("host:1") == "mine"
