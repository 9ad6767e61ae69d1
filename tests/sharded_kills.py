"""Processes that train a sharded model whose exact state at each step is known, while they are killed and others join."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: here once, and not for seconds in each process
import torch.distributed as dist
from performers import PATIENCE, Performer, preload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pccl.distributed
from pccl.distributed import Elastic, Left, PeerLostError, Snapshots, _dtensors, _sharded
from pccl.distributed._dtensors import box_of, entries, local_part
from pccl.distributed._training import Training
from pccl.state._snapshots import keeper, kept, restore, transfer
from pccl.state._snapshots.talk import Talk

preload(__name__)

PERIOD = 5
"""Steps after which gradients repeat; their sum is 0, so all numbers stay small integers, which no order of sums rounds."""

SHAPES = {"first.weight": (201, 97), "second.weight": (7, 3), "weight": (2,)}

QUIET = {"PCCL_LOG_LEVEL": "ERR"}


@functools.cache
def gradient(name: str, step: int) -> torch.Tensor:
    """At a step, the same for all ranks."""
    shape = SHAPES[name]
    numel = int(torch.Size(shape).numel())
    return ((torch.arange(numel) * 7 + step % PERIOD * 3) % PERIOD - 2).float().view(shape)


@functools.cache
def momentum(name: str, step: int) -> torch.Tensor:
    """After so many steps, at most PERIOD."""
    return sum((gradient(name, one) for one in range(step)), torch.zeros(SHAPES[name]))


@functools.cache
def _moved(name: str, step: int) -> torch.Tensor:
    return sum((momentum(name, one) for one in range(1, step + 1)), torch.zeros(SHAPES[name]))


def weight(name: str, step: int) -> torch.Tensor:
    """After so many steps."""
    rounds, rest = divmod(step, PERIOD)
    return 1 - rounds * _moved(name, PERIOD) - _moved(name, rest)


class Part(nn.Module):
    def __init__(self, name: str, more: int = 0) -> None:
        super().__init__()
        rows, *rest = SHAPES[name]
        self.weight = nn.Parameter(torch.ones(rows + more, *rest))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


class Model(Part):
    def __init__(self, more: int) -> None:
        super().__init__("weight")
        self.first = Part("first.weight", more)
        self.second = Part("second.weight")

    def forward(self, step: int) -> torch.Tensor:  # type: ignore[override]
        parts = (self.weight * gradient("weight", step)).sum()
        return parts + self.first(gradient("first.weight", step)) + self.second(gradient("second.weight", step))


class WrongStateError(AssertionError):
    pass


class Member:
    """A rank that trains, or a newcomer. What happens to it is in the file of its number."""

    def __init__(self, pipe: Connection, folder: Path, number: int, snapshots: dict[str, Any], pause: float, shards: int) -> None:
        torch.set_num_threads(1)
        self._shards = shards
        self._folder, self._number, self._snapshots, self._pause = folder, number, snapshots, pause
        self._log = os.open(folder / f"log.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._traces = (folder / f"traces.{number}").open("w")
        faulthandler.register(signal.SIGUSR2, self._traces, all_threads=True)
        self._harm: tuple[str, int] | None = None
        signal.signal(signal.SIGUSR1, lambda *_: self._arm())
        self._end = 1 << 60
        call, pair = Talk._all, Talk._pair
        harmful = self._die_in_time

        def call_or_die(talk: Talk, *arguments: Any, **named: Any) -> None:
            harmful(talk)
            call(talk, *arguments, **named)

        def pair_or_die(talk: Talk, *arguments: Any, **named: Any) -> Any:
            harmful(talk)
            return pair(talk, *arguments, **named)

        Talk._all = call_or_die  # type: ignore[method-assign]
        Talk._pair = pair_or_die  # type: ignore[method-assign]

    def _arm(self) -> None:
        topic, calls = (self._folder / f"harm.{self._number}").read_text().rsplit(maxsplit=1)
        if calls == "fails":
            self.fail_in(topic)
        else:
            self._harm = topic, int(calls)

    def _die_in_time(self, talk: Talk) -> None:
        if self._harm is not None and talk._topic.startswith(self._harm[0]):
            if self._harm[1] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._harm = self._harm[0], self._harm[1] - 1

    def tell(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "member": self._number, "time": time.monotonic(), **more})
        os.write(self._log, line.encode() + b"\n")

    def start(self, port: int, rank: int, size: int) -> tuple[str, str]:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        limit = timedelta(seconds=10 * PATIENCE)
        dist.init_process_group("pccl", store=store, rank=rank, world_size=size, timeout=limit)
        self._make()
        return pccl.distributed.masters(), pccl.distributed.keys()

    def join(self, masters: str, keys: str, harm: str = "", more: int = 0, every: int = 0) -> None:
        if harm:
            (self._folder / f"harm.{self._number}").write_text(harm)
            self._arm()
        if every:
            self._snapshots["every"] = every
        pccl.distributed.join(masters, timeout=timedelta(seconds=10 * PATIENCE), keys=keys)
        self._make(more)

    def fail_in(self, place: str) -> None:
        """The next call of a function raises an error, as if this process had no memory left; "value": one that none can keep."""
        if place == "value":
            self.run.kept = object()
            return
        owner, name = PLACES[place]
        function = getattr(owner, name)

        def fail(*_: Any, **__: Any) -> Any:
            setattr(owner, name, function)
            raise MemoryError(f"no memory in {place}")

        setattr(owner, name, fail)

    def _make(self, more: int = 0) -> None:
        self.model = Model(more)
        size = dist.get_world_size()
        shape: tuple[int, ...] = (size,)
        if self._shards:
            shards = min(self._shards, size)
            shape = size // shards, shards
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        fully_shard(self.model.first, mesh=mesh)
        fully_shard(self.model.second, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=1.0)
        options: dict[str, Any] = {"snapshots": Snapshots(**self._snapshots), "leaves_on": signal.SIGTERM}
        self.run = Elastic(self.model, self.optimizer, step=0, thrice=0, kept=None, **options)

    def train(self) -> int:
        """Until the step in the file `end`; gives the step."""
        try:
            while True:
                before = self.run.step
                if self.run.sync():
                    report: Any = self.run.snapshot_report
                    complete = report.complete and report.step == self.run.step
                    self.tell(
                        "changed",
                        step=self.run.step,
                        before=before,
                        size=dist.get_world_size(),
                        complete=complete,
                        why=report.why,
                        id=str(dist.GroupMember.WORLD.communicator.uuid),
                    )
                self._check()
                if (self._folder / "end").exists():
                    self._end = int((self._folder / "end").read_text())
                if self.run.step >= self._end:
                    return int(self.run.step)
                if (self._folder / "leave").exists() and self.run.step >= int((self._folder / "leave").read_text()):
                    self.run.leave()
                    continue
                report = self.run.snapshot_report
                self.tell("step", step=self.run.step, complete=report.step if report.complete else -1)
                try:
                    loss = self.model(self.run.step)
                    wanted = sum((weight(name, self.run.step) * gradient(name, self.run.step)).sum().item() for name in SHAPES)
                    if loss.item() != wanted:
                        raise WrongStateError(f"the loss of step {self.run.step} is {loss.item()}, not {wanted}")
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                except PeerLostError:
                    continue
                self.run.step += 1
                self.run.thrice = 3 * self.run.step
                time.sleep(self._pause)
        except Left:
            self._check()
            self.tell("left", step=self.run.step)
            return int(self.run.step)
        except BaseException as error:
            self.tell("failed", kind=type(error).__name__, text=traceback.format_exc())
            raise

    def _check(self) -> None:
        step = self.run.step
        if self.run.thrice != 3 * step:
            raise WrongStateError(f"the value of step {step} is {self.run.thrice}")
        for name, tensor in entries(self.model, self.optimizer).items():
            kind, rest = name.split(".", 1)
            wanted = weight(rest, step) if kind == "model" else momentum(rest.removesuffix(".momentum_buffer"), step % PERIOD)
            part = box_of(tensor)
            for dim, (offset, size) in enumerate(zip(part.offset, part.shape, strict=True)):
                wanted = wanted.narrow(dim, offset, size)
            if not torch.equal(local_part(tensor), wanted):
                raise WrongStateError(f"{name} of step {step} is wrong")

    def holder(self) -> int:
        """The process that keeps this one's memory."""
        keeper: Any = self.run._sharded.keeper
        return int.from_bytes(keeper.kept._holder._end.getsockopt(1, 17, 4), "little")

    def leave(self) -> None:
        self.run.close()
        dist.destroy_process_group()


