"""One peer of the demo, in a process of its own."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pccl import Attribute, CallAgainError, Communicator, PCCLError, ReduceOp, Result, SharedState, SharedStateSyncInfo
from pccl.demo.corpus import Corpus, load_corpus
from pccl.demo.model import Shape, TrainingState, generate, validation_loss
from pccl.demo.reports import Admitted, Finished, Halted, Joined, Missed, Prepared, Ready, Recovered, Report, Stepped, Task

Reporter = Callable[[Report], None]

HALT_PAUSE = 0.5  # seconds, in which the others come to their reduces
PROMPT = "The "
SAMPLE_LENGTH = 240


@dataclass(kw_only=True)
class Reduction:
    """What averaging the gradients of one step took."""

    world: int
    tx_bytes: int = 0
    rx_bytes: int = 0
    failed: int = 0  # reduces that failed because a peer was lost


def average(comm: Communicator, buckets: list[Tensor]) -> Reduction:
    """Replace each bucket by its mean over the peers, in place, whoever dies meanwhile.

    Launch all, wait for each; where a peer was lost, launch again what failed: its bucket is untouched, and by then
    the survivors are connected. All survivors see the same ops fail, so they repeat the same ones and end with the
    same bytes. A peer that is left alone keeps its own gradients.
    """
    result = Reduction(world=comm.get_attribute(Attribute.LOCAL_WORLD_SIZE))
    pending = list(range(len(buckets)))
    while pending:
        try:
            handles = [(tag, comm.all_reduce_async(buckets[tag], buckets[tag], op=ReduceOp.AVG, tag=tag)) for tag in pending]
        except PCCLError as error:
            if error.result is not Result.TOO_FEW_PEERS:
                raise
            break
        pending = []
        for tag, handle in handles:
            success, status, info = handle.wait()
            if success:
                result.tx_bytes += info.tx_bytes
                result.rx_bytes += info.rx_bytes
            elif Result(status) is Result.RANK_CONNECTION_LOST:
                pending.append(tag)
            else:
                raise PCCLError(Result(status), "pcclAwaitAsyncReduce")
        result.failed += len(pending)
        result.world = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
    return result


def gather(comm: Communicator, peers: int) -> None:
    """Join the run and admit others until ``peers`` peers are in it."""
    comm.connect()
    comm.wait_for_peers(peers)


def sync(comm: Communicator, shared: SharedState) -> SharedStateSyncInfo:
    """Bring all members to the same state. Who dies meanwhile is done without; only if nobody had all of it, again."""
    while True:
        try:
            return comm.sync_shared_state(shared)
        except CallAgainError:  # the same answer on all members
            comm.update_topology()
            if shared.revision == 0 and comm.get_attribute(Attribute.LOCAL_WORLD_SIZE) == 1:
                raise  # a newcomer, left alone with less than the whole state


def join(comm: Communicator, task: Task, state: TrainingState, report: Reporter) -> bool:
    """Come into a run that is under way, and receive its state; False when there is nobody who could give it."""
    began = time.monotonic()
    comm.connect()
    accepted = time.monotonic()
    if task.halt_at_join:
        halt(None, f"let in, after the others have waited {HALT_PAUSE} s to give it the state", report)
    info = sync(comm, state.shared)
    world = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
    if info.donors == 0:
        report(Missed())
        return False
    report(
        Joined(
            step=state.step,
            world=world,
            rx_bytes=info.rx_bytes,
            leaves=info.leaves,
            donors=info.donors,
            connect_seconds=accepted - began,
            sync_seconds=info.seconds,
            digest=state.digest(),
        )
    )
    return True


def admit(comm: Communicator, task: Task, state: TrainingState, report: Reporter) -> None:
    """Let in who waits, if somebody does, and bring them up to date.

    The question is a vote that all members answer at this point of the step, so all take the same branch. It is asked again
    after a newcomer has come, because that is the first thing that the newcomer asks.
    """
    while comm.are_peers_pending():
        began = time.monotonic()
        comm.update_topology()
        if task.halt_at_join:
            halt(state.step + 1, f"after the others have waited {HALT_PAUSE} s for it to share the state with a newcomer", report)
        state.shared.push_revision()
        info = sync(comm, state.shared)
        held = time.monotonic() - began
        world = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
        report(Admitted(step=state.step, world=world, held_seconds=held, tx_bytes=info.tx_bytes, digest=state.digest()))


class Batches:
    """Random windows of this peer's shard, from random numbers that are part of the state.

    Every peer draws for all shards alike, and takes what is for its own: so whoever gets the state and a shard draws what
    the one before would have drawn from it.
    """

    def __init__(self, corpus: Corpus, task: Task, shape: Shape) -> None:
        self._text = torch.tensor(corpus.shard(task.shard, task.shards))
        self._shard, self._shards = task.shard, task.shards
        self._shape = shape
        self._range = len(corpus.training) // task.shards - shape.context - 1  # the same on all peers

    def draw(self) -> Tensor:
        """Codes (batch, context + 1)."""
        starts = torch.randint(self._range, (self._shards, self._shape.batch))[self._shard]
        return self._text[starts[:, None] + torch.arange(self._shape.context + 1)]


def halt(step: int | None, place: str, report: Reporter) -> None:
    """Stand still when the others have gone as far as they can, say so, and wait for the kill."""
    time.sleep(HALT_PAUSE)
    report(Halted(step=step, place=place))
    time.sleep(3600)
    raise TimeoutError("nobody killed this peer")


def halt_in_reduces(comm: Communicator, buckets: list[Tensor], step: int, report: Reporter) -> None:
    """Launch the first half of the buckets, then halt: the survivors have reduces in flight that can never end."""
    half = buckets[: len(buckets) // 2]
    live = [comm.all_reduce_async(bucket, bucket, op=ReduceOp.AVG, tag=tag) for tag, bucket in enumerate(half)]
    halt(step, f"{len(live)} of its {len(buckets)} reduces launched", report)


def train(task: Task, report: Reporter, wanted: Callable[[], bool]) -> None:
    """Train until the last step, if it is `wanted` when it is ready; the orchestrator knows of it what the reports say."""
    corpus = load_corpus(task.data)
    shape = Shape(vocabulary=len(corpus.vocabulary))
    # A newcomer begins with other weights and random numbers: what it has in the end, it has received.
    state = TrainingState(shape, seed=task.seed + task.newcomer, steps=task.steps)
    held_out = torch.tensor(corpus.held_out)
    batches = Batches(corpus, task, shape)
    buckets = state.buckets(task.buckets)
    validation = validation_loss(state.model, held_out)
    report(Prepared())
    if not wanted():
        return
    with Communicator(task.master) as comm:
        if task.newcomer:
            if not join(comm, task, state, report):
                return
        else:
            gather(comm, task.peers)
            world = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
            report(Ready(world=world, parameters=state.weights.numel(), validation=validation))
        while state.step < task.steps:
            admit(comm, task, state, report)
            batch = batches.draw()
            loss = state.compute_gradients(batch)
            if state.step + 1 == task.halt_in_step:
                halt_in_reduces(comm, buckets, state.step + 1, report)
            reduction = average(comm, buckets)
            if reduction.failed:
                report(
                    Recovered(
                        step=state.step + 1,
                        failed=reduction.failed,
                        buckets=len(buckets),
                        world=reduction.world,
                        at=time.monotonic(),
                    )
                )
            state.apply_gradients()
            report(
                Stepped(
                    step=state.step,
                    loss=loss,
                    world=reduction.world,
                    tokens=batch[:, 1:].numel(),
                    tx_bytes=reduction.tx_bytes,
                    rx_bytes=reduction.rx_bytes,
                    digest=state.digest() if state.step % task.digest_every == 0 else None,
                )
            )
        comm.are_peers_pending()  # a barrier: nobody leaves while another still waits for the end of its last reduce
    report(
        Finished(
            step=state.step,
            digest=state.digest(),
            validation=validation_loss(state.model, held_out),
            prompt=PROMPT,
            sample=corpus.decode(generate(state.model, corpus.encode(PROMPT), length=SAMPLE_LENGTH, seed=task.seed)),
        )
    )


def run(given: dict[str, Any], end: socket.socket) -> int:
    """The whole life of a peer's process; `end` is its end of the socket to the orchestrator."""
    task = Task.from_fields(given)
    torch.set_num_threads(task.threads)
    orders = end.makefile("rb")
    train(
        task,
        report=lambda report: end.sendall(report.to_line()),
        wanted=lambda: bool(json.loads(orders.readline() or b"{}").get("connect")),
    )
    return 0
