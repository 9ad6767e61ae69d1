"""What the core refuses of a collective over a group, before anybody hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pccl
from pccl._collectives import Collective

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
