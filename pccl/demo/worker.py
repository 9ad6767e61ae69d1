"""One peer of the demo, in a process of its own: ``python -m pccl.demo.worker TASK``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pccl import Attribute, Communicator, PCCLError, ReduceOp, Result
from pccl.demo.corpus import Corpus, load_corpus
from pccl.demo.model import Shape, TrainingState, generate, validation_loss
from pccl.demo.reports import Finished, Halted, Ready, Recovered, Report, Stepped, Task

JOIN_POLL = 0.02  # seconds
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
    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < peers:
        # The same answer on all peers, so all of them take the same branch.
        if comm.are_peers_pending():
            comm.update_topology()
        else:
            time.sleep(JOIN_POLL)


class Batches:
    """Random windows of this peer's shard; no two peers draw the same."""

    def __init__(self, corpus: Corpus, task: Task, shape: Shape) -> None:
        self._shard = torch.tensor(corpus.shard(task.index, task.peers))
        self._random = torch.Generator().manual_seed(task.seed * 1_000_003 + task.index)
        self._shape = shape

    def draw(self) -> Tensor:
        """Codes (batch, context + 1)."""
        length = self._shape.context + 1
        starts = torch.randint(len(self._shard) - length, (self._shape.batch,), generator=self._random)
        return self._shard[starts[:, None] + torch.arange(length)]


def halt(comm: Communicator, buckets: list[Tensor], step: int, report: Callable[[Report], None]) -> None:
    """Launch the first half of the buckets, say so when the others have launched theirs, and wait for the kill.

    The survivors then have reduces in flight that can never end, whatever the timing.
    """
    half = buckets[: len(buckets) // 2]
    live = [comm.all_reduce_async(bucket, bucket, op=ReduceOp.AVG, tag=tag) for tag, bucket in enumerate(half)]
    time.sleep(HALT_PAUSE)
    report(Halted(step=step, launched=len(live), buckets=len(buckets)))
    time.sleep(3600)
    raise TimeoutError("nobody killed this peer")


def train(task: Task, report: Callable[[Report], None]) -> None:
    """Train until the last step; everything that the orchestrator knows, it knows from the reports."""
    corpus = load_corpus(task.data)
    shape = Shape(vocabulary=len(corpus.vocabulary))
    state = TrainingState(shape, seed=task.seed, steps=task.steps)
    held_out = torch.tensor(corpus.held_out)
    batches = Batches(corpus, task, shape)
    buckets = state.buckets(task.buckets)
    validation = validation_loss(state.model, held_out)
    with Communicator(task.master) as comm:
        gather(comm, task.peers)
        world = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
        report(Ready(world=world, parameters=state.weights.numel(), validation=validation))
        while state.step < task.steps:
            batch = batches.draw()
            loss = state.compute_gradients(batch)
            if state.step + 1 == task.halt_in_step:
                halt(comm, buckets, state.step + 1, report)
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
        comm.update_topology()  # a barrier: nobody leaves while another still waits for the end of its last reduce
    report(
        Finished(
            step=state.step,
            digest=state.digest(),
            validation=validation_loss(state.model, held_out),
            prompt=PROMPT,
            sample=corpus.decode(generate(state.model, corpus.encode(PROMPT), length=SAMPLE_LENGTH, seed=task.seed)),
        )
    )


def main() -> int:
    """Run the task given as the only argument."""
    task = Task.from_json(sys.argv[1])
    torch.set_num_threads(task.threads)
    with os.fdopen(task.report_fd, "w") as pipe:

        def report(report: Report) -> None:
            pipe.write(report.to_line())
            pipe.flush()

        train(task, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
