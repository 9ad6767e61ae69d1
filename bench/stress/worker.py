"""One peer of a stress run: follows the steps, checks what it gets, and tells what it saw."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

import pccl
from pccl import AsyncReduceHandle, Communicator, ReduceInfo, ReduceOp, Result
from pccl.master import serve
from stress.actor import FRESH, LIVES, Actor, FlawError
from stress.buffers import Buffers, State
from stress.reports import Accepted, Alone, Ended, Expelled, OpDone, Stepped
from stress.workload import StepPlan, plan_step

Done = TypeVar("Done")

MEET_TAG = 1 << 32
LANES = 4
"""To each neighbour. With the direct link they are the descriptors that another member may cost."""
POLL_SECONDS = 0.005
MOST_SYNC_ROUNDS = 200
"""A sync that finds no content so often in a row will find none."""


class AloneError(Exception):
    """No other member is left: the step is given up."""


class DeadError(Exception):
    """The library says that this process is no longer a member of the run."""


class Peer(Actor):
    """One process, over all its memberships."""

    def __init__(self, given: dict[str, Any], end: socket.socket) -> None:
        super().__init__(given, end)
        self._state = State(self._task.elements)
        self._line, self._step = FRESH, 0
        self._behind = True  # lacks the others' state
        self._lost = 0
        self._life = 0
        self._admitted = False  # the others are on their way to the next meeting
        self._catch_up = False  # somebody lacks the state
        self._comm: Communicator

    def _run(self) -> None:
        while True:
            try:
                if self._live():
                    return
            except DeadError as dead:
                self._tell(Expelled(at=time.monotonic(), detail=str(dead)))
                self._line, self._behind = FRESH, True  # the others have gone on without it, or none of them is left

    def _live(self) -> bool:
        """One membership. True when it ended as it was told to."""
        with contextlib.closing(Communicator(self._task.masters, 0, LANES)) as self._comm:
            self._connect()
            while not self._turn():
                pass
            with self._during("close"):
                self._comm.close()
        self._tell(Ended(at=time.monotonic(), line=self._line, step=self._step, state=self._state.shared.hash()))
        return True

    def _connect(self) -> None:
        begin = time.monotonic()
        while True:
            try:
                with self._during("connect"):
                    self._comm.connect(1)
                break
            except pccl.ConnectError:  # the master is away, or could not admit it
                time.sleep(0.05)
        now = time.monotonic()
        self._tell(Accepted(at=now, world=self._world(), seconds=now - begin, life=self._life, uuid=self._comm.uuid.hex))
        self._life += 1
        self._admitted = True

    def _turn(self) -> bool:
        """Admits newcomers, agrees with the others on the step, and makes it. True: the end."""
        try:
            if not self._admitted:
                self._admit()
            self._admitted = False
            if self._leaving.is_set():
                return True
            ending = self._meet()
            plan = plan_step(self._task.seed, self._step, self._task.elements)
            with self._during("work"):
                self._make(plan)
            return ending
        except AloneError:
            self._tell(Alone(at=time.monotonic(), line=self._line, step=self._step))
            return self._wait_for_others()

    def _wait_for_others(self) -> bool:
        while not (self._leaving.is_set() or self._ending.is_set()):
            if self._admit():
                self._admitted = True
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _admit(self) -> bool:
        """Lets newcomers in, if there are any: the same answer on all members."""
        with self._during("pending"), self._membership():
            if not self._comm.are_peers_pending():
                return False
        with self._during("update"), self._membership():
            while True:
                try:
                    self._comm.update_topology()
                    return True
                except pccl.CallAgainError:
                    pass

    def _meet(self) -> bool:
        """All agree where they are, whether somebody lacks the state, and whether this is the last step."""
        knows = self._line != FRESH
        name = self._task.serial * LIVES + self._life
        words = [self._line << 32 | self._step if knows else FRESH, name, self._behind, self._ending.is_set()]
        with self._during("meet"):
            key, name, behind, ending = self._most(words)
        if key == FRESH:  # nobody knows: a new line, named after the youngest
            self._line, self._step = name, 0
            self._state.shared.revision = max(1, self._state.shared.revision)
        else:
            if key >> 32 != self._line:
                self._state.shared.revision = 0  # whatever it holds is of another history
            self._line, self._step = key >> 32, (key & 0xFFFFFFFF) + 1
        self._place.step = self._step
        self._catch_up = bool(behind)
        return bool(ending)

    def _most(self, words: list[int]) -> list[int]:
        """The largest of each word over all members."""
        array = np.array(words, np.int64)
        while True:
            world = self._world()
            try:
                with self._membership():
                    self._comm.all_reduce(array, array, op=ReduceOp.MAX, tag=MEET_TAG)
                return [int(word) for word in array]
            except pccl.PeerLostError:
                self._note_loss(world)
                if array.tolist() != words:
                    raise FlawError("input", f"the input of a meeting has changed: {array.tolist()}") from None
            except pccl.TooFewPeersError:
                raise AloneError from None

    # ---- steps ----

    def _make(self, plan: StepPlan) -> None:
        caught_up = self._catch_up
        received, state = self._sync() if caught_up else (0, "")
        ops: list[OpDone] = []
        match plan.kind:
            case "sync":
                received, state = self._sync()
            case "order":
                self._order()
            case _:
                buffers = [Buffers(self._contents, op, self._task.code, in_place=op.in_place) for op in plan.ops]
                ops = self._reduce(plan, buffers)
                if plan.kind == "average":
                    self._state.add(buffers[0].recv)
        self._tell(
            Stepped(
                at=time.monotonic(),
                line=self._line,
                step=self._step,
                work=plan.kind,
                world=self._world(),
                ops=ops,
                state=state,
                received=received,
                lost=self._lost,
                caught_up=caught_up,
            )
        )
        self._lost = 0

    def _reduce(self, plan: StepPlan, buffers: Sequence[Buffers]) -> list[OpDone]:
        match plan.way:
            case "plain":
                return self._plain(plan, buffers)
            case "async":
                return self._async(plan, buffers)
            case "multiple":
                return self._multiple(plan, buffers)
            case _:
                return self._resume(plan, buffers)

    def _plain(self, plan: StepPlan, buffers: Sequence[Buffers]) -> list[OpDone]:
        done = []
        for tag, one in enumerate(buffers):
            while True:
                one.refill()
                one.tries += 1
                world = self._world()
                try:
                    info = self._one(plan, one, tag)
                    self._plant(one)
                    done.append(one.done(info.world_size))
                    break
                except pccl.PeerLostError:
                    self._note_loss(world)
                    one.check_input()
                except pccl.TooFewPeersError:
                    one.check_input()
                    raise AloneError from None
        return done

    def _one(self, plan: StepPlan, one: Buffers, tag: int) -> ReduceInfo:
        def call(timeout: float | None) -> ReduceInfo:
            return self._comm.all_reduce(
                one.send, one.recv, op=one.op, tag=tag, quantization_options=one.options, timeout=timeout
            )

        with self._during("reduce"), self._membership():
            return self._patiently(plan, call)

    def _async(self, plan: StepPlan, buffers: Sequence[Buffers]) -> list[OpDone]:
        done: dict[int, OpDone] = {}
        while len(done) < len(buffers):
            left = [(tag, one) for tag, one in enumerate(buffers) if tag not in done]
            world = self._world()
            failed = False
            for tag, success, info in self._launch_and_await(plan, self._random.sample(left, len(left)), retry=False):
                if success:
                    self._plant(buffers[tag])
                    done[tag] = buffers[tag].done(info.world_size)
                else:
                    failed = True
                    buffers[tag].check_input()
            if failed:
                self._note_loss(world)
        return [done[tag] for tag in sorted(done)]

    def _resume(self, plan: StepPlan, buffers: Sequence[Buffers]) -> list[OpDone]:
        """All in flight at once, in retry mode: a death is no failure."""
        done: dict[int, OpDone] = {}
        for one in buffers:
            one.refill()
        for tag, success, info in self._launch_and_await(plan, list(enumerate(buffers)), retry=True):
            if not success:
                raise FlawError("error", "an op in retry mode reported a loss")
            self._plant(buffers[tag])
            done[tag] = buffers[tag].done(info.world_size, info.contributors)
        return [done[tag] for tag in sorted(done)]

    def _launch_and_await(
        self, plan: StepPlan, wanted: Sequence[tuple[int, Buffers]], *, retry: bool
    ) -> list[tuple[int, bool, ReduceInfo]]:
        """All at once: tag, whether it succeeded, and the info. What is not a loss is raised, once all have ended."""
        call = "reduce" if not retry else "resume" if plan.kind == "reduce" else "retry"  # those named "resume" may be large
        with self._during(call), self._membership():
            handles = self._launch(wanted, retry=retry)
            outcomes = []
            for tag, one in self._random.sample(wanted, len(wanted)):
                success, status, info = self._await(plan, handles[tag])
                outcomes.append((tag, success, status, info))
                if not success and retry:
                    one.check_left(info.contributors)
        statuses = {status for _, success, status, _ in outcomes if not success}
        if Result.MASTER_CONNECTION_FAILED.value in statuses:
            raise DeadError("an op in flight ended so")
        if retry and Result.TOO_FEW_PEERS.value in statuses:
            raise AloneError
        if other := statuses - {Result.RANK_CONNECTION_LOST.value}:
            raise FlawError("error", f"ops in flight ended with {[Result(status).name for status in other]}")
        return [(tag, success, info) for tag, success, _, info in outcomes]

    def _await(self, plan: StepPlan, handle: AsyncReduceHandle) -> tuple[bool, int, ReduceInfo]:
        return self._patiently(plan, lambda timeout: handle.wait(timeout=timeout))

    def _launch(self, wanted: Sequence[tuple[int, Buffers]], *, retry: bool) -> dict[int, AsyncReduceHandle]:
        handles: dict[int, AsyncReduceHandle] = {}
        try:
            for tag, one in wanted:
                one.refill()
                one.tries += 1
                handles[tag] = self._comm.all_reduce_async(
                    one.send, one.recv, op=one.op, tag=tag, quantization_options=one.options, retry=retry
                )
        except pccl.TooFewPeersError:
            if handles:
                raise FlawError("error", "alone in the middle of a launch") from None
            raise AloneError from None
        return handles

    def _multiple(self, plan: StepPlan, buffers: Sequence[Buffers]) -> list[OpDone]:
        for one in buffers:
            one.refill()
        wanted = [one.descriptor(tag) for tag, one in enumerate(buffers)]
        try:
            with self._during("retry"), self._membership():
                self._patiently(
                    plan,
                    lambda timeout: self._comm.all_reduce_multiple_with_retry(
                        wanted, max_in_flight=plan.in_flight, timeout=timeout
                    ),
                )
        except pccl.TooFewPeersError:
            raise AloneError from None
        for one in buffers:
            self._plant(one)
        return [one.done(0, self._comm.get_contributors(tag)) for tag, one in enumerate(buffers)]

    def _sync(self) -> tuple[int, str]:
        """Brings all members to the same content; gives the bytes received and the hash."""
        shared = self._state.shared
        if not self._behind:
            self._state.place[:] = self._line, self._step
            shared.push_revision()
        for _ in range(MOST_SYNC_ROUNDS):
            try:
                with self._during("sync"), self._membership():
                    info = self._comm.sync_shared_state(shared)
                self._behind = False
                return info.rx_bytes, shared.hash()
            except pccl.CallAgainError:
                continue
        raise FlawError("error", f"no content was found in {MOST_SYNC_ROUNDS} rounds of a sync at revision {shared.revision}")

    def _order(self) -> None:
        """Orders the ring by what the links can do."""
        try:
            with self._during("order"), self._membership():
                self._comm.optimize_topology()
        except pccl.CallAgainError:
            pass  # on all alike: the old order stands
        except pccl.UsageError:
            if self._world() > 1:
                raise
            raise AloneError from None

    # ---- inside ----

    def _patiently(self, plan: StepPlan, call: Callable[[float | None], Done]) -> Done:
        """Makes a call that is cut short by its own timeout again, until it is done."""
        while True:
            try:
                return call(plan.timeout or None)
            except pccl.PCCLTimeoutError:
                if not plan.timeout:
                    raise

    @contextmanager
    def _membership(self) -> Iterator[None]:
        """The block's calls may find that the membership is over."""
        try:
            yield
        except pccl.ConnectionFailedError as error:
            raise DeadError(f"{error.func_name}: {error.result.name}: {error.detail}") from None

    @contextmanager
    def _during(self, call: str) -> Iterator[None]:
        with self._place.during(call, time.monotonic()):
            yield

    def _world(self) -> int:
        with self._membership():
            return self._comm.world_size

    def _note_loss(self, before: int) -> None:
        self._lost += 1
        if self._world() >= before:
            raise FlawError("error", f"a loss was reported, but the world has {self._world()} members after {before}")

    def _plant(self, one: Buffers) -> None:
        """A deliberate fault, where the harness itself is under test."""
        if self._task.plant == "wrong-sum" and self._step % 20 == 7:
            one.recv[one.recv.size // 2] += 1
        elif self._task.plant == "hang" and self._step >= 30:
            time.sleep(3600)


def run(given: dict[str, Any], end: socket.socket) -> int:
    """The whole life of a peer's process."""
    return Peer(given, end).perform()


def serve_master(given: dict[str, Any], end: socket.socket) -> int:
    """The master of the run, in a process of its own, until it is killed."""
    return serve(given["listen"], heartbeat_limit=given["beat"], masters=given["masters"])
