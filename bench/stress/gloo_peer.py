"""A peer of a stress run that reduces by torch's gloo, to compare with under the same schedule.

A gloo process group does not survive a death. So whoever finds it broken leaves it and waits; the orchestrator then makes a new
group of all that wait (see groups), which meet through a TCPStore. A failed op has spoilt its buffer: each one works on a copy.
Some may have finished a step in which others failed: the new group goes on after the furthest, with the state of one that was
there.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from stress.actor import FRESH, Actor
from stress.buffers import Buffers, State
from stress.lab.link import Order
from stress.reports import Accepted, Ended, OpDone, Stepped, Waiting
from stress.workload import StepPlan, plan_step

STORE_SECONDS = 5.0
RANKS = 64
"""More than there are peers: a step and a rank fit in one number."""


class BrokenGroupError(Exception):
    """Somebody has died, or falls silent, or is wanted in a new group."""


class Peer(Actor):
    """One process, over all its groups."""

    def __init__(self, given: dict[str, Any], end: socket.socket) -> None:
        super().__init__(given, end)
        self._state = State(self._task.elements)
        self._line, self._step = FRESH, 0
        self._lost = self._life = 0
        self._rank = self._world = 0
        self._groups: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._regroup = threading.Event()

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                if self._live():
                    break
            except (RuntimeError, BrokenGroupError) as error:  # torch raises nothing more special for a broken group
                self._lost += not isinstance(error, BrokenGroupError)
            finally:
                with suppress(Exception):
                    dist.destroy_process_group()
        self._tell(Ended(at=time.monotonic(), line=self._line, step=self._step, state=self._state.shared.hash()))

    def _live(self) -> bool:
        """One group. True: the end."""
        begin = time.monotonic()
        group = self._wait_for_group()
        if group is None:
            return True
        self._rank, self._world = group["rank"], group["world"]
        self._regroup.clear()
        host, _, port = self._task.masters.rpartition(":")
        # torch names a group by how many there were, counts attempts that failed, and finds nobody who counted otherwise
        distributed_c10d._world.group_count = 0
        with self._place.during("update", time.monotonic()):
            store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=STORE_SECONDS))
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(str(group["generation"]), store),
                rank=self._rank,
                world_size=self._world,
                timeout=timedelta(seconds=self._task.beat),
            )
        now = time.monotonic()
        self._tell(Accepted(at=now, world=self._world, seconds=now - begin, life=self._life))
        self._life += 1
        self._take_state()
        while not self._turn():
            pass
        return True

    def _wait_for_group(self) -> Order | None:
        """The next group that this process is to be in; None: it is to leave."""
        self._tell(Waiting(at=time.monotonic()))
        while not (self._leaving.is_set() or self._ending.is_set()):
            with self._place.during("connect", time.monotonic()), suppress(queue.Empty):
                return self._groups.get(timeout=0.1)
        return None

    def _most(self, words: list[int]) -> list[int]:
        tensor = torch.tensor(words, dtype=torch.int64)
        with self._place.during("meet", time.monotonic()):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [int(word) for word in tensor]

    def _take_state(self) -> None:
        """All go on after the furthest step, with the state of one that has made it."""
        key = self._line << 32 | self._step if self._line != FRESH else FRESH
        furthest, line = self._most([(key + 1) * RANKS + self._rank, self._task.serial])
        place, holder = furthest // RANKS - 1, furthest % RANKS
        self._line, self._step = (line, 0) if place == FRESH else (place >> 32, place & 0xFFFFFFFF)
        self._sync(holder)

    def _sync(self, holder: int) -> int:
        with self._place.during("sync", time.monotonic()):
            for array in (self._state.total, self._state.place):
                dist.broadcast(torch.from_numpy(array), holder)
        return self._state.total.nbytes if self._rank != holder else 0

    def _turn(self) -> bool:
        self._place.step = self._step + 1
        words = [self._ending.is_set(), self._regroup.is_set() or self._leaving.is_set()]
        ending, regroup = self._most([int(word) for word in words])
        if regroup:
            raise BrokenGroupError
        step = self._step + 1
        plan = plan_step(self._task.seed, step, self._task.elements)
        received, state, ops = 0, "", []
        if plan.kind in ("sync", "order"):
            received, state = self._sync(0), self._state.shared.hash()
        else:
            ops = self._reduce(plan)
        self._step = step
        self._tell(
            Stepped(
                at=time.monotonic(),
                line=self._line,
                step=step,
                work=plan.kind,
                world=self._world,
                ops=ops,
                state=state,
                received=received,
                lost=self._lost,
            )
        )
        self._lost = 0
        return bool(ending)

    def _reduce(self, plan: StepPlan) -> list[OpDone]:
        made = [Buffers(self._contents, op, self._task.code, in_place=False) for op in plan.ops]
        for one in made:
            one.refill()
            one.recv[:] = one.send
        with self._place.during("reduce", time.monotonic()):
            if plan.way == "async":
                for work in [dist.all_reduce(torch.from_numpy(one.recv), async_op=True) for one in made]:
                    work.wait()
            else:
                for one in made:
                    dist.all_reduce(torch.from_numpy(one.recv))
        for one in made:
            one.divide(self._world)
        done = [one.done(self._world) for one in made]
        if plan.kind == "average":
            self._state.add(made[0].recv)
        return done

    def _apply(self, order: Order) -> None:
        match order["order"]:
            case "group":
                self._groups.put(order)
            case "regroup":
                self._regroup.set()
            case _:
                super()._apply(order)


def perform(peer: Actor) -> NoReturn:
    """The whole life of a process that reduces by gloo, alone or under torchft."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    status = peer.perform()
    os._exit(status)  # gloo's threads of a broken group may never end


def run(given: dict[str, Any], end: socket.socket) -> int:
    """The whole life of a peer's process."""
    perform(Peer(given, end))


def serve(given: dict[str, Any], end: socket.socket) -> int:
    """The TCPStore through which the groups meet: what the master is to pccl. Until it is killed."""
    host, _, port = given["listen"].rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)
    signal.pause()
    del store
    return 0
