"""Corners of DiLoCo: values that are not finite, settings that change, the end in mid-round, deaths of weighted members."""

from __future__ import annotations

import functools
import logging
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from performers import PATIENCE
from test_diloco_models import Peer, Tied, master, simple, together  # noqa: F401 - a fixture

import pccl
from pccl._peer.communicator import roll
from pccl.diloco import AsyncDiLoCo, Compression, DiLoCo, StreamingDiLoCo, _membership
from pccl.diloco._average import ROLL_TAG, Averager, _Dense, exchange

KINDS = [(DiLoCo, {}), (AsyncDiLoCo, {}), (StreamingDiLoCo, {"fragments": 2, "overlap": 1})]


def spoil(peer: Peer) -> None:
    with torch.no_grad():
        for parameter in peer.model.parameters():
            parameter[0] = math.nan


@pytest.mark.parametrize("weight", [None, 2.0])
@pytest.mark.parametrize("compression", [None, "int8", "sparse"])
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_member_that_is_not_finite_counts_with_weight_0(master, kind, settings, compression, weight, caplog):  # noqa: F811
    if kind is StreamingDiLoCo and compression == "sparse":
        pytest.skip("StreamingDiLoCo has no sparse averages")
    peers = [Peer(master, seed, simple, kind, peers=2, compression=compression, weight=weight, **settings) for seed in (1, 2)]
    together(*(peer.enter for peer in peers))
    bad, good = peers
    for _ in range(3):
        if bad.diloco.outer_step == 1:
            spoil(bad)
        together(*(peer.round for peer in peers))
    if kind is AsyncDiLoCo:
        together(*(peer.diloco.finish for peer in peers))
    assert bad.diloco.parity == good.diloco.parity
    for peer in peers:
        assert all(torch.isfinite(outer.parameters).all() for outer in peer.diloco._outers)
    assert "not finite: it counts with weight 0" in caplog.text
    for peer in peers:
        peer.comm.close()


def test_the_others_learn_whose_values_were_not_finite(master):  # noqa: F811
    peers = [Peer(master, seed, simple, peers=3, outer_lr=1.0, outer_momentum=0.0) for seed in (1, 2, 3)]
    together(*(peer.enter for peer in peers))
    before = peers[1].diloco.outer.parameters.clone()
    with torch.no_grad():
        for peer, change in zip(peers, (math.inf, 1.0, 3.0), strict=True):
            for parameter in peer.model.parameters():
                parameter.add_(change)
    rounds = together(*(peer.diloco.synchronize for peer in peers))
    assert all(one.not_finite == {peers[0].comm.uuid} for one in rounds)
    assert "1 not finite" in str(rounds[1])
    torch.testing.assert_close(peers[1].diloco.outer.parameters, before + 2.0)  # the mean of the finite ones
    for peer in peers:
        peer.comm.close()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_end_in_mid_round_is_the_same_model_on_all(master, kind, settings, caplog):  # noqa: F811
    make = Tied if kind is DiLoCo else simple
    peers = [Peer(master, seed, make, kind, peers=2, **{"sync_every": 4, **settings}) for seed in (1, 2)]

    def train(peer: Peer) -> None:
        with peer.diloco:
            peer.round()
            for step in range(2):
                for group in peer.optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.data.add_(peer.seed * (step + 1.0))
                assert peer.diloco.step() is None

    together(*(functools.partial(train, peer) for peer in peers))
    for (name, own), (_, other) in zip(*(peer.model.named_parameters() for peer in peers), strict=True):
        assert torch.equal(own, other) or not own.requires_grad, name
    assert "2 inner steps since the last outer step are dropped" in caplog.text


def test_a_learning_rate_that_is_a_function_is_right_at_a_joiner(master, caplog):  # noqa: F811
    def make(seed: int) -> Peer:
        return Peer(master, seed, simple, outer_lr=lambda step: 0.9**step, outer_momentum=lambda step: 0.5 + 0.01 * step)

    first, second = make(1), make(2)
    first.enter()
    first.round()
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.enter)
        while not first.round().admitted:
            pass
        joining.result(PATIENCE)
    for _ in range(3):
        told = together(first.round, second.round)
        assert [one.repaired_bytes for one in told] == [0, 0]
        assert first.diloco.parity == second.diloco.parity
        assert first.diloco.outer_lr == second.diloco.outer_lr == pytest.approx(0.9 ** told[0].outer_step)
    with pytest.raises(RuntimeError, match="outer_lr is a function"):
        first.diloco.outer_lr = 1.0
    assert "outer_lr is" not in caplog.text
    for peer in (first, second):
        peer.comm.close()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_block_may_be_entered_again(master, kind, settings):  # noqa: F811
    """Where the communicator stays open; also by a peer that was let in before an outer step."""
    first, second = (Peer(master, seed, simple, kind, **settings) for seed in (1, 2))
    first.comm.connect()
    first.enter()

    def join() -> None:
        second.comm.connect()
        second.enter()

    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join)
        while not first.round().admitted:
            pass
        joining.result(PATIENCE)
    for _ in range(2):
        together(first.round, second.round)
        together(first.diloco.close, second.diloco.close)
        before = first.diloco.outer_step, first.diloco.parity
        together(first.enter, second.enter)
        assert (first.diloco.outer_step, first.diloco.parity) == before
        assert first.diloco.parity == second.diloco.parity
    for peer in (first, second):
        peer.comm.close()


