"""Programs that have set another default device. Here it is "meta", in the thread of each peer.

Its tensors hold no bytes, so one that the package makes there fails at once.
"""

from __future__ import annotations

import ast
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers import PATIENCE, address_of, on_all, team
from torch import nn

import pccl
from pccl.data import ElasticSampler
from pccl.diloco import AsyncDiLoCo, DiLoCo, StreamingDiLoCo
from pccl.state import Snapshots

FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "normal", "ones", "rand", "randint",
    "randn", "randperm", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip


def test_the_package_names_the_device_of_each_tensor_that_it_makes():
    package = Path(pccl.__file__).parent
    found = []
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "demo"):  # a program by itself
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=made)) if made in FACTORIES:
                    if not any(keyword.arg in ("device", None) for keyword in node.keywords):
                        found.append(f"{path}:{node.lineno}: torch.{made}")
    assert found == []


@pytest.mark.parametrize("kind", [DiLoCo, AsyncDiLoCo, StreamingDiLoCo])
@pytest.mark.parametrize("compression", [None, "int8", "sparse"])
def test_outer_steps(kind: Any, compression: str | None):
    if kind is StreamingDiLoCo and compression == "sparse":
        pytest.skip("StreamingDiLoCo has no sparse averages")
    more = {"fragments": 2, "overlap": 1} if kind is StreamingDiLoCo else {}

    def train(address: str, rank: int) -> Any:
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.randn(8, 4)

        comm = pccl.Communicator(address)
        state = {"seen": np.zeros(1), "step": 0}
        settings = {"sync_every": 2, "peers": 2, "compression": compression, "state": state, **more}
        with torch.device("meta"), kind(model, comm, optimizer, **settings) as diloco:
            for _ in range(6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                diloco.step()
            if kind is AsyncDiLoCo:
                diloco.finish()
            return diloco.parity

    with pccl.MasterNode("127.0.0.1:0") as master:
        first, second = on_all([address_of(master)] * 2, train)
    assert first == second


def test_a_shared_state_and_parity():
    def work(comm: pccl.Communicator, rank: int) -> Any:
        torch.manual_seed(rank)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.device("meta"):
            state = pccl.SharedState.from_module(model, optimizer, {"step": 0, "best": 1.5})
            comm.sync_shared_state(state, timeout=PATIENCE)
            comm.check_parity(model, timeout=PATIENCE)
            return state.hash()

    with team([0, 0]) as comms:
        first, second = on_all(comms, work)
        assert first == second


def test_samplers():
    data = list(range(20))

    def draw(comm: pccl.Communicator, rank: int) -> list[int]:
        with torch.device("meta"):
            sampler = ElasticSampler(data, seed=3, communicator=comm)
            sampler.sync(comm)
            drawn = list(sampler)
            sampler.commit(timeout=PATIENCE)
            return drawn

    with team([0, 0]) as comms:
        first, second = on_all(comms, draw)
        assert sorted(first + second) == data


def test_snapshots_of_plain_tensors():
    def keep(comm: pccl.Communicator, rank: int) -> Any:
        part = torch.arange(6.0).reshape(2, 3)[rank : rank + 1].clone()
        restored = torch.zeros_like(part)
        snapshots = Snapshots(name=uuid.uuid4().hex, holder=False)
        options: dict[str, Any] = {"snapshots": snapshots, "shards": {"w": ((2, 3), (rank, 0))}, "timeout": PATIENCE}
        with torch.device("meta"):
            comm.snapshot({"w": part}, step=5, **options)
            assert comm.wait_for_snapshot()
            return comm.restore({"w": restored}, **options), restored, part

    with team([0, 0]) as comms:
        for told, restored, part in on_all(comms, keep):
            assert told.step == 5
            assert torch.equal(restored, part)
