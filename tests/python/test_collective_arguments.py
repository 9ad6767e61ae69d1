"""What the core refuses of a collective over a group, before anybody hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pccl
from pccl._ops.collectives import Collective

ROOM = np.zeros(64, dtype=np.float32)
HERE = ROOM.ctypes.data


@pytest.fixture(scope="module")
def alone() -> Iterator[pccl.Communicator]:
    with pccl.MasterNode("127.0.0.1:0") as master:
        with pccl.Communicator(f"127.0.0.1:{master.port}") as comm:
            comm.connect(timeout=20)
            yield comm


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (Collective.ALL_TO_ALL, {"count": 4, "send_counts": [4]}, "leave send_counts and recv_counts NULL"),
        (Collective.ALL_TO_ALL_V, {"send_counts": [4]}, "needs send_counts and recv_counts"),
        (Collective.ALL_TO_ALL_V, {"recv": HERE + 64, "send_counts": [2], "recv_counts": [5]}, "they must be equal"),
        (Collective.BROADCAST, {"count": 4, "root": 1}, "root 1 is not in a group of 1"),
        (Collective.SEND, {"count": 4}, "a group of 2, and this one has 1"),
        (Collective.REDUCE_SCATTER, {"count": 4, "recv": HERE + 8}, "overlap"),
        (Collective.ALL_GATHER, {"count": 4, "recv": HERE + 8}, "overlap"),
        (Collective.ALL_REDUCE, {"count": 4, "recv": HERE + 8}, "must be equal or apart"),
        (Collective.ALL_REDUCE, {"count": 4, "send": 0}, "sendbuf is NULL, and 4 elements are sent"),
        (Collective.ALL_REDUCE, {"count": 4, "recv": 0}, "recvbuf is NULL, and 4 elements are received"),
        (Collective.ALL_REDUCE, {"count": 1 << 62}, "more elements than memory can hold"),
        (Collective.ALL_REDUCE, {"count": 4, "op": pccl.ReduceOp.BXOR}, "not defined for float32"),
    ],
)
def test_a_wrong_call(alone: pccl.Communicator, kind: Collective, arguments: dict[str, Any], words: str) -> None:
    group = alone.group(alone.members)
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT") as raised:
        alone.launch(kind, group=group, tag=1, dtype=pccl.DataType.FLOAT, **({"send": HERE, "recv": HERE} | arguments))
    assert words in str(raised.value)
    alone.launch(Collective.BARRIER, group=group, tag=1).wait(10)  # the tag is free


def test_a_wrong_group(alone: pccl.Communicator) -> None:
    me, nobody = alone.uuid, type(alone.uuid)(int=7)
    for members, words in (([], "1 to 1024 are possible"), ([nobody], "not among the members"), ([me, me], "the same peer")):
        with pytest.raises(pccl.PCCLError) as raised:
            alone.group(members)
        assert words in str(raised.value)


@pytest.mark.parametrize("count", [0, 1, 100_000, 3_000_000, 5_000_000])
@pytest.mark.parametrize("kind", list(Collective))
def test_a_group_of_one(alone: pccl.Communicator, kind: Collective, count: int) -> None:
    if kind is Collective.SEND:
        return
    source = np.arange(count, dtype=np.float32)
    target = np.full(count, -1, dtype=np.float32)
    parts: dict[str, Any] = {"count": count}
    if kind is Collective.ALL_TO_ALL_V:
        parts = {"send_counts": [count], "recv_counts": [count]}
    group = alone.group([alone.uuid])
    done = alone.launch(
        kind, group=group, tag=3, send=source.ctypes.data, recv=target.ctypes.data, dtype=pccl.DataType.FLOAT, **parts
    ).wait(20)
    assert done.world_size == 1
    with pytest.warns(DeprecationWarning, match="world_size"):
        assert done.contributors == 1
    if kind not in (Collective.BARRIER, Collective.BROADCAST):
        assert (target == source).all()