PLACES: dict[str, tuple[Any, str]] = {
    "outline": (_dtensors.ShardedState, "take_outline"),
    "remesh": (_sharded, "remesh"),
    "carry out": (restore, "Window"),
    "verify": (_sharded, "verify"),
    "values": (Training, "take_own"),
    "exchange of layouts": (keeper.Keeper, "_exchange"),
    "send": (transfer.Transfer, "_send"),
    "receive": (transfer.Transfer, "_receive"),
    "image": (keeper, "write_image"),
    "hash": (keeper, "hash_image"),
    "store": (kept.Kept, "store"),
}


class Job:
    """Members, and what has happened to them."""

    def __init__(self, folder: Path, pause: float = 0.01, shards: int = 0, **snapshots: Any) -> None:
        """`shards`: processes that have one replica of the state; 0: all, on a mesh of one dimension."""
        self._folder = folder
        self._shards = shards
        self._pause = pause
        self._snapshots = snapshots
        self.name = snapshots.get("name", "")
        self.has_holder = snapshots.get("holder", True)
        self._logs: dict[int, int] = {}
        self.members: dict[int, Performer] = {}
        """Those who live, by number."""
        self._count = 0
        self._all: list[Performer] = []
        self.happened: list[dict[str, Any]] = []
        self.may_fail: set[int] = set()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is not None:
            for number, member in self.members.items():
                member.signal(signal.SIGUSR2)
                time.sleep(0.2)
                sys.stderr.write(f"---- member {number}\n{(self._folder / f'traces.{number}').read_text()}\n")
        for member in self._all:
            member.kill()

    def add(self) -> int:
        number, self._count = self._count, self._count + 1
        arguments = self._folder, number, self._snapshots, self._pause, self._shards
        stderr = self._folder / f"stderr.{number}"
        self.members[number] = Performer(Member, number, arguments, QUIET, stderr)
        self._all.append(self.members[number])
        return number

    def start(self, size: int, fails: Mapping[int, str] = MappingProxyType({})) -> None:
        """`fails`: by rank, where it fails at the first call."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        made = [self.add() for _ in range(size)]
        for rank, number in enumerate(made):
            self.members[number].tell("start", self._store.port, rank, size)
        self.where, *_ = [self.members[number].answer() for number in made]
        for number in made:
            if number in fails:
                self.members[number].ask("fail_in", fails[number])
            self.members[number].tell("train")

    def join(self, harm: str = "", more: int = 0, every: int = 0) -> int:
        """Begins; returns at once. `harm`: at which message of which kind it kills itself.

        `more`: rows of its model. `every`: of its snapshots; 0: as the others.
        """
        number = self.add()
        self.members[number].tell("join", *self.where, harm, more, every).tell("train")
        return number

    def wait_for(self, found: Callable[[], bool]) -> None:
        """Until what has happened is enough."""
        end = time.monotonic() + PATIENCE
        while not found():
            for _ in self.heard():
                pass
            assert time.monotonic() < end, f"hang: {self.happened[-20:]}"
            time.sleep(0.01)

    def last(self, number: int, event: str) -> dict[str, Any]:
        """The last event of a kind at a member; step -1: there was none."""
        found = [one for one in self.happened if one["member"] == number and one["event"] == event]
        return found[-1] if found else {"step": -1, "size": 0}

    def wait_for_step(self, step: int) -> None:
        """Until all who live have reached it."""
        self.wait_for(lambda: all(self.last(number, "step")["step"] >= step for number in self.members))

    def wait_for_size(self, size: int) -> None:
        """Until the last change of all who live was to so many."""
        self.wait_for(lambda: all(self.last(number, "changed")["size"] == size for number in self.members))

    def newest(self) -> int:
        """The highest step that anybody has begun."""
        return max(self.last(number, "step")["step"] for number in self.members)

    def arm(self, number: int, topic: str, calls: int) -> None:
        """It will kill itself at a message."""
        self._write(f"harm.{number}", f"{topic} {calls}")
        self.members[number].signal(signal.SIGUSR1)

    def fail_in(self, number: int, place: str) -> None:
        """The next call of a function fails there."""
        self._write(f"harm.{number}", f"{place} fails")
        self.members[number].signal(signal.SIGUSR1)

    def leave_at(self, step: int) -> None:
        """All leave at a step."""
        self._write("leave", str(step))

    def _write(self, name: str, text: str) -> None:
        (self._folder / "new").write_text(text)
        (self._folder / "new").rename(self._folder / name)

    def kill(self, number: int) -> None:
        self.members.pop(number).kill()

    def reap(self) -> list[int]:
        """Those who have killed themselves since."""
        dead = [number for number, member in self.members.items() if not member._process.is_alive()]
        for number in dead:
            self.members.pop(number)
        return dead

    def heard(self) -> Iterator[dict[str, Any]]:
        """What has happened since the last call."""
        for number in range(self._count):
            path = self._folder / f"log.{number}"
            if path.exists():
                content = path.read_bytes()[self._logs.get(number, 0) :]
                content = content[: content.rfind(b"\n") + 1]
                self._logs[number] = self._logs.get(number, 0) + len(content)
                for line in content.splitlines():
                    found = json.loads(line)
                    self.happened.append(found)
                    if found["event"] == "failed" and number not in self.may_fail:
                        raise AssertionError(f"member {number} failed:\n{found['text']}")
                    yield found

    def end(self, step: int) -> list[int]:
        """All train until a step; gives their last ones."""
        self._write("end", str(step))
        found = [self._last(member) for member in self.members.values()]
        for member in self.members.values():
            member.tell("leave")
        for member in self.members.values():
            member.answer()
        return found

    def _last(self, member: Performer) -> int:
        while True:
            found = member.answer(3 * PATIENCE)
            if isinstance(found, int):
                return found
