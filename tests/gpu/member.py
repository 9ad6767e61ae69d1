"""A process of tests/gpu/run.py, as its cases see it."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pccl import Communicator


class SkippedError(Exception):
    """The case needs what is not here; the text says what."""


@dataclass
class Member:
    """One of the two processes."""

    rank: int
    comm: Communicator
    device: str
    torch: Any
    address: str
    """Of the master."""
    verdict: Connection

    def filled(self, count: int, dtype: str, device: str | None = None) -> Any:
        """Other elements on each member, the same on every device."""
        torch = self.torch
        values = torch.arange(count) % 61 + self.rank
        return values.to(getattr(torch, dtype)).to(device or self.device)

    def same(self, found: Any, expected: Any) -> None:
        """Bit for bit."""
        found, expected = (tensor.cpu().contiguous().view(self.torch.uint8) for tensor in (found, expected))
        assert self.torch.equal(found, expected), "the bits differ from those of tensors on the CPU"

    def agree(self, tensor: Any) -> None:
        """Both members have the same bits."""
        of_first = tensor.cpu().clone()
        self.comm.broadcast(of_first, root=0)
        assert self.torch.equal(of_first, tensor.cpu()), "the bits of the members differ"
