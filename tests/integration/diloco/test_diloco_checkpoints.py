"""Checkpoints, the election of the state that a run begins with, and outer optimizers."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from performers import PATIENCE
from torch import nn

import pccl
from pccl.diloco import AsyncDiLoCo, DiLoCo, StreamingDiLoCo

KINDS = [DiLoCo, AsyncDiLoCo, StreamingDiLoCo]


class Sign(torch.optim.Optimizer):
    """An optimizer of a user: its state has no `_init_group`, and a number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["steps"] = state.get("steps", 0) + 1
                state["mean"] = state.get("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                p.sub_(state["mean"].sign(), alpha=group["lr"])


def model() -> nn.Module:
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)]
    return nn.Sequential(*layers)


class Peer:
    def __init__(
        self, address: str, seed: int, kind: Any = DiLoCo, make: Callable[[], nn.Module] = model, **settings: Any
    ) -> None:
        torch.manual_seed(seed)
        self.model = make()
        self.random = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.comm = pccl.Communicator(address)
        state = {"epoch": seed, "schedule": self.schedule}
        self.diloco = kind(self.model, self.comm, self.optimizer, **{"sync_every": 2, "state": state, **settings})

    def round(self) -> Any:
        while True:
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4, generator=self.random)).square().mean().backward()
            self.optimizer.step()
            if done := self.diloco.step():
                self.schedule.step()
                return done

    def connected(self) -> bool:
        try:
            return self.comm.world_size > 0
        except pccl.UsageError:
            return False


@pytest.fixture
def master() -> Iterator[str]:
    with pccl.MasterNode("127.0.0.1:0", heartbeat_limit=30) as node:
        yield f"127.0.0.1:{node.port}"


def together(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        return [one.result(PATIENCE) for one in running]


def start_in_order(peers: list[Peer]) -> None:
    """Each begins to join after the one before it has been let in or waits for that."""
    with ThreadPoolExecutor(len(peers)) as pool:
        running = []
        for peer in peers:
            running.append(pool.submit(peer.diloco.start))
            if peer is peers[0]:
                deadline = time.monotonic() + PATIENCE
                while not peer.connected() and not running[0].done():
                    assert time.monotonic() < deadline
        for one in running:
            one.result(PATIENCE)


def same(peers: list[Peer]) -> str:
    parities = {peer.diloco.parity for peer in peers}
    assert len(parities) == 1
    for names in zip(*(peer.model.state_dict() for peer in peers), strict=True):
        assert len(set(names)) == 1
    return parities.pop()


def saved_run(master: str, tmp_path: Any, kind: Any, **settings: Any) -> tuple[list[int], str]:
    """Three peers that save after 1, 2 and 3 outer steps and are lost after that; the steps, and the parity of the last."""
    peers = [Peer(master, seed, kind, peers=3, **settings) for seed in range(3)]
    together(*(peer.diloco.start for peer in peers))
    for saves, peer in enumerate(peers):
        together(*(one.round for one in peers))
        peer.diloco.save(tmp_path / str(saves))
    parity = same(peers)
    for peer in peers:
        peer.comm.close()
    return [1, 2, 3], parity


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_highest_step_wins_whoever_connects_first(master, tmp_path, caplog, kind, order):
    if kind is not DiLoCo and order[0] == 2:
        pytest.skip("one order where the highest step comes late is enough for the others")
    steps, parity = saved_run(master, tmp_path, kind)
    peers = [Peer(master, 10 + at, kind, peers=3) for at in range(3)]
    for at, peer in enumerate(peers):
        peer.diloco.load(tmp_path / str(at))
        assert peer.diloco.outer_step == steps[at]
    with caplog.at_level(logging.WARNING, "pccl.diloco"):
        start_in_order([peers[at] for at in order])
    assert sum("loaded from a checkpoint" in record.message for record in caplog.records) == 2
    assert [peer.diloco.outer_step for peer in peers] == [3, 3, 3]
    assert same(peers) == parity
    assert {peer.diloco.state["epoch"] for peer in peers} == {peers[2].diloco.state["epoch"]}
    assert len({peer.schedule.last_epoch for peer in peers}) == 1
    for frozen in zip(*(peer.model[2].parameters() for peer in peers), strict=True):
        assert all(torch.equal(frozen[0], one) for one in frozen)
    for step in (4, 5):
        assert [done.outer_step for done in together(*(peer.round for peer in peers))] == [step] * 3
    assert same(peers) != parity
    together(*(peer.diloco.close for peer in peers))


def test_a_peer_without_a_checkpoint_gets_the_state_of_one_that_has_it(master, tmp_path):
    saved_run(master, tmp_path, DiLoCo)
    fresh, loaded = Peer(master, 7, peers=2), Peer(master, 8, peers=2)
    loaded.diloco.load(tmp_path / "2")
    start_in_order([fresh, loaded])
    assert fresh.diloco.outer_step == 3
    assert loaded.diloco.state["epoch"] == fresh.diloco.state["epoch"]
    assert torch.equal(fresh.model[2].weight, loaded.model[2].weight)
    together(fresh.round, loaded.round)
    same([fresh, loaded])
    together(fresh.diloco.close, loaded.diloco.close)


def test_a_checkpoint_gives_way_to_a_run_under_way(master, tmp_path, caplog):
    saved_run(master, tmp_path, DiLoCo)
    first, late = Peer(master, 1), Peer(master, 2)
    late.diloco.load(tmp_path / "2")
    first.diloco.start()
    first.round()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(late.diloco.start)
        while not first.round().admitted:
            pass
        joining.result(PATIENCE)
    assert "outer step 3" in caplog.text
    assert "is replaced by that of the run" in caplog.text
    assert late.diloco.outer_step == first.diloco.outer_step
    together(first.round, late.round)
    same([first, late])
    together(first.diloco.close, late.diloco.close)


@pytest.mark.parametrize("settings", [{"compression": "int4"}, {"compression": "sparse"}, {"weight": 2.0, "compression": "int8"}])
def test_a_run_goes_on_as_if_it_had_not_been_lost(master, settings):
    def rounds(peer: Peer, count: int) -> None:
        for _ in range(count):
            peer.round()

    peers = [Peer(master, seed, peers=2, **settings) for seed in (1, 2)]
    start_in_order(peers)
    together(*(lambda peer=peer: rounds(peer, 2) for peer in peers))
    saved = [(peer.diloco.state_dict(), peer.random.get_state()) for peer in peers]
    together(*(lambda peer=peer: rounds(peer, 2) for peer in peers))
    expected = same(peers)
    together(*(peer.diloco.close for peer in peers))
    again = [Peer(master, seed, peers=2, **settings) for seed in (3, 4)]
    for peer, (state, random) in zip(again, saved, strict=True):
        peer.diloco.load_state_dict(state)
        peer.random.set_state(random)
        assert peer.diloco.outer_step == 2
        left_out = peer.diloco._averager.residual
        assert left_out is not None
        assert left_out.any()
    start_in_order(again)
    together(*(lambda peer=peer: rounds(peer, 2) for peer in again))
    assert same(again) == expected
    together(*(peer.diloco.close for peer in again))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", [lambda ps: torch.optim.SGD(ps, lr=0.5, momentum=0.9), torch.optim.AdamW, Sign])
def test_the_state_of_an_outer_optimizer_is_shared_and_saved(master, tmp_path, kind, optimizer):
    settings = {"outer_optimizer": optimizer, "compression": "int8"}
    _, parity = saved_run(master, tmp_path, kind, **settings)
    peers = [Peer(master, seed, kind, peers=2, **settings) for seed in (5, 6)]
    peers[1].diloco.load(tmp_path / "2")
    start_in_order(peers)
    assert all(peer.diloco.outer_step == 3 for peer in peers)
    together(*(peer.round for peer in peers))
    same(peers)
    joiner = Peer(master, 7, kind, **settings)
    with ThreadPoolExecutor(3) as pool:
        joining = pool.submit(joiner.diloco.start)
        while not together(*(peer.round for peer in peers))[0].admitted:
            pass
        joining.result(PATIENCE)
    everyone = [*peers, joiner]
    for _ in range(2):
        done = together(*(peer.round for peer in everyone))
        assert all(one.repaired_bytes == 0 for one in done)
    assert same(everyone) != parity
    together(*(peer.diloco.close for peer in everyone))


def test_an_outer_sgd_is_the_default(master):
    def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)

    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    peers = [Peer(master, 1, make=linear), Peer(master, 1, make=linear, outer_optimizer=sgd)]
    for peer in peers:
        with peer.diloco:
            for _ in range(3):
                peer.round()
    torch.testing.assert_close(peers[0].diloco.outer.parameters, peers[1].diloco.outer.parameters)


