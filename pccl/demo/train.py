"""One peer of the demo: trains a small character-level transformer, survives the loss of peers, and lets newcomers in.

    pccl launch --nproc 3 -m pccl.demo.train --steps 100

It reports in JSON lines.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pydoc_data.topics import topics
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional

import pccl

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 128, 4, 2, 16
RATE, WARM_UP = 3e-3, 20
HASH_EVERY = 10
"""Steps between two reports of the state's hash."""


class Text:
    """The documentation inside Python's own library as numbers, one for each character. Nobody trains on the last tenth."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        self.vocabulary = sorted(set(text))
        self._index = {character: code for code, character in enumerate(self.vocabulary)}
        codes = torch.tensor(self.encode(text))
        self.training, self.held_out = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]

    def encode(self, text: str) -> list[int]:
        """Returns the numbers of a text."""
        return [self._index[character] for character in text]


class Transformer(nn.Module):
    """Logits of the next character at every position. The embedding of the input is that of the output."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 (batch, context) to float32 (batch, context, vocabulary)."""
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1])
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        return functional.linear(self.blocks(x, mask=mask, is_causal=True), self.characters.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross entropy in nats per character, of int64 (batch, context + 1)."""
        return functional.cross_entropy(self(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def held_out_loss(self, text: Text, count: int = 128) -> float:
        """Returns the mean loss over windows of the text that nobody trains on."""
        starts = torch.linspace(0, len(text.held_out) - CONTEXT - 1, count).long()
        return self.loss(text.held_out[starts[:, None] + torch.arange(CONTEXT + 1)]).item()

    @torch.no_grad()
    def continue_text(self, text: Text, prompt: str, length: int = 240) -> str:
        """Returns `length` characters that the model puts after the prompt."""
        codes = torch.tensor([text.encode(prompt)])
        for _ in range(length):
            likely = functional.softmax(self(codes[:, -CONTEXT:])[0, -1] / 0.7, dim=-1)
            codes = torch.cat([codes, torch.multinomial(likely, 1)[None]], dim=1)
        return "".join(text.vocabulary[code] for code in codes[0, len(prompt) :].tolist())


def report(**fields: Any) -> None:
    """Prints a report."""
    print(json.dumps(fields), flush=True)


def average(comm: pccl.Communicator, gradient: Tensor) -> pccl.ReduceInfo | None:
    """Averages in place over the peers that are left. None: no other is."""
    while True:
        try:
            return comm.all_reduce(gradient, op=pccl.ReduceOp.AVG)
        except pccl.PeerLostError:  # the gradient is as it was
            report(lost_a_peer=True, world=comm.world_size)
        except pccl.TooFewPeersError:
            return None


def sync(comm: pccl.Communicator, state: pccl.SharedState) -> pccl.SharedStateSyncInfo:
    """Brings all members to one state."""
    while True:
        try:
            return comm.sync_shared_state(state)
        except pccl.CallAgainError:  # the only peer that had the state was lost
            comm.update_topology()


@click.command()
@click.option("--steps", type=int, default=600)
@click.option("--seed", type=int, default=1)
@click.option("--stand-by", is_flag=True, help="join when SIGUSR1 comes")
def main(steps: int, seed: int, stand_by: bool) -> None:
    """Train."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    torch.set_num_threads(1)
    number, joins = int(os.environ["PCCL_PEER"]), os.environ.get("PCCL_JOIN") == "1"
    text = Text()
    torch.manual_seed(seed + joins)  # a newcomer begins with other weights: what it has in the end, it has received
    model = Transformer(len(text.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    state = pccl.SharedState.from_module(model, optimizer, extra={"step": 0})
    batches = torch.Generator().manual_seed(1000 * seed + number)
    report(prepared=number)
    if stand_by:
        signal.sigwait([signal.SIGUSR1])
    with pccl.Communicator() as comm:
        comm.connect()
        comm.wait_for_peers(2 if joins else int(os.environ["PCCL_PEERS"]))
        info = sync(comm, state)
        if joins:
            report(
                joined=state.extra["step"], received=info.rx_bytes, donors=info.donors, seconds=info.seconds, state=state.hash()
            )
        else:
            count = sum(parameter.numel() for parameter in model.parameters())
            report(begins=comm.world_size, parameters=count, held_out=model.held_out_loss(text))
        while state.extra["step"] < steps:
            while comm.are_peers_pending():
                began = time.monotonic()
                comm.update_topology()
                state.push_revision()
                sent = sync(comm, state).tx_bytes
                held_up = time.monotonic() - began
                report(admitted=state.extra["step"], world=comm.world_size, sent=sent, held_up=held_up, state=state.hash())
            starts = torch.randint(len(text.training) - CONTEXT - 1, (BATCH, 1), generator=batches)
            loss = model.loss(text.training[starts + torch.arange(CONTEXT + 1)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
            done = average(comm, gradient)
            nn.utils.vector_to_parameters(gradient, [one.grad for one in model.parameters() if one.grad is not None])
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            step = state.extra["step"]
            optimizer.param_groups[0]["lr"] = (
                RATE * min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            )
            optimizer.step()
            state.extra["step"] = step = step + 1
            traffic = {"sent": done.tx_bytes, "received": done.rx_bytes} if done is not None else {}
            tail = {"state": state.hash()} if step % HASH_EVERY == 0 or step == steps else {}
            report(step=step, loss=loss.item(), world=comm.world_size, tokens=BATCH * CONTEXT, **traffic, **tail)
        comm.are_peers_pending()  # a barrier: nobody leaves while another peer is still in its last average
    prompt = "The "
    report(finished=steps, held_out=model.held_out_loss(text), prompt=prompt, sample=model.continue_text(text, prompt))


if __name__ == "__main__":
    main()
