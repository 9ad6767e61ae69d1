"""Averages over the members, whoever of them dies meanwhile: each range over exactly those that are in it."""

from __future__ import annotations

import contextlib
import logging
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

import torch
from torch import Tensor

from pccl._core.enums import ReduceOp
from pccl._core.errors import TooFewPeersError
from pccl._core.results import Contributors
from pccl._core.types import QuantizationOptions
from pccl._ops.feedback import ErrorFeedback
from pccl._ops.reduces import AsyncReduceHandle
from pccl._peer.communicator import Communicator, roll
from pccl._peer.sparse import SparseAverage, SparseHandle
from pccl.diloco._compression import Compression

TAG = 0xD110C0 << 32
"""Of the first of the reduces here; a program's own reduces have to use other tags."""

_log = logging.getLogger("pccl.diloco")

ROLL_TAG, _WEIGHTS_TAG, _FIRST_TAG = TAG, TAG + 1, TAG + 2

START_TAG = TAG + (1 << 31)
"""Of the reduces by which members agree on the state that a run begins with; the next number too."""


@dataclass(frozen=True)
class Averaged:
    """What a reduce has done: which members are in which elements, and the bytes that this peer has sent and received."""

    contributors: tuple[Contributors, ...]
    tx_bytes: int = 0
    rx_bytes: int = 0
    not_finite: frozenset[UUID] = frozenset()
    """Members whose values had a NaN or an infinity, and counted with weight 0. Who dies before it tells so counts as zeros."""

    def without(self, peers: frozenset[UUID]) -> Averaged:
        """The same without these members, which had nothing to give."""
        return replace(self, contributors=tuple(one._replace(peers=one.peers - peers) for one in self.contributors))


class Average(Protocol):
    """An average in flight."""

    def wait(self) -> Averaged:
        """Waits for the others, as long as they live, and leaves the average in the buffer. To be called once."""


class Averager:
    """Averages of buffers of `size` elements over the members, one at a time. It holds what compression has left out so far.

    `tag`, below 2**31, tells those apart that are in flight at the same time.
    """

    def __init__(self, size: int, compression: Compression, *, tag: int = 0) -> None:
        self._compression = compression
        self._tag = tag
        self._launched = 0
        self._total_weight = 0.0  # what the residual is in units of; 0: of none
        self._sparse: SparseAverage | None = None
        self._feedback: ErrorFeedback | None = None
        if compression.rounds and compression.error_feedback:
            self._feedback = ErrorFeedback(torch.empty(size, dtype=torch.float32, device="cpu"))
        if compression.method == "sparse":
            like = torch.empty(size, dtype=torch.float32, device="cpu")
            self._sparse = SparseAverage(like, k=compression.k, decay=compression.decay)

    @property
    def residual(self) -> Tensor | None:
        """What compression has left out so far, fp32 of shape (size,), times the weights; None: it leaves nothing out."""
        kept = self._sparse or self._feedback
        residual: Tensor | None = kept.residual if kept else None  # type: ignore[assignment]  # of the kind that was given
        return residual

    @property
    def residual_weight(self) -> float:
        """The sum of the weights that `residual` is in units of; 0 where members have none, or nothing was left out yet."""
        return self._total_weight

    def load_residual(self, residual: Tensor | None, weight: float) -> None:
        """Sets `residual` and `residual_weight`. None, or a residual of another size: nothing was left out."""
        own = self.residual
        if own is None:
            return
        fits = residual is not None and residual.shape == own.shape
        own.copy_(residual) if fits and residual is not None else own.zero_()
        self._total_weight = weight if fits else 0.0

    def launch(
        self,
        comm: Communicator,
        buffer: Tensor,
        weight: float | None = None,
        weights: dict[UUID, float] | None = None,
        *,
        joiners: bool = False,
    ) -> Average:
        """Launches an average of `buffer`, contiguous fp32 on the CPU, which is replaced by it once `wait` has returned.

        Without `weight` all members count alike. With it (at least 0, rounded to fp32; all members give one) the result is the
        sum of weight * buffer, divided by the sum of the weights, both over the members that are in the range; 0 where all
        weights are 0. The weights are exchanged before the launch, which waits for that: whoever is in a range, everyone knows
        its weight. `weights` are those that were exchanged before (`exchange`), if no member has come since. A peer that is
        alone has its own values as the average. After an error other than the death of members `buffer` is unspecified.

        `joiners`: some members have just come, and give weight 0; where the others have no weights, these count 1 each this once.

        Values that are not finite count as zeros with weight 0. `wait` tells whose they were.
        """
        finite = is_finite(buffer)
        if not finite:
            _log.warning("the pseudo-gradient of this peer is not finite: it counts with weight 0 in this average")
            buffer.zero_()
        if self._sparse is not None:
            own = (1.0 if weight is None else weight) if finite else 0.0
            refused = frozenset() if finite else frozenset([comm.uuid])
            return _Sparse(self._sparse.average_async(comm, buffer, weight=own), buffer.numel(), refused)
        self._launched += 1
        options = self._compression.options((comm.uuid.int + self._launched) ^ self._tag)
        equal = weight is None
        if joiners and weight is None:
            weight = 1.0
        if weight is None:
            return _Dense(comm, buffer, None, self._tag, options, self._feedback, finite=finite)
        weights = exchange(comm, weight) if weights is None else weights
        total = sum(weights.values())
        feedback = self._feedback if (equal and total > 0) or self._weigh_residual(total) else None
        return _Dense(comm, buffer, weights, self._tag, options, feedback, finite=finite)

    def _weigh_residual(self, total: float) -> bool:
        """What was left out of an average stays as much of the next one, whose weights add up to `total`. False: it has none."""
        if total > 0 and self._feedback is not None:
            if self._total_weight > 0:
                self._feedback.residual.mul_(total / self._total_weight)
            self._total_weight = total
        return total > 0


