"""Peers that train with `pccl.diloco`, as processes that are told what to do and may be killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch._dynamo  # once, not in each process: optimizers import it
from diloco_reference import inner_step, make_model, make_optimizer
from performers import MasterProcess, Performer, preload

import pccl
import pccl.diloco

preload(__name__)


class Trainee:
    """In the process. It tells of each outer step what the test compares."""

    IS_NO_MASTER = True

    def __init__(self, pipe: Connection, address: str, worker: int, kind: str, settings: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        settings = dict(settings)
        self.worker = worker
        self.every = settings["sync_every"]
        # A joiner begins with other values: what it has in the end, it has received.
        self.model = make_model(settings.pop("width", 8), settings.pop("seed", 1))
        self.optimizer = make_optimizer(self.model)
        weights = settings.pop("weights", None)
        if weights:
            settings["weight"] = lambda: weights[worker]
        self.comm = pccl.Communicator(address)
        self.diloco = getattr(pccl.diloco, kind)(self.model, self.comm, self.optimizer, **settings)
        self.log: list[Any] = []
        self.synced: list[int] = []  # bytes that each sync has brought
        sync = self.comm.sync_shared_state

        def counting(*arguments: Any, **named: Any) -> Any:
            info = sync(*arguments, **named)
            self.synced.append(info.rx_bytes)
            return info

        self.comm.sync_shared_state = counting  # type: ignore[method-assign]

    def pending(self) -> int:
        return self.comm._pending()

    def received(self) -> int:
        """Bytes that syncs have brought so far."""
        return sum(self.synced)

    def enter(self) -> tuple[str, int]:
        """Joins; gives its name, and how many outer steps were made."""
        self.diloco.__enter__()
        return str(self.comm.uuid), self.diloco.outer_step

    def ring(self) -> list[str]:
        """The names of the members in the order of the ring, in which a small op adds."""
        return [str(one.uuid) for one in self.comm.diagnose().members]

    def train(self, rounds: int) -> list[dict[str, Any]]:
        return [self.round() for _ in range(rounds)]

    def round(self) -> dict[str, Any]:
        outer = self.diloco.outer_step
        step, done = 0, None
        while done is None:
            inner_step(self.model, self.optimizer, self.worker, outer, step)
            done = self.diloco.step()
            step += 1
        assert done is self.diloco.last
        return self._told(done)

    def again(self) -> dict[str, Any]:
        """Repeats an outer step that has failed."""
        return self._told(self.diloco.synchronize())

    def _told(self, done: pccl.diloco.Round) -> dict[str, Any]:
        ranges = [(one.start, one.stop, sorted(map(str, one.peers))) for one in done.contributors]
        told = {"step": done.outer_step, "parity": self.diloco.parity, "ranges": ranges, "world": done.world_size}
        told |= {"admitted": done.admitted, "repaired": done.repaired_bytes, "tx": done.tx_bytes, "inner": done.inner_steps}
        self.log.append(told)
        return told

    def inner(self, steps: int | None = None) -> None:
        """The first inner steps of a round: all but the last."""
        for step in range(self.every - 1 if steps is None else steps):
            inner_step(self.model, self.optimizer, self.worker, self.diloco.outer_step, step)
            assert self.diloco.step() is None

    def die_in(self, seconds: float) -> None:
        """Kills itself so long after the beginning of its next outer step."""
        make = self.diloco._average

        def dies() -> Any:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return make()

        self.diloco._average = dies

    def finish(self) -> dict[str, Any]:
        done = self.diloco.finish()
        return {"step": done.outer_step, "parity": self.diloco.parity, "repaired": done.repaired_bytes}

    def parameters(self) -> np.ndarray:
        """The outer ones, flat; those of fragments one after another."""
        outers = [one.outer for one in getattr(self.diloco, "fragments", [self.diloco])]
        return torch.cat([outer.parameters for outer in outers]).numpy()

    def inner_parameters(self) -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).numpy().copy()

    def state(self) -> dict[str, Any]:
        return {name: self.diloco.state[name] for name in self.diloco.state}

    def leave(self) -> None:
        self.diloco.__exit__(None, None, None)


class Peer(Performer):
    """A trainee, seen from the test."""

    def __init__(self, address: str, worker: int, kind: str = "DiLoCo", **settings: Any) -> None:
        super().__init__(Trainee, worker, (address, worker, kind, settings))
        self.worker = worker
        self.name = ""

    def enter(self) -> int:
        """Waits until it is a member; how many outer steps were made."""
        self.tell("enter")
        return self.entered()

    def entered(self) -> int:
        self.name, step = self.answer()
        return step


def digest(values: np.ndarray) -> str:
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


@contextlib.contextmanager
def run(count: int, kind: str = "DiLoCo", **settings: Any) -> Iterator[tuple[MasterProcess, list[Peer]]]:
    """A master, and this many peers that begin together, in the order in which they are added: that of the ring."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(MasterProcess(heartbeat_limit=30))  # a slow machine is not a death
        peers = []
        for worker in range(count):
            peer = Peer(master.address, worker, kind, peers=count, **settings)
            stack.callback(peer.kill)
            peers.append(peer)
        for peer in peers:
            peer.tell("enter")
        for peer in peers:
            assert peer.entered() == 0
        ring = peers[0].ask("ring")
        yield master, sorted(peers, key=lambda peer: ring.index(peer.name))


def contributing(told: dict[str, Any], peers: list[Peer]) -> list[int]:
    """The workers of a round whose ranges all have the same contributors, in the order of `peers`."""
    assert len(told["ranges"]) == 1, told
    return [peer.worker for peer in peers if peer.name in told["ranges"][0][2]]
