"""What a newcomer of Elastic has after its first sync, and what happens to the members when it cannot join."""

from __future__ import annotations

import gc
import os
import pickle
import re
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what the first optimizer of a process would import, for seconds
import torch.distributed as dist
import torch.distributed.checkpoint
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.optim import lr_scheduler

import pccl.distributed
from pccl.distributed import Elastic, JoinError, _replicated
from pccl.notice import Notice

LIMIT = timedelta(seconds=20)
preload(__name__)


class Net(nn.Module):
    """A model whose state has all parts: parameters, a frozen one, buffers, and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(int(os.environ.get("SEED", "0")))
        self.line = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.register_buffer("grows", torch.zeros(0))
        self.register_buffer("scalar", torch.zeros(()))
        self.seen = 0

    def get_extra_state(self) -> dict[str, Any]:
        return {"seen": self.seen, "names": ("a", 1.5)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.grows = torch.ones(self.seen)
        self.scalar = torch.full((2, 3), float(self.seen))
        return self.line(x)


class Raises:
    """A value whose state cannot be loaded here."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Opaque:
    """Something that no peer may send."""


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 50),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[4]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


class Member:
    """A process of the job."""

    def __init__(self, pipe: object) -> None:
        torch.set_num_threads(1)

    def start(self, port: int, rank: int, size: int) -> None:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=LIMIT)

    def join(self, run: tuple[str, str]) -> None:
        pccl.distributed.join(run[0], timeout=LIMIT, keys=run[1])

    def run(self) -> tuple[str, str]:
        return pccl.distributed.masters(), pccl.distributed.keys()

    def make(self, schedule: str = "cosine", error: BaseException | None = None) -> None:
        self.net = Net()
        self.optimizer = torch.optim.SGD([self.net.line.weight, self.net.line.bias], lr=0.1, momentum=0.9)
        self.other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        self.schedule = SCHEDULES[schedule](self.other)
        self.state = Elastic(self.net, self.optimizer, step=0, schedule=self.schedule, raises=Raises(error))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.state.sync()
            loss = self.net(torch.ones(2, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step(*((1.0,) if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau) else ()))
            self.state.step += 1

    def sync(self) -> int:
        self.state.sync()
        return dist.get_world_size()

    def sync_every(self, every: int) -> str:
        """The text of the error of a first sync."""
        self.state = Elastic(nn.Linear(1, 1), every=every)
        try:
            self.state.sync()
        except (JoinError, ValueError) as error:
            return str(error)
        return ""

    def sync_until(self, members: int) -> int:
        while self.sync() < members:
            pass
        return dist.get_world_size()

    def send_pickles(self, path: Path) -> None:
        _replicated.encode = lambda _: bytearray(pickle.dumps(Bomb(path)))  # type: ignore[assignment]

    def hold_opaque(self) -> None:
        self.state.step = {"deep": [Opaque()]}

    def told(self) -> dict[str, Any]:
        return {
            "seen": self.net.seen,
            "grows": self.net.grows.tolist(),
            "scalar": self.net.scalar.tolist(),
            "frozen": self.net.frozen.tolist(),
            "weight": self.net.line.weight.tolist(),
            "step": self.state.step,
            "rates": [group["lr"] for group in self.other.param_groups],
            "momenta": [group["momentum"] for group in self.other.param_groups],
            "last": self.schedule.state_dict().get("_last_lr"),
        }

    def alive(self) -> bool:
        return True


@contextmanager
def members(count: int, *make: Any) -> Iterator[tuple[list[Performer], Callable[[], Performer]]]:
    """Members that are synchronised, and a function that starts a newcomer."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made: list[Performer] = []

    def add() -> Performer:
        made.append(Performer(Member, len(made), (), {"PCCL_LOG_LEVEL": "ERR", "SEED": str(len(made))}))
        return made[-1]

    def newcomer() -> Performer:
        fresh = add()
        fresh.ask("join", old[0].ask("run"))
        return fresh

    try:
        old = [add() for _ in range(count)]
        for rank, one in enumerate(old):
            one.tell("start", store.port, rank, count)
        for one in old:
            one.answer()
        for one in old:
            one.ask("make", *make)
        yield old, newcomer
    finally:
        for one in made:
            one.kill()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_newcomer_has_what_the_members_have(schedule):
    with members(2, schedule) as (old, newcomer):
        for one in old:
            one.tell("train", 7)
        for one in old:
            one.answer()
        fresh = newcomer()
        fresh.ask("make", schedule)
        for one in [*old, fresh]:
            one.tell("sync_until", 3)
        assert [one.answer() for one in [*old, fresh]] == [3, 3, 3]
        told = [one.ask("told") for one in [*old, fresh]]
        assert told[2] == told[0]
        assert told[0]["seen"] == 7
        for one in [*old, fresh]:
            one.tell("train", 3)
        for one in [*old, fresh]:
            one.answer()
        told = [one.ask("told") for one in [*old, fresh]]
        assert told[2] == told[0]
        assert told[0]["rates"] != [0.1]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyError("boom"), KeyboardInterrupt("boom"), SystemExit("boom")])
def test_a_newcomer_that_fails_holds_nobody_up(error):
    with members(2) as (old, newcomer):
        for one in old:
            one.tell("train", 2)
        for one in old:
            one.answer()
        fresh = newcomer()
        fresh.ask("make", "cosine", error)
        fresh.tell("sync")
        for one in old:
            one.tell("train", 400)
        if isinstance(error, KeyboardInterrupt):
            assert fresh.answer() == "KeyboardInterrupt"
        else:
            with pytest.raises(AssertionError, match="JoinError" if isinstance(error, Exception) else type(error).__name__):
                fresh.answer()
        for one in old:  # while the newcomer lives on
            one.answer()
        assert fresh.ask("alive")


def test_a_value_that_cannot_be_sent_is_refused_by_name():
    with members(1) as (old, newcomer):
        old[0].ask("hold_opaque")
        fresh = newcomer()
        fresh.ask("make")
        fresh.tell("sync")
        with pytest.raises(AssertionError, match=r"step.*deep\[0\] is a .*Opaque.*pccl\.state\.allow"):
            old[0].ask("sync_until", 2)


def test_a_member_that_sends_a_pickle_runs_nothing_at_a_newcomer(tmp_path):
    with members(1) as (old, newcomer):
        old[0].ask("send_pickles", tmp_path / "written")
        fresh = newcomer()
        fresh.ask("make")
        fresh.tell("sync")
        old[0].tell("sync_until", 2)
        with pytest.raises(AssertionError, match=r"JoinError.*the state is"):
            fresh.answer()
        assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("name", ["sync", "_step", "_calls", "__class__"])
def test_names_that_no_value_can_have(name):
    with pytest.raises(ValueError, match="cannot be the name of a value"):
        Elastic(nn.Linear(1, 1), **{name: 3})


def test_an_attribute_that_is_no_value_is_refused():
    state = Elastic(nn.Linear(1, 1), step=0)
    for name in ("_step", "_sync", "other"):
        with pytest.raises(AttributeError, match="not one of the values"):
            setattr(state, name, 7)


def test_the_end_of_the_training_gives_a_signal_its_handler_back():
    before = signal.getsignal(signal.SIGTERM)
    elastic, own = Elastic(nn.Linear(1, 1), leaves_on=signal.SIGTERM), Notice(signal.SIGUSR1)
    other = Elastic(nn.Linear(1, 1), leaves_on=own)
    try:
        assert signal.getsignal(signal.SIGTERM) != before
        for one in (elastic, other):
            one.close()
        assert signal.getsignal(signal.SIGTERM) == before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert own.wait(PATIENCE)  # it belongs to the program
    finally:
        own.close()


def test_a_dropped_object_is_gone_at_once():
    """With its model and its optimizer: nothing waits for the cyclic collector."""
    model = nn.Linear(1, 1)
    state = Elastic(model, torch.optim.SGD(model.parameters()), step=0)
    gone = weakref.ref(state)
    gc.disable()
    try:
        del state
        assert gone() is None
    finally:
        gc.enable()


def test_join_error_is_what_a_newcomer_gets():
    assert issubclass(JoinError, RuntimeError)


def test_a_newcomer_begins_a_run_only_if_the_program_says_so(monkeypatch):
    """PCCL_JOIN=1 is what a restarted worker has."""
    monkeypatch.setenv("PCCL_JOIN", "1")
    with pccl.MasterNode("127.0.0.1:0") as master:
        for begin in (False, True):
            pccl.distributed.join(f"127.0.0.1:{master.port}", begin=begin, timeout=timedelta(seconds=60))
            model = torch.nn.Linear(2, 2)
            elastic = pccl.distributed.Elastic(model, torch.optim.SGD(model.parameters(), 0.1), step=0)
            try:
                if begin:
                    assert elastic.sync()
                else:
                    with pytest.raises(
                        pccl.distributed.JoinError, match=r"no run is under way[^(]*\(MASTER_CONNECTION_FAILED\)$"
                    ):
                        elastic.sync()
            finally:
                torch.distributed.destroy_process_group()


def test_members_that_look_for_newcomers_at_different_calls_are_told_so():
    with members(2) as (old, newcomer):
        for every, one in enumerate(old, 1):
            one.tell("sync_every", every)
        text = re.compile(r"Elastic: every is 1 at rank 0 \(.*\) and 2 at rank 1 \(.*\); give the same to all")
        told = [one.answer() for one in old]
        assert text.match(told[0])
        assert told[0] == told[1]
    with members(2) as (old, newcomer):
        for one in old:
            one.tell("sync")
        for one in old:
            one.answer()
        fresh = newcomer().tell("sync_every", 3)
        while not fresh._pipe.poll(0.05):
            for one in old:
                one.tell("sync")
            for one in old:
                one.answer()
        assert re.search(r"every is 1 at rank 0 \(.*\) and 3 at rank 2 \(.*\); give the same to all", fresh.answer())
        for one in old:
            one.tell("train", 3)
        for one in old:
            one.answer()
        assert [one.ask("told")["step"] for one in old] == [3, 3]