def unfreeze(model: torch.nn.Module) -> str:
    model[0].weight.requires_grad_(True)
    return "parameter 0.weight is trained now"


def freeze(model: torch.nn.Module) -> str:
    model[2].weight.requires_grad_(False)
    return "parameter 2.weight is no longer trained"


def replace(model: torch.nn.Module) -> str:
    model[2] = torch.nn.Linear(8, 6)
    return r"parameter 2.bias was replaced \(and 1 more\)"


@pytest.mark.parametrize("change", [unfreeze, freeze, replace])
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_model_that_changes_in_a_run_is_refused_by_name(master, kind, settings, change):  # noqa: F811
    def make() -> torch.nn.Module:
        model = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 6))
        model[0].weight.requires_grad_(False)
        return model

    peer = Peer(master, 1, make, kind, **settings)
    peer.enter()
    peer.round()
    before = peer.diloco.outer_step
    text = change(peer.model)
    with pytest.raises(ValueError, match=rf"{text}.*make a new {kind.__name__}"):
        peer.round()
    assert peer.diloco.outer_step == before
    peer.diloco.close()
    with pytest.raises(ValueError, match=text):
        peer.enter()


class Frozen(torch.nn.Module):
    """A small model beside large frozen layers, one of which another peer may have loaded from elsewhere."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.net = simple()
        self.frozen = torch.nn.ModuleList(torch.nn.Linear(512, 512, bias=False).requires_grad_(False) for _ in range(3))
        self.register_buffer("table", torch.full((512, 512), 3.0))
        for at, layer in enumerate(self.frozen):
            layer.weight.fill_(at + other * (at == 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_joiner_receives_only_the_frozen_layers_that_differ(master, kind, settings, other):  # noqa: F811
    layer = 512 * 512 * 4
    first, second = (
        Peer(master, 1, lambda: Frozen(False), kind, **settings),
        Peer(master, 2, lambda: Frozen(other), kind, **settings),
    )
    received = []
    sync = second.comm.sync_shared_state

    def counted(*arguments: object, **more: object) -> object:
        info = sync(*arguments, **more)
        received.append(info.rx_bytes)
        return info

    second.comm.sync_shared_state = counted
    first.enter()
    first.model.table[0, 0] = 5  # each member's own: a joiner gets it
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(second.enter)
        while not first.round().admitted:
            pass
        joining.result(PATIENCE)
    for own, theirs in zip(first.model.frozen.parameters(), second.model.frozen.parameters(), strict=True):
        assert torch.equal(own, theirs)
    assert second.model.table[0, 0] == 5
    assert sum(received) < (0.5 + other) * layer, received
    for peer in (first, second):
        peer.comm.close()


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_peer_that_may_not_begin_a_run_joins_or_fails(master, kind, settings, monkeypatch):  # noqa: F811
    for case in ("begin=False", "PCCL_JOIN"):
        if case == "PCCL_JOIN":
            monkeypatch.setenv("PCCL_JOIN", "1")
        late = Peer(master, 1, simple, kind, **({"begin": False} if case == "begin=False" else {}), **settings)
        with pytest.raises(pccl.ConnectError, match="no run"):
            late.diloco.start()
        monkeypatch.delenv("PCCL_JOIN", raising=False)
    with pytest.raises(TypeError, match="begin must be"):
        Peer(master, 1, simple, kind, begin=1, **settings)


def test_running_statistics_are_said_not_to_be_averaged(master, caplog):  # noqa: F811
    peer = Peer(master, 1, lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)))
    peer.diloco.start()
    peer.diloco.close()
    assert caplog.text.count("running statistics of 1 normalisation layers, such as '1', are not averaged") == 1


def test_settings_that_exclude_each_other_and_float64(master):  # noqa: F811
    peer = Peer(master, 1, simple)
    for kind in (DiLoCo, AsyncDiLoCo):
        with pytest.raises(ValueError, match=r"sync_every=10 or sync_seconds=5, not both"):
            kind(peer.model, peer.comm, peer.optimizer, sync_every=10, sync_seconds=5)
    model = simple().double()
    with pytest.raises(TypeError, match=r"parameter 0.weight is torch.float64.*convert the model to float32"):
        DiLoCo(model, peer.comm, torch.optim.SGD(model.parameters(), 0.1))


def test_rounds_are_told_to_callbacks(master):  # noqa: F811
    peer = Peer(master, 1, simple)
    heard: list[str] = []
    end = peer.diloco.on_round(lambda done: heard.append(str(done)))
    peer.enter()
    peer.round()
    end()
    peer.round()
    assert heard == [f"outer step 1: 1 members, 0.00 MB sent, {heard[0].split(', ')[-1]}"]
    peer.comm.close()


def test_a_peer_says_for_how_many_it_waits(master, monkeypatch, caplog):  # noqa: F811
    monkeypatch.setattr(_membership, "SAY_SECONDS", 0.0)
    caplog.set_level(logging.WARNING)
    first, second = (Peer(master, seed, simple, peers=2) for seed in (1, 2))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.enter)
        while "1 of the 2 with which the run begins are here" not in caplog.text:
            assert not waiting.done()
        second.enter()
        waiting.result(PATIENCE)
    for peer in (first, second):
        peer.comm.close()


@pytest.mark.parametrize("compression", ["int4", Compression("int4", stochastic=True, block=64), "int8"])
def test_error_feedback_is_exact_when_a_weighted_member_dies_after_the_weights(master, compression):  # noqa: F811
    weights, rounds, dies = [1.0, 2.0, 30.0], 8, 3
    given = torch.randn(rounds, 3, 1000, generator=torch.Generator().manual_seed(3))
    ends: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def peer(number: int) -> None:
        with pccl.Communicator(master) as comm:
            comm.connect()
            comm.wait_for_peers(3)
            averager = Averager(1000, Compression.of(compression))
            applied = torch.zeros(1000, dtype=torch.float64)
            for at in range(rounds):
                if number == 2 and at == dies:
                    exchange(comm, weights[number])
                    return
                buffer = given[at, number].clone()
                averager.launch(comm, buffer, weights[number]).wait()
                applied += buffer.double()
            assert averager.residual is not None
            ends[number] = applied, averager.residual.double() / averager._total_weight
            comm.are_peers_pending()

    together(*(functools.partial(peer, number) for number in range(3)))
    assert torch.equal(ends[0][0], ends[1][0])
    owed = torch.zeros(1000, dtype=torch.float64)
    for at in range(rounds):
        present = range(3) if at < dies else range(2)
        owed += sum(weights[one] * given[at, one].double() for one in present) / sum(weights[one] for one in present)
    held = ends[0][0] + ends[0][1] + ends[1][1]
    # What the dead member has kept is lost with it: as much as its last rounding error at most.
    lost = given[:dies, 2].abs().max() * weights[2] / sum(weights) / 7
    assert (owed - held).abs().max() <= 1.5 * lost
    assert (owed - ends[0][0]).abs().max() < 2.0


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0]])
def test_an_average_is_exact_when_a_member_dies_before_it_tells_whether_it_is_finite(master, weights):  # noqa: F811
    given = torch.randn(3, 1000, generator=torch.Generator().manual_seed(4))

    def peer(number: int) -> tuple[torch.Tensor, int] | None:
        weight = None if weights is None else weights[number]
        with pccl.Communicator(master) as comm:
            comm.connect()
            comm.wait_for_peers(3)
            buffer = given[number].clone()
            average = Averager(1000, Compression()).launch(comm, buffer, weight)
            if number == 2:
                assert isinstance(average, _Dense)
                assert average._handle is not None
                average._handle.result()
                roll(comm, torch.ones(1), ROLL_TAG)
                return None
            done = average.wait()
            assert not done.not_finite
            return buffer, sum(len(one.peers) for one in done.contributors)

    first, second, _ = together(*(functools.partial(peer, number) for number in range(3)))
    assert torch.equal(first[0], second[0])
    shares = torch.tensor(weights or [1.0, 1.0, 1.0]).reshape(3, 1)
    torch.testing.assert_close(first[0], (given * shares).sum(0) / shares.sum())
    assert first[1] == 3


def test_other_states_of_the_communicator_come_before_and_after(master):  # noqa: F811
    """A shared state of the program, then one method after another, as when other parameters are trained from here on."""
    comms = [pccl.Communicator(master) for _ in range(2)]

    def train(number: int) -> list[str]:
        comm, parities = comms[number], []
        comm.connect()
        comm.wait_for_peers(2, timeout=PATIENCE)
        shared = pccl.SharedState([pccl.TensorInfo.from_torch(torch.ones(3), "x")])
        for shared.revision in (1, 2):
            comm.sync_shared_state(shared, timeout=PATIENCE)
        for kind, settings in KINDS:
            model = simple()
            diloco = kind(model, comm, torch.optim.SGD(model.parameters()), **settings)
            with diloco:
                diloco.synchronize()
                parities.append(diloco.parity)
        return parities

    first, second = together(*(functools.partial(train, number) for number in range(2)))
    assert first == second
    for comm in comms:
        comm.close()
