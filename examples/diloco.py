"""A small GPT that learns real text, character by character, with each method of training over slow links.

    pccl launch --nproc 3 examples/diloco.py -- --method diloco
    pccl launch --nproc 3 examples/diloco.py -- --method diloco --compression int8
    pccl launch --nproc 3 examples/diloco.py -- --method streaming --compression int4
    pccl launch --nproc 3 examples/diloco.py -- --method sparse
    pccl launch --nproc 3 examples/diloco.py -- --method data-parallel

Kill a peer: the others go on. To add one, give the address of the master, which `pccl launch` prints:

    pccl launch --nproc 1 --master 127.0.0.1:40123 examples/diloco.py -- --method diloco
"""

import argparse
import contextlib
import json
import math
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import pccl
import pccl.diloco

CONTEXT = 64
"""Characters that the model sees."""

HELD_OUT = 0.1
"""The share of the text, at its end, that nobody trains on."""

METHODS = ("data-parallel", "diloco", "async", "streaming", "sparse")

LINE = "outer step {step}: loss {loss:.3f}, validation {validation:.3f}, sent {megabytes:.2f} MB, {members} members"


# ---- the text and the model: nothing of them is about peers ----


class Text:
    """A text as numbers, the same on all peers that read the same file."""

    def __init__(self, path: str | None) -> None:
        if path is None:
            from pydoc_data.topics import topics

            text = "\n".join(topics[name] for name in sorted(topics))
        else:
            text = Path(path).read_text(encoding="utf-8")
        vocabulary = sorted(set(text))
        number = {character: place for place, character in enumerate(vocabulary)}
        codes = torch.tensor([number[character] for character in text])
        self.vocabulary = len(vocabulary)
        self.training, self.held_out = codes.split([math.ceil(len(codes) * (1 - HELD_OUT)), int(len(codes) * HELD_OUT)])

    def windows(self, count: int, random: torch.Generator, *, held_out: bool = False) -> Tensor:
        """Random pieces of the text, of shape (count, CONTEXT + 1)."""
        source = self.held_out if held_out else self.training
        starts = torch.randint(len(source) - CONTEXT, (count, 1), generator=random)
        return source[starts + torch.arange(CONTEXT + 1)]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def loss(self, windows: Tensor) -> Tensor:
        x = self.token(windows[:, :-1]) + self.place.weight
        return functional.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), windows[:, 1:].flatten())


# ---- data parallel: all gradients are averaged in every step ----


