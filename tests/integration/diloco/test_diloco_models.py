"""Kinds of models, what a joiner gets beside them, and how the class is used: peers as threads."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo
from performers import PATIENCE
from torch import nn

import pccl
from pccl.diloco import AsyncDiLoCo, Compression, DiLoCo, StreamingDiLoCo
from pccl.diloco._average import Averager

torch._dynamo.list_backends()  # threads would import it at once


class Tied(nn.Module):
    """Shared, frozen and unused parameters, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.frozen(self.embed(x))))


class Peer:
    """A thread's model, and a few steps of training."""

    def __init__(self, address: str, seed: int, make: Callable[[], nn.Module], kind: Any = DiLoCo, **settings: Any) -> None:
        torch.manual_seed(seed)
        self.model = make()
        self.seed = seed
        self.comm = pccl.Communicator(address)
        self.optimizer = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.05)
        self.diloco = kind(self.model, self.comm, self.optimizer, **{"sync_every": 2, **settings})

    def enter(self) -> None:
        self.diloco.__enter__()

    def round(self) -> Any:
        random = torch.Generator().manual_seed(self.seed)
        while True:
            x = torch.randint(6, (8,), generator=random)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x).float(), x).backward()
            self.optimizer.step()
            if done := self.diloco.step():
                return done


@pytest.fixture
def master() -> Iterator[str]:
    with pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30) as node:
        yield f"127.0.0.1:{node.port}"


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Makes all calls at once and gives what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [one.result(PATIENCE) for one in running]


def simple() -> nn.Module:
    return nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6))


def low_precision() -> nn.Module:
    return simple().to(torch.bfloat16)


def mixed() -> nn.Module:
    model = simple()
    model[0].to(torch.bfloat16)
    return nn.Sequential(model[0], nn.Linear(4, 6).to(torch.bfloat16))


def compiled() -> nn.Module:
    return torch.compile(simple(), backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [DiLoCo, AsyncDiLoCo])
@pytest.mark.parametrize("make", [simple, low_precision, mixed, compiled, Tied])
def test_all_members_hold_the_same_model(master, make, kind):
    peers = [Peer(master, seed, make, kind, peers=2) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    for _ in range(3):
        first, second = together(*(peer.round for peer in peers))
        assert first.outer_step == second.outer_step
        assert first.inner_steps == 2
        assert first.repaired_bytes == 0
        assert peers[0].diloco.parity == peers[1].diloco.parity
    if kind is AsyncDiLoCo:
        together(*(peer.diloco.finish for peer in peers))
    for own, other in zip(*(peer.model.named_parameters() for peer in peers), strict=True):
        assert torch.equal(own[1], other[1]), own[0]
    for peer in peers:
        peer.comm.close()


@pytest.mark.parametrize("kind", [DiLoCo, AsyncDiLoCo])
@pytest.mark.parametrize("compression", ["int8", "int4", Compression("e3m0", stochastic=True), "sparse"])
def test_compressed_averages_leave_the_same_bits_and_reach_joiners(master, compression, kind):
    settings = {"compression": compression, "weight": lambda: 2.0}
    peers = [Peer(master, seed, simple, kind, peers=2, **settings) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    before = peers[0].diloco.outer.parameters.clone()
    assert peers[0].diloco.outer_momentum == (0 if compression == "sparse" else 0.9)
    together(*(peer.round for peer in peers))
    joiner = Peer(master, 3, simple, kind, **settings)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(joiner.enter)
        while not together(*(peer.round for peer in peers))[0].admitted:
            pass
        if kind is AsyncDiLoCo:
            rounds = together(*(peer.round for peer in peers), lambda: (joining.result(PATIENCE), joiner.round())[1])
        joining.result(PATIENCE)
    peers.append(joiner)
    rounds = together(*(peer.round for peer in peers))
    assert not any(one.repaired_bytes for one in rounds)
    assert len({peer.diloco.parity for peer in peers}) == 1
    assert not torch.equal(peers[0].diloco.outer.parameters, before)
    for peer in peers:
        peer.comm.close()


def test_a_compiled_model_trains_with_one_that_is_not(master):
    peers = [Peer(master, 1, simple, peers=2), Peer(master, 2, compiled, peers=2)]
    together(*(peer.enter for peer in peers))
    together(*(peer.round for peer in peers))
    assert peers[0].diloco.parity == peers[1].diloco.parity
    for peer in peers:
        peer.comm.close()


def test_what_a_joiner_gets(master):
    schedules: list[Any] = []

    def make(seed: int) -> Peer:
        peer = Peer(master, seed, Tied)
        schedules.append(torch.optim.lr_scheduler.StepLR(peer.optimizer, 3))
        peer.diloco = DiLoCo(
            peer.model,
            peer.comm,
            peer.optimizer,
            sync_every=2,
            outer_lr=0.5,
            state={"epoch": 0, "schedule": schedules[-1], "means": torch.zeros(2)},
        )
        return peer

    first = make(1)
    first.enter()
    for _ in range(4):
        first.optimizer.step()
        schedules[0].step()
    first.diloco.state["epoch"] = 3
    first.diloco.state["means"] = torch.ones(2)
    first.diloco.outer_lr = 0.6
    second = make(2)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.enter)
        while not first.round().admitted:
            pass
        joining.result(PATIENCE)
    assert second.diloco.state["epoch"] == 3
    assert second.diloco.state["means"].tolist() == [1, 1]
    assert [schedule.last_epoch for schedule in schedules] == [4, 4]
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"] < schedules[0].base_lrs[0]
    assert second.diloco.outer_lr == first.diloco.outer_lr == 0.6
    assert torch.equal(second.model.frozen.weight, first.model.frozen.weight)
    assert torch.equal(second.model.norm.running_mean, first.model.norm.running_mean)
    assert torch.equal(second.model.unused, first.model.unused)
    together(first.round, second.round)
    assert second.diloco.parity == first.diloco.parity
    for peer in (first, second):
        peer.comm.close()


def test_a_joiner_with_other_objects_is_not_waited_for(master):
    first, second = Peer(master, 1, simple), Peer(master, 2, simple)
    first.diloco = DiLoCo(first.model, first.comm, first.optimizer, sync_every=2, state={"optimizer": first.optimizer})
    first.enter()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.enter)
        while not first.round().admitted:
            pass
        with pytest.raises(ValueError, match=r"value 'optimizer' is .*SGD at rank 0 .* and missing at rank 1 "):
            joining.result(PATIENCE)
    assert not second.comm.alive
    first.round()
    assert first.round().world_size == 1
    first.comm.close()


