"""What a step of a stress run works on: the buffers of its ops, and the state that all members share."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from pccl import (
    Contributors,
    DataType,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    TensorInfo,
)
from stress.actor import FlawError
from stress.content import Array, Content
from stress.reports import OpDone, Range
from stress.workload import OpPlan, state_count


class Buffers:
    """One op's buffers: filled anew for each launch, and checked after it."""

    def __init__(self, contents: Mapping[str, Content], plan: OpPlan, code: int, *, in_place: bool) -> None:
        self._content = contents["quantized" if plan.quantized else plan.dtype]
        self._plan, self._code = plan, code
        self.send = np.empty(plan.count, plan.dtype)
        self.recv = self.send if in_place else np.empty_like(self.send)
        algorithm = QuantizationAlgorithm[plan.quantized or "NONE"]
        self.options = QuantizationOptions(DataType.UINT8, algorithm)
        self.op = ReduceOp.AVG if plan.average else ReduceOp.SUM
        self.tries = 0
        self._filled = False

    def refill(self) -> None:
        """Writes what this process contributes, unless that is there: a failed op leaves it as it was."""
        if not self._filled:
            self._filled = True
            self._content.fill(self.send, self._code, self._plan.shift)

    def check_input(self) -> None:
        """After a failure it must be as it was at the launch, in place too."""
        wanted = self._content.fill(np.empty_like(self.send), self._code, self._plan.shift)
        if not np.array_equal(self.send, wanted):
            raise FlawError(
                "input", f"{np.count_nonzero(self.send != wanted)} elements of the input of {self._plan} have changed"
            )

    def done(self, world: int, said: Sequence[Contributors] = ()) -> OpDone:
        """Reads the result, whose contributors are `world` members, or by ranges those that the library has `said`."""
        if said and [one.start for one in said] + [self.recv.size] != [0] + [one.stop for one in said]:
            raise FlawError("error", f"the ranges of {self._plan} do not follow each other: {said}")
        ranges = [self._read(one) for one in said] if said else [Range(self.recv.size, self._who(self.recv, world))]
        if self.send is not self.recv:
            self.check_input()
        return OpDone(
            ranges=ranges,
            world=world,
            check=zlib.crc32(self.recv.data),
            tries=self.tries,
            size=self.recv.nbytes,
            at=time.monotonic(),
        )

    def divide(self, world: int) -> None:
        """Makes the average of a sum, where what reduces does not."""
        if self._plan.average:
            self.recv /= world

    def check_left(self, said: Sequence[Contributors]) -> None:
        """After a failure in retry mode: what was completed stays, and the rest of the input is as it was at the launch."""
        for one in said:
            if one.peers:
                self._read(one)
        if self.send is not self.recv or not said:
            self.check_input()
        wanted = self._content.fill(np.empty_like(self.send), self._code, self._plan.shift)
        for one in said:
            if not (one.peers or np.array_equal(self.send[one.start : one.stop], wanted[one.start : one.stop])):
                raise FlawError("input", f"the input of {self._plan} has changed in {one}")

    def _read(self, said: Contributors) -> Range:
        who = self._who(self.recv[said.start : said.stop], len(said.peers), said.start)
        return Range(said.stop, who, sorted(peer.hex for peer in said.peers))

    def _who(self, piece: Array, world: int, start: int = 0) -> int:
        reading = self._content.read(piece, self._plan.shift, world if self._plan.average else 1, start)
        if reading.fault:
            raise FlawError("sum", f"{self._plan}, from {start}: {reading.fault}")
        return reading.who

    def descriptor(self, tag: int) -> ReduceOpDescriptor:
        """For all_reduce_multiple_with_retry."""
        kind = DataType.from_numpy_dtype(self.send.dtype)
        wanted = ReduceDescriptor(
            count=self.send.size,
            op=self.op,
            tag=tag,
            operand_descriptor=ReduceOperandDescriptor(kind),
            quantization_options=self.options,
        )
        return ReduceOpDescriptor.from_numpy(self.send, self.recv, wanted)


class State:
    """What all members share: the sum of what they have averaged so far."""

    def __init__(self, elements: int) -> None:
        self.total = np.zeros(state_count(elements))
        self.place = np.zeros(2, np.int64)  # line and step
        infos = [TensorInfo.from_numpy(array, name) for name, array in vars(self).items()]
        self.shared = SharedState(infos)

    def add(self, average: Array) -> None:
        """The same on all members, for the same average."""
        self.total += average