class DataParallel:
    """Averages the gradients of all peers in every step, with the same calls as the methods of `pccl.diloco`.

    Every `sync_every` steps newcomers come in, and get the parameters and the state of the optimizer.
    """

    def __init__(self, model: nn.Module, comm: pccl.Communicator, optimizer: torch.optim.Optimizer, sync_every: int, peers: int):
        self._parameters = list(model.parameters())
        self.communicator, self._every, self._peers = comm, sync_every, peers
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # without gradients: it makes the state of the optimizer, which is shared
        self._step = torch.zeros(1, dtype=torch.int64)
        tensors = [self._step, *(parameter.detach() for parameter in self._parameters)]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        self._shared = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, str(at)) for at, tensor in enumerate(tensors)])
        self.tx_bytes = 0

    @property
    def outer_step(self) -> int:
        return int(self._step) // self._every

    def __enter__(self) -> "DataParallel":
        self.communicator.connect()
        self._meet()
        while int(self._step) == 0 and self.communicator.world_size < self._peers:
            time.sleep(0.01)
            self._meet()
        return self

    def __exit__(self, *error: object) -> None:
        self.communicator.close()

    def average_gradients(self) -> None:
        """Whoever dies meanwhile: each element is the average of those that are in it."""
        gradients = torch.cat([parameter.grad.flatten() for parameter in self._parameters])
        with contextlib.suppress(pccl.TooFewPeersError):  # alone, the average is the own gradient
            self.tx_bytes += self.communicator.all_reduce(gradients, op=pccl.ReduceOp.AVG, retry=True).tx_bytes
        for parameter, part in zip(self._parameters, gradients.split([p.numel() for p in self._parameters]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    def step(self) -> bool:
        """After each step of the optimizer; whether newcomers could come in."""
        self._step += 1
        if int(self._step) % self._every:
            return False
        self._shared.push_revision()
        self._meet()
        return True

    def _meet(self) -> None:
        """Newcomers come out of `connect` here, and take part from the question on, as all others do."""
        while True:
            try:
                while self.communicator.are_peers_pending():
                    self.communicator.update_topology()
                self.communicator.sync_shared_state(self._shared)
                return
            except (pccl.PeerLostError, pccl.CallAgainError):
                self.communicator.update_topology()


# ---- training ----


def trainer_of(arguments: argparse.Namespace, model: GPT, comm: pccl.Communicator, optimizer: torch.optim.Optimizer):
    settings = {"sync_every": arguments.sync_every, "peers": int(os.environ.get("PCCL_PEERS", "1"))}
    if arguments.method == "data-parallel":
        return DataParallel(model, comm, optimizer, **settings)
    kinds = {"async": pccl.diloco.AsyncDiLoCo, "streaming": pccl.diloco.StreamingDiLoCo}
    kind = kinds.get(arguments.method, pccl.diloco.DiLoCo)
    compression = "sparse" if arguments.method == "sparse" else arguments.compression
    return kind(model, comm, optimizer, compression=compression, **settings)


def train(arguments: argparse.Namespace) -> None:
    text = Text(arguments.data)
    torch.manual_seed(0)
    model = GPT(text.vocabulary, arguments.width, arguments.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.0)
    random = torch.Generator()
    random.seed()  # each peer reads the text in an order of its own
    validation = text.windows(256, torch.Generator().manual_seed(0), held_out=True)

    comm = pccl.Communicator()
    began, sent, members, losses = time.monotonic(), 0, 0, []

    def report(loss: float) -> None:
        with torch.no_grad():
            held_out = model.loss(validation).item()
        told = {
            "step": trainer.outer_step,
            "loss": round(loss, 4),
            "validation": round(held_out, 4),
            "sent": sent,
            "members": members,
            "parity": getattr(trainer, "parity", None),
            "seconds": round(time.monotonic() - began, 3),
        }
        print(json.dumps(told) if arguments.json else LINE.format(megabytes=sent / 1e6, **told), flush=True)

    with trainer_of(arguments, model, comm, optimizer) as trainer:
        while trainer.outer_step < arguments.steps // arguments.sync_every:
            optimizer.zero_grad()
            loss = model.loss(text.windows(arguments.batch, random))
            loss.backward()
            if arguments.method == "data-parallel":
                trainer.average_gradients()
            optimizer.step()
            losses.append(loss.item())
            done = trainer.step()
            if done:
                sent = trainer.tx_bytes if arguments.method == "data-parallel" else sent + done.tx_bytes
                members, mean = comm.world_size, sum(losses) / len(losses)
                report(mean)
                losses.clear()
    if arguments.method == "async":  # what was under way at the end is in the model now
        sent += trainer.last.tx_bytes
    if arguments.method in ("async", "streaming"):  # the model is that of all members now
        report(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT on text with peers that may come and go.")
    parser.add_argument("--method", choices=METHODS, default="diloco")
    parser.add_argument("--compression", help="of what diloco, async and streaming send: int8, int4 or e3m0; left out: float32")
    parser.add_argument("--data", metavar="FILE", help="UTF-8 text; left out: the documentation inside Python")
    parser.add_argument("--steps", type=int, default=1000, help="of the inner optimizer of each peer")
    parser.add_argument("--sync-every", type=int, default=50, help="inner steps between two outer steps")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--lr", type=float, default=2e-3, help="of the inner optimizer")
    parser.add_argument("--threads", type=int, default=1, help="of each peer")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.method in ("data-parallel", "sparse") and arguments.compression:
        parser.error(f"--method {arguments.method} takes no --compression")
    if "PCCL_MASTER" not in os.environ:
        sys.exit("start it with: pccl launch --nproc 3 examples/diloco.py")
    torch.set_num_threads(arguments.threads)
    train(arguments)


if __name__ == "__main__":
    main()
