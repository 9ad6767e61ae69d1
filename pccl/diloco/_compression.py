"""How pseudo-gradients are made smaller for the wire."""

from __future__ import annotations

from dataclasses import dataclass

from pccl._enums import DataType, QuantizationAlgorithm
from pccl._types import QuantizationOptions

METHODS = ("none", "int8")


@dataclass(frozen=True)
class Compression:
    """How pseudo-gradients go over the wire. `method`: "none" is fp32; "int8" is 8 bits per element with scales."""

    method: str = "none"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"compression {self.method!r} is none of {', '.join(map(repr, METHODS))}")

    @classmethod
    def of(cls, given: str | Compression | None) -> Compression:
        """What the user gave as `compression`: a method, all of it, or None for fp32. ValueError for an unknown method."""
        if isinstance(given, Compression):
            return given
        return cls("none" if given is None else given)

    @property
    def options(self) -> QuantizationOptions | None:
        """For the reduce; None: fp32."""
        return None if self.method == "none" else QuantizationOptions(DataType.UINT8, QuantizationAlgorithm.MIN_MAX)

    def __str__(self) -> str:
        return self.method
