"""One peer of the demo, in a process of its own, and the small transformer that it trains, laid out for data-parallel training.

All parameters live in one flat tensor and all gradients in another; the module's parameters are views into them.
So a gradient bucket is a slice, the optimiser updates one tensor, and the state of a peer is a single block of bytes.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pccl import Attribute, CallAgainError, Communicator, PCCLError, ReduceOp, Result, SharedState, SharedStateSyncInfo
from pccl.demo.corpus import Corpus, load_corpus
from pccl.demo.run import Admitted, Finished, Halted, Joined, Missed, Prepared, Ready, Recovered, Report, Stepped, Task

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


# ---- the model ----


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Size of the model and of a batch."""

    vocabulary: int  # characters
    context: int = 64  # characters
    width: int = 128
    heads: int = 4
    layers: int = 2
    batch: int = 16  # sequences per peer and step


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width))

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out: (batch, context, width)."""
        batch, context, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        y: Tensor = x + self.mlp(self.norm_mlp(x))
        return y


class CharTransformer(nn.Module):
    """Logits of the next character at every position; input and output embeddings are shared."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.characters = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, codes: Tensor) -> Tensor:
        """Codes (batch, context) of int64 to logits (batch, context, vocabulary)."""
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.characters.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross entropy in nats per character; windows (batch, context + 1) of int64."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


class TrainingState:
    """Everything that peers must hold alike: the step, the weights, the optimiser's moments, torch's random numbers.

    Two states made from the same seed and advanced with the same gradients stay equal bit for bit. All of it is part of
    `shared`: a peer that has received it goes on exactly as the others do.
    """

    def __init__(self, shape: Shape, *, seed: int, steps: int, rate: float = 3e-3, warm_up: int = 20) -> None:
        torch.manual_seed(seed)
        self.model = CharTransformer(shape)
        self._steps, self._rate, self._warm_up = steps, rate, warm_up
        parameters = list(self.model.parameters())
        self.weights = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        self.gradients = torch.zeros_like(self.weights)
        self.weights.grad = self.gradients
        offset = 0
        for parameter in parameters:
            end = offset + parameter.numel()
            parameter.data = self.weights.data[offset:end].view(parameter.shape)
            # Autograd adds into a gradient that is there, so it writes straight into the flat tensor.
            parameter.grad = self.gradients[offset:end].view(parameter.shape)
            offset = end
        self.optimiser = torch.optim.AdamW([self.weights], lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        self.shared = SharedState.from_module(self.model, self.optimiser, extra={"step": 0})

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.shared.extra["step"])

    def buckets(self, count: int) -> list[Tensor]:
        """The gradients as ``count`` contiguous slices of nearly equal size (views, no copies)."""
        return list(torch.tensor_split(self.gradients, count))

    def compute_gradients(self, windows: Tensor) -> float:
        """Write the gradients of this batch, and return its loss."""
        self.gradients.zero_()
        loss = self.model.loss(windows)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        return loss.item()

    def apply_gradients(self) -> None:
        """One step of AdamW: norm clipped to 1, linear warm-up, then a cosine to a tenth of the rate."""
        nn.utils.clip_grad_norm_([self.weights], 1.0)
        progress = self.step / max(1, self._steps)
        rate = self._rate * min(1.0, (self.step + 1) / self._warm_up) * (0.55 + 0.45 * math.cos(math.pi * progress))
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.step()
        self.shared.extra["step"] += 1

    def digest(self) -> str:
        """Hash of all of it, 32 hexadecimal digits."""
        return self.shared.hash()


@torch.no_grad()
def validation_loss(model: CharTransformer, codes: Tensor, *, windows: int = 128) -> float:
    """Mean loss over evenly spaced windows of the held-out text."""
    length = model.shape.context + 1
    starts = torch.linspace(0, len(codes) - length, windows).long()
    batches = torch.split(starts[:, None] + torch.arange(length), model.shape.batch)
    return sum(model.loss(codes[batch]).item() * len(batch) for batch in batches) / windows


@torch.no_grad()
def generate(model: CharTransformer, prompt: list[int], *, length: int, seed: int) -> list[int]:
    """Draw ``length`` codes that follow ``prompt``, a little less at random than the model would have it."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.tensor([prompt])
    for _ in range(length):
        logits = model(codes[:, -model.shape.context :])[0, -1]
        choice = torch.multinomial(functional.softmax(logits / 0.7, dim=-1), 1, generator=random)
        codes = torch.cat([codes, choice[None]], dim=1)
    drawn: list[int] = codes[0, len(prompt) :].tolist()
    return drawn
