"""A peer of a stress run that reduces by torchft over gloo, to compare with under the same schedule.

torchft agrees on the members before each step (a quorum, by its lighthouse) and after it on whether the step counts. A step that
does not count is made again; a newcomer is healed with the state of one that is ahead.
"""

from __future__ import annotations

import signal
import socket
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from stress.actor import Actor, FlawError
from stress.buffers import Buffers, State
from stress.gloo_peer import perform
from stress.reports import Accepted, Ended, OpDone, Stepped
from stress.workload import plan_step

QUORUM_SECONDS = 30.0


class Peer(Actor):
    """One process."""

    def __init__(self, given: dict[str, Any], end: socket.socket) -> None:
        super().__init__(given, end)
        self._state = State(self._task.elements)
        self._lost = self._life = self._world = 0

    def _run(self) -> None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        limit = timedelta(seconds=self._task.beat)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=limit),
            load_state_dict=self._load,
            state_dict=self._save,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=limit * 4,
            quorum_timeout=timedelta(seconds=QUORUM_SECONDS),
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            lighthouse_addr=f"http://{self._task.masters}",
            replica_id=f"peer_{self._task.serial}",
            hostname="127.0.0.1",
        )
        while not self._leaving.is_set() and not self._turn():
            pass
        self._manager.shutdown(wait=False)
        step = self._manager.current_step()
        self._tell(Ended(at=time.monotonic(), line=0, step=step, state=self._state.shared.hash()))

    def _save(self) -> dict[str, Any]:
        return {name: torch.from_numpy(getattr(self._state, name)).clone() for name in ("total", "place")}

    def _load(self, given: dict[str, Any]) -> None:
        for name, tensor in given.items():
            getattr(self._state, name)[:] = tensor.numpy()

    def _turn(self) -> bool:
        """One step, made until it counts, or once in vain. True: the end."""
        manager = self._manager
        begin = time.monotonic()
        try:
            with self._place.during("update", begin):
                manager.start_quorum()
        except (RuntimeError, TimeoutError):
            self._lost += 1
            return self._ending.is_set()
        world = manager.num_participants()
        if world != self._world:
            self._world = world
            self._tell(Accepted(at=time.monotonic(), world=world, seconds=time.monotonic() - begin, life=self._life))
            self._life += 1
        step = manager.current_step()
        self._place.step = step
        plan = plan_step(self._task.seed, step, self._task.elements)
        made = [Buffers(self._contents, op, self._task.code, in_place=False) for op in plan.ops]
        ending = torch.tensor([int(self._ending.is_set())])
        with self._place.during("reduce", time.monotonic()):
            works = [manager.allreduce(ending, reduce_op=dist.ReduceOp.SUM)]
            for one in made:
                one.refill()
                one.recv[:] = one.send
                works.append(manager.allreduce(torch.from_numpy(one.recv), reduce_op=dist.ReduceOp.SUM))
                if plan.way != "async":
                    works[-1].wait()
            for work in works:
                work.wait()
        try:
            with self._place.during("meet", time.monotonic()):
                counts = manager.should_commit()
        except (RuntimeError, TimeoutError):
            counts = False
        if not counts:
            self._lost += 1
            return False
        self._tell_step(step, plan.kind, made)
        return bool(ending.item())

    def _tell_step(self, step: int, kind: str, made: list[Buffers]) -> None:
        ops: list[OpDone] = []
        for one in made:
            one.divide(self._world)
            try:
                ops.append(one.done(self._world))
            except FlawError as error:
                self._flaw(error.claim, f"of a step that counts: {error}")
                return
            if kind == "average":
                self._state.add(one.recv)
        state = self._state.shared.hash() if kind == "sync" else ""
        report = Stepped(
            at=time.monotonic(), line=0, step=step, work=kind, world=self._world, ops=ops, state=state, lost=self._lost
        )
        self._tell(report)
        self._lost = 0


def run(given: dict[str, Any], end: socket.socket) -> int:
    """The whole life of a peer's process."""
    perform(Peer(given, end))


def serve(given: dict[str, Any], end: socket.socket) -> int:
    """torchft's lighthouse: what the master is to pccl. Until it is killed."""
    server = LighthouseServer(
        bind=given["listen"],
        min_replicas=1,
        join_timeout_ms=100,
        quorum_tick_ms=20,
        heartbeat_timeout_ms=round(given["beat"] * 1000),
    )
    signal.pause()
    server.shutdown()
    return 0