def test_what_cannot_be_loaded_is_refused_by_name(master):
    peer = Peer(master, 1)
    saved = peer.diloco.state_dict()
    before = peer.diloco.parity
    for other, text in (
        (Peer(master, 2, AsyncDiLoCo), "AsyncDiLoCo"),
        (Peer(master, 2, make=lambda: nn.Sequential(model(), nn.Linear(2, 2))), "parameter/"),
        (Peer(master, 2, outer_optimizer=torch.optim.AdamW), "AdamW|momentum"),
        (Peer(master, 2, state={"step": 1}), "'epoch'|'step'|'schedule'"),
    ):
        with pytest.raises(ValueError, match=text):
            peer.diloco.load_state_dict(other.diloco.state_dict())
        assert peer.diloco.parity == before
    with peer.diloco, pytest.raises(RuntimeError, match="before the with block"):
        peer.diloco.load_state_dict(saved)
    for settings in ({"outer_lr": 0.5}, {"outer_momentum": 0.5}):
        with pytest.raises(ValueError, match="outer_optimizer"):
            Peer(master, 1, outer_optimizer=torch.optim.AdamW, **settings)
    with pytest.raises(ValueError, match="closure"):
        Peer(master, 1, outer_optimizer=torch.optim.LBFGS)
    with pytest.raises(TypeError, match="outer_optimizer"):
        Peer(master, 1, outer_optimizer=lambda ps: None)
    with pytest.raises(ValueError, match="exactly"):
        Peer(master, 1, outer_optimizer=lambda ps: torch.optim.SGD(ps[:1], lr=1))


def test_settings_of_a_checkpoint_replace_others(master, caplog):
    saved = Peer(master, 1, outer_lr=0.25, sync_every=3).diloco.state_dict(inner_optimizer=False)
    peer = Peer(master, 2, peers=1)
    peer.diloco.load_state_dict(saved)
    assert peer.diloco.outer_lr == 0.25
    assert "outer_lr is 0.25, as in the checkpoint, not 0.7" in caplog.text
    with peer.diloco:
        assert peer.round().inner_steps == 3
