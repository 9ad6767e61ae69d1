"""Error feedback: what quantisation takes away from one reduce is added to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pccl._core.tensors import Memory, is_numpy_array, is_torch_tensor, numpy_memory, torch_memory
from pccl._exports import publish

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pccl._core.results import Contributors
    from pccl._ops.operations import OpTicket

    Tensor = torch.Tensor | np.ndarray[Any, Any]


class ErrorFeedback:
    """What quantisation has taken away from the reduces of one tensor so far (error feedback, arXiv 1901.09847).

    Passed as `residual=` to `Communicator.all_reduce` with a BLOCK_* algorithm and SUM or AVG. What is reduced is then the
    tensor plus `residual`, and once the op has succeeded, `residual` is what was taken away from that. After an error it is
    as before, bit for bit, and so belongs to the repeat. Each peer has its own, and others may do without.

    Nothing is lost: over the contributors of an op, the tensors and the residuals before it add up to the result and the
    residuals after it, but for the rounding of float32. With AVG that is the number of contributors times the result: a
    residual is in units of a tensor, not of an average. Elements that are NaN or infinite in the result leave a residual of
    0. The residual of a peer that dies is lost with it.

    It is made for tensors of as many elements as `like`, a torch tensor or a numpy array, at its device. It begins with zeros
    and takes twice the memory of `like` in float32. An op in flight has it for itself: ValueError for another one.
    """

    def __init__(self, like: Tensor) -> None:
        if is_torch_tensor(like):
            torch = sys.modules["torch"]
            first, second = (torch.zeros(like.shape, dtype=torch.float32, device=like.device) for _ in range(2))
        elif is_numpy_array(like):
            numpy = sys.modules["numpy"]
            first, second = (numpy.zeros(like.shape, numpy.float32) for _ in range(2))
        else:
            raise TypeError(f"like must be a torch.Tensor or a numpy.ndarray, not {type(like).__name__}")
        self.pair: tuple[Any, Any] = (first, second)
        """The residual, and where the next one is written."""
        self._op: OpTicket | None = None

    @property
    def residual(self) -> Any:
        """The residual as it is now: float32, of the shape and at the device of `like`. Another tensor after each success.

        Between ops it may be changed in place, as by a decay, and saved or restored with a checkpoint.
        """
        return self.pair[0]

    def keep(self, contributors: Iterable[Contributors]) -> None:
        """Takes over what a failed op with `retry` has reduced: `contributors` are those of the error.

        For a caller that uses the result of the ranges that have peers. It is called before the next op, and changes `residual`
        in these ranges alone. ValueError: an op is in flight.
        """
        self.check_idle()
        now, other = (tensor.reshape(-1) for tensor in self.pair)
        for part in contributors:
            if part.peers:
                now[part.start : part.stop] = other[part.start : part.stop]

    def check_idle(self) -> None:
        """ValueError while an op has it."""
        if self._op is not None and self._op.is_live:
            raise ValueError(f"residual belongs to the operation with tag {self._op.tag}, which is in flight; await it first")

    def memory(self) -> tuple[Memory, Memory]:
        """Of the residual, and of where the next one is written."""
        memory_of = torch_memory if is_torch_tensor(self.pair[0]) else numpy_memory
        return memory_of(self.pair[0], "residual"), memory_of(self.pair[1], "residual")

    def lend(self, op: OpTicket) -> None:
        """To an op that is about to begin."""
        self._op = op

    def give_back(self, pair: tuple[Any, Any], success: bool) -> None:
        """From an op that had `pair`; a second time it does nothing."""
        if self.pair is not pair:
            return
        self._op = None
        if success:
            self.pair = (pair[1], pair[0])  # one assignment: a signal comes before it or after

    def __repr__(self) -> str:
        return f"<ErrorFeedback of {self.memory()[0].numel} elements>"


publish(globals())
