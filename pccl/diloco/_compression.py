"""How pseudo-gradients are made smaller for the wire."""

from __future__ import annotations

from dataclasses import dataclass

from pccl._core.enums import DataType, QuantizationAlgorithm
from pccl._core.types import QuantizationOptions
from pccl._exports import publish
from pccl._peer.sparse import DECAY, K

ALGORITHMS = {
    "int8": QuantizationAlgorithm.BLOCK_INT8,
    "int4": QuantizationAlgorithm.BLOCK_INT4,
    "e3m0": QuantizationAlgorithm.BLOCK_E3M0,
}

METHODS = ("none", *ALGORITHMS, "sparse")


@dataclass(frozen=True)
class Compression:
    """How pseudo-gradients go over the wire. All members give the same.

    `method` is one of:

    - "none": fp32.
    - "int8", "int4": whole numbers of 8 or 4 bits, with an fp32 scale for each block.
    - "e3m0": 4-bit floats, that is a sign and a power of two (arXiv 2501.18512), with an fp32 scale for each block.
    - "sparse": of each 4,096 elements the `k` largest, in 2 bits each, with their places (SparseLoCo, arXiv 2508.15706). What is
      left out comes with later rounds.
    """

    method: str = "none"
    block: int = 256
    """Elements that share a scale: a power of two from 32 to 4096."""
    stochastic: bool = False
    """Round up or down at random, so that values are right on average, in place of to the nearest; not with "sparse"."""
    error_feedback: bool = True
    """What rounding takes away from a round is added to the next one; always so with "sparse"."""
    k: int = K
    """Of "sparse": from 1 to 4096."""
    decay: float = DECAY
    """Of "sparse": what was left out counts so much less in each later round."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"compression {self.method!r} is not one of {', '.join(map(repr, METHODS))}")
        if self.stochastic and not self.rounds:
            raise ValueError(
                f"compression {self.method!r} does not round; use stochastic only with {', '.join(map(repr, ALGORITHMS))}"
            )
        if not 1 <= self.k <= 4096:
            raise ValueError(f"k must be from 1 to 4096, not {self.k}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be from 0 to 1, not {self.decay}")
        self.options(0)

    @classmethod
    def of(cls, given: str | Compression | None) -> Compression:
        """What the user gave as `compression`: a method, all of it, or None for fp32. ValueError for an unknown method."""
        if isinstance(given, Compression):
            return given
        return cls("none" if given is None else given)

    @property
    def rounds(self) -> bool:
        """Whether elements are rounded to codes."""
        return self.method in ALGORITHMS

    def options(self, seed: int) -> QuantizationOptions | None:
        """For a reduce, of which no other peer has the same `seed`; None: fp32, or sparse."""
        if not self.rounds:
            return None
        seed_or_none = seed % (1 << 64) if self.stochastic else None
        return QuantizationOptions(DataType.UINT8, ALGORITHMS[self.method], self.block, seed_or_none)

    def __str__(self) -> str:
        if self.method == "sparse":
            return f"sparse, {self.k} of 4096"
        return f"{self.method} in blocks of {self.block}" if self.rounds else self.method


publish(globals())