class _Dense:
    """By an all-reduce in retry mode."""

    def __init__(
        self,
        comm: Communicator,
        buffer: Tensor,
        weights: dict[UUID, float] | None,
        tag: int,
        options: QuantizationOptions | None,
        feedback: ErrorFeedback | None,
        *,
        finite: bool,
    ) -> None:
        self._comm = comm
        self._buffer = buffer
        self._feedback = feedback
        self._own = comm.uuid
        self._weights = weights
        self._finite = finite
        if weights is not None:
            buffer.mul_(weights[self._own])
        op = ReduceOp.AVG if weights is None else ReduceOp.SUM
        self._handle: AsyncReduceHandle | None = None
        with contextlib.suppress(TooFewPeersError):
            self._handle = comm.all_reduce_async(
                buffer, op=op, tag=_FIRST_TAG + tag, quantization_options=options, retry=True, residual=feedback, copy=False
            )

    def wait(self) -> Averaged:
        tx = rx = 0
        ranges: Sequence[Contributors] = ()
        kept: Tensor | None = None  # the residual that the sum has taken in
        if self._handle is not None:
            try:
                info = self._handle.result()
                ranges, tx, rx = info.contributors, info.tx_bytes, info.rx_bytes
                kept = None if self._feedback is None else self._feedback.pair[1]
            except TooFewPeersError as error:  # all others have died: what is not reduced is as it was
                ranges = error.contributors
                if self._feedback is not None:
                    kept = self._feedback.residual.clone()
                    self._feedback.keep(ranges)
        alone = frozenset([self._own])
        found = [Contributors(one.start, one.stop, one.peers or alone) for one in ranges]
        found = found or [Contributors(0, self._buffer.numel(), alone)]
        told = exchange(self._comm, float(self._finite))
        not_finite = frozenset(peer for peer, finite in told.items() if not finite)
        for one in found:
            self._divide(slice(one.start, one.stop), one.peers, one.peers - not_finite, kept)
        return Averaged(tuple(found), tx, rx, not_finite)

    def _divide(self, part: slice, peers: frozenset[UUID], finite: frozenset[UUID], kept: Tensor | None) -> None:
        """Makes the average of those of `peers` whose values are finite: of a sum with weights, of an average without them.

        The residual of compression is in units of T, the sum of all weights that were exchanged. If the members that are left
        have the weights W, the sum is divided by W, and so is the residual that it has taken in. The excess, T/W - 1 of that
        residual, is taken back here.
        """
        values = self._buffer[part]
        if self._weights is None:
            if finite and finite != peers:
                values.mul_(len(peers) / len(finite))
            return
        total = sum(weight for peer, weight in self._weights.items() if peer in finite)
        if total == 0:
            values.zero_()
            return
        values.div_(total)
        told = sum(self._weights.values())
        if self._feedback is not None and kept is not None and total != told:
            self._feedback.residual[part].sub_(kept[part]).mul_(told / total).add_(kept[part])


class _Sparse:
    """By an exchange of the largest elements."""

    def __init__(self, handle: SparseHandle, size: int, not_finite: frozenset[UUID]) -> None:
        self._handle = handle
        self._size = size
        self._not_finite = not_finite  # this peer alone is known

    def wait(self) -> Averaged:
        info = self._handle.wait()
        whole = Contributors(0, self._size, frozenset(info.members))
        return Averaged((whole,), info.tx_bytes, info.rx_bytes, self._not_finite)


def is_finite(values: Tensor) -> bool:
    return values.numel() == 0 or all(math.isfinite(float(one)) for one in torch.aminmax(values))


def exchange(comm: Communicator, weight: float) -> dict[UUID, float]:
    """Exchanges a number, such as a weight. Returns that of each member, rounded to fp32. Waits for all members.

    All members learn from one reduce who takes part, and so agree on each one's place. Whoever dies before it has told its number
    is not in the result: nothing is known of it.
    """
    here = sorted(roll(comm, torch.ones(1, device="cpu"), ROLL_TAG))
    weights = torch.zeros(len(here), dtype=torch.float64, device="cpu")
    weights[here.index(comm.uuid)] = struct.unpack("f", struct.pack("f", weight))[0]  # what the buffer is multiplied by
    told = roll(comm, weights, _WEIGHTS_TAG)
    return {peer: number for peer, number in zip(here, weights.tolist(), strict=True) if peer in told}