def test_slower_peers_make_fewer_steps(master):
    peers = [Peer(master, seed, simple, sync_every=100, sync_seconds=0.2, peers=2, weight=1.0) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    make = peers[1].optimizer.step

    def slowly() -> None:
        time.sleep(0.05)
        make()

    peers[1].optimizer.step = slowly  # type: ignore[method-assign, assignment]
    rounds = together(*(peer.round for peer in peers))
    assert [one.outer_step for one in rounds] == [1, 1]
    assert 1 <= rounds[1].inner_steps <= 5
    assert peers[0].diloco.parity == peers[1].diloco.parity
    for peer in peers:
        peer.comm.close()


def test_fragments_of_a_model_with_shared_and_low_precision_parameters(master):
    asked = []
    settings = {
        "sync_every": 4,
        "fragments": ["embed", ["norm", "unused"]],
        "overlap": 2,
        "weight": lambda: asked.append(1) or 2.0,
    }

    def make() -> nn.Module:
        return Tied().to(torch.bfloat16)

    peers = [Peer(master, seed, make, StreamingDiLoCo, peers=2, **settings) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    before = peers[0].diloco.fragments[0].outer.parameters.clone()
    together(*(peer.round for peer in peers))
    rounds = together(*(peer.round for peer in peers))
    assert len(asked) == 4, "each peer is asked once per round"
    assert rounds[0].contributors == rounds[1].contributors
    assert len({peer.diloco.parity for peer in peers}) == 1
    assert [one.names for one in peers[0].diloco.fragments] == [["embed.weight"], ["unused", "norm.weight", "norm.bias"]]
    assert not torch.equal(peers[0].diloco.fragments[0].outer.parameters, before)
    for peer in peers:
        peer.comm.close()


def test_fragments_by_time(master):
    settings = {"fragments": 2, "overlap": 1, "sync_seconds": 0.1, "weight": 1.0}
    peers = [Peer(master, seed, simple, StreamingDiLoCo, peers=2, **settings) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    rounds = together(*(peer.round for peer in peers))
    assert [one.outer_step for one in rounds] == [1, 1]
    assert all(one.inner_steps >= 1 for one in rounds)
    assert peers[0].diloco.parity == peers[1].diloco.parity
    for peer in peers:
        peer.comm.close()


def test_state_that_was_changed_in_memory_is_repaired(master, caplog):
    peers = [Peer(master, seed, simple, peers=3) for seed in (1, 2, 3)]
    together(*(peer.enter for peer in peers))
    together(*(peer.round for peer in peers))
    broken = peers[1].diloco
    broken.outer.momentum[3] += 1
    with caplog.at_level(logging.WARNING, "pccl.diloco"):
        rounds = together(*(peer.round for peer in peers))
    assert [bool(one.repaired_bytes) for one in rounds] == [False, True, False]
    assert "differed from those of most members" in caplog.text
    assert len({peer.diloco.parity for peer in peers}) == 1
    for peer in peers:
        peer.comm.close()


def test_it_closes_what_it_has_connected_and_nothing_else(master):
    first = Peer(master, 1, simple)
    with first.diloco:
        assert first.round().world_size == 1
    assert not first.comm.alive
    second = Peer(master, 2, simple)
    second.comm.connect()
    with second.diloco:
        second.round()
    assert second.comm.alive
    with pytest.raises(KeyError), second.diloco:
        raise KeyError
    assert not second.comm.alive


@pytest.mark.parametrize("kind", [DiLoCo, AsyncDiLoCo, StreamingDiLoCo])
def test_a_run_begins_with_the_model_as_it_is_then(master, kind):
    peer = Peer(master, 1, simple, kind)
    checkpoint = simple().state_dict()
    peer.model.load_state_dict(checkpoint)
    with peer.diloco:
        assert all(torch.equal(value, checkpoint[name]) for name, value in peer.model.state_dict().items())
        parity = peer.diloco.parity
    other = Peer(master, 1, simple, kind)
    other.model.load_state_dict(checkpoint)
    with other.diloco:
        assert other.diloco.parity == parity


def test_what_is_wrong_is_told(master):
    peer = Peer(master, 1, simple)
    with pytest.raises(RuntimeError, match="inside its with block"):
        peer.diloco.step()
    with pytest.raises(RuntimeError, match="exchange no weights"):
        peer.diloco.weight = 3
    arguments = (peer.model, peer.comm, peer.optimizer)
    wrong: dict[str, Any]
    for wrong in ({"sync_every": 0}, {"sync_seconds": 0}, {"peers": 0}, {"compression": "zip"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DiLoCo(*arguments, **wrong)
    with pytest.raises(ValueError, match="eager"):
        AsyncDiLoCo(*arguments, eager=2)
    for wrong in ({"overlap": 100}, {"mixing": 2}, {"compression": "sparse"}, {"fragments": 9}, {"pattern": "none"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            StreamingDiLoCo(*arguments, **{"fragments": 2, **wrong})
    for wrong in (
        {"outer_lr": -1},
        {"outer_momentum": float("nan")},
        {"shards": 0},
        {"weight": -1},
        {"weight": "many"},
        {"weight": 1e39},
        {"outer_lr": "0.7"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DiLoCo(*arguments, **wrong)
    for wrong in ({"sync_every": None}, {"sync_every": 2.5}, {"sync_seconds": "1"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            DiLoCo(*arguments, **wrong)
    with pytest.raises(ValueError, match="inner_optimizer has no parameter"):
        DiLoCo(peer.model, peer.comm, Peer(master, 2, simple).optimizer)
    for wrong in ({"overlap": 0.5}, {"fragments": 2.0}, {"fragments": "0"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            StreamingDiLoCo(*arguments, **wrong)
    for place in range(3):
        with pytest.raises(TypeError):
            DiLoCo(*arguments[:place], "wrong", *arguments[place + 1 :])
    with DiLoCo(*arguments, sync_every=1, weight=lambda: -1) as diloco, pytest.raises(ValueError, match="weight must be"):
        diloco.step()


@pytest.mark.parametrize("compression", ["int8", "int4", "e3m0", Compression("int4", stochastic=True, block=64)])
def test_what_rounding_takes_away_comes_with_later_averages(master, compression):
    weights = [1.0, 3.0, 0.5]
    units = [1, 1, 1000, 1000, 0, 0.01, 1, 1]  # of all weights, round by round
    random = torch.Generator().manual_seed(3)
    given = torch.randn(8, 3, 1000, generator=random)
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []

    def peer(number: int) -> None:
        with pccl.Communicator(master) as comm:
            comm.connect()
            comm.wait_for_peers(3)
            averager = Averager(1000, Compression.of(compression))
            applied = torch.zeros(1000, dtype=torch.float64)
            for one, unit in zip(given, units, strict=True):
                buffer = one[number].clone()
                averager.launch(comm, buffer, weights[number] * unit).wait()
                applied += buffer.double() * sum(weights)
            ends.append((applied, averager.residual.double()))
            comm.are_peers_pending()

    together(*(functools.partial(peer, number) for number in range(3)))
    assert all(torch.equal(applied, ends[0][0]) for applied, _ in ends)
    total = ends[0][0] + sum(residual for _, residual in ends)
    counts = torch.tensor([unit > 0 for unit in units])
    wanted = (given.double()[counts] * torch.tensor(weights).view(1, 3, 1)).sum((0, 1))
    torch.testing.assert_close(total, wanted, rtol=0, atol=1e-4)
    assert not torch.allclose(ends[0][0], wanted, rtol=0, atol=1e-3)
