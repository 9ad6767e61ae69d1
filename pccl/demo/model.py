"""A small character-level transformer, laid out for data-parallel training.

All parameters live in one flat tensor and all gradients in another; the module's parameters are views into them.
So a gradient bucket is a slice, the optimiser updates one tensor, and the state of a peer is a single block of bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pccl import SharedState


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
