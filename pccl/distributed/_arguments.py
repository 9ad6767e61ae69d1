"""The arguments of the calls of a process group: their checks, and what they are for the core."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pccl._core.enums import DataType, ReduceOp
from pccl._ops.collectives import Collective
from pccl.distributed import _callers
from pccl.distributed._calls import Call
from pccl.distributed._errors import CollectiveError, PeerLostError
from pccl.distributed._launch import Launcher
from pccl.distributed._tensors import address_of, moved_as, reduced_as, same_type
from pccl.distributed._this_run import is_joining
from pccl.distributed._work import Completer, Work, seconds_of

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
OneOrMore = Tensor | Tensors
Lists = Sequence[Tensors] | Tensors
"""One list for each of the devices of a process, or the list of the one that there is."""
Limit = timedelta | None

_REDUCE_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.PRODUCT: ReduceOp.PROD,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.BAND: ReduceOp.BAND,
    dist.ReduceOp.BOR: ReduceOp.BOR,
    dist.ReduceOp.BXOR: ReduceOp.BXOR,
}


def reduce_op(options: Any) -> ReduceOp:
    """The reduction that torch's options, or an operation given in their place, ask for."""
    asked = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    kind = getattr(asked, "op", asked)  # of what carries a factor, too
    found = _REDUCE_OPS.get(kind)
    if found is None:
        raise ValueError(f"{kind} is not supported; multiply the tensor first, and use SUM")
    return found


class Coalescing(threading.local):
    """The calls that a thread makes between torch's `_start_coalescing` and `_end_coalescing`; None outside of them."""

    works: list[Work] | None = None
    generator: Any = None
    """Behind the block of torch's `_coalescing_manager`: torch does not say when an exception ends one."""

    def add(self, work: Work) -> None:
        if self.generator is not None and self.generator.gi_frame is None:
            self.works = self.generator = None
        if self.works is not None:
            self.works.append(work)


_TorchGroup: Any = dist.ProcessGroup  # whose overloads, one for each way that a call was ever made, nobody can match


class Arguments(_TorchGroup):  # type: ignore[misc]
    """What the calls of a group have in common: how they are checked and begun, and how they are refused."""

    _launcher: Launcher
    _completer: Completer
    _timeout: float
    _coalescing: Coalescing

    def _launch(
        self,
        kind: Collective,
        name: str,
        send: Tensor | None,
        recv: Tensor | None,
        op: ReduceOp | None = None,
        *,
        count: int | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        **options: Any,
    ) -> Call:
        """Begins a call on plain memory, whose smaller side is one part of it, unless `count` or counts tell the elements."""
        there = [memory for memory in (send, recv) if memory is not None]
        dtype, factor = self._elements(name, there[0].dtype, op)
        if op is not None:
            options["op"] = op
        if send_counts is None and recv_counts is None:
            options["count"] = factor * (min(memory.numel() for memory in there) if count is None else count)
        for side, counts in (("send_counts", send_counts), ("recv_counts", recv_counts)):
            if counts is not None:
                options[side] = [number * factor for number in counts]
        source, target = address_of(send), address_of(recv)
        return self._launcher.launch(kind, name, dtype=dtype, keep=(send, recv), send=source, recv=target, **options)

    def _elements(self, name: str, dtype: torch.dtype, op: ReduceOp | None) -> tuple[DataType, int]:
        """The type that elements travel as, and how many of it make up one. TypeError: `op` is not defined for them."""
        if op is None:
            return moved_as(dtype)
        try:
            return reduced_as(dtype, op)
        except TypeError as error:
            self._refuse(name, str(error), TypeError)

    def _work(self, calls: list[Call], opts: Any, timeout: Limit, result: Any) -> Work:
        work = Work(self._completer, calls, self._seconds(opts, timeout), result)
        self._coalescing.add(work)
        return work

    def _seconds(self, opts: Any, timeout: Limit) -> float:
        if timeout is None:  # options without one have a negative one
            timeout = max(getattr(opts, "timeout", timedelta()), timedelta())
        seconds = seconds_of(timeout)
        return seconds if seconds > 0 else self._timeout

    def _refuse(self, name: str, text: str, kind: type[Exception] = ValueError, *, size: int | None = None) -> NoReturn:
        """Raises an error for arguments that this member cannot use.

        `size` is the number of members that the arguments are made for: PeerLostError if the group had it before a loss.
        """
        ranks, members = self._launcher.view.lost_of(-1 if size is None else size)
        if ranks:
            lost = f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))} of {size}"
            detail = f"{text}: {lost} have left since; read the world size again, and repeat the call"
            raise PeerLostError(name, detail, ranks, members, self._launcher.told(members))
        raise kind(f"{name}: {text}")

    def _announce(self, name: str) -> None:
        with contextlib.suppress(CollectiveError):
            call = self._launcher.launch(Collective.BARRIER, f"{name}, refused by its caller", dtype=DataType.UINT8)
            self._launcher.adopt(call)

    @contextlib.contextmanager
    def _begun(self, count: int) -> Iterator[list[Call]]:
        """Lists the calls of a method that makes `count` of them. If it fails halfway, nobody waits for those it has made."""
        self._launcher.plan(count)
        calls: list[Call] = []
        try:
            yield calls
        except Exception:
            for call in calls:
                self._launcher.adopt(call)
            raise

    def _root(self, name: str, opts: Any) -> int:
        root: int = 0 if opts is None else getattr(opts, "rootRank", opts)
        size = self._launcher.view.size
        if not 0 <= root < size:
            before = min((one for one in self._launcher.view.before if one > root >= 0), default=None)
            self._refuse(name, f"the root must be a rank of the group, 0 to {size - 1}, not {root}", size=before)
        return root

    def _stands_in(self, knows: Callable[[FrameType | None], bool]) -> bool:
        """Whether a living rank stands in for a lost one. `knows` tells of a caller that its result stays right."""
        launcher = self._launcher
        always = launcher.stands_in or launcher.apart or is_joining()
        return launcher.view.fixed and (always or knows(_callers.caller()))

    def _require_all(self, name: str) -> None:
        """PeerLostError: a rank has no living member, and the result of the call would lack its part."""
        for rank in self._launcher.view.lost_ranks:
            self._require_living(name, rank)

    def _require_living(self, name: str, rank: int) -> None:
        """PeerLostError: a rank of a group of fixed membership has no living member."""
        view = self._launcher.view
        if view.members[rank] not in view.living:
            ranks = view.lost_ranks
            members = tuple(view.members[one] for one in ranks)
            detail = f"it needs rank {rank}, which is lost and has no replacement yet"
            raise PeerLostError(name, detail, ranks, members, self._launcher.told(members))

    def _has_no_root(self, name: str, root: int) -> bool:
        """Whether the root is rank 0, and lost: nobody gets a result. PeerLostError: another root is lost."""
        view = self._launcher.view
        if view.members[root] in view.living:
            return False
        if root != 0:
            self._require_living(name, root)
        return True

    def _check_whole(self, name: str, whole: str, wholes: Tensors, part: str, parts: Tensors) -> None:
        """Checks that each whole has as many elements as a part of every member."""
        size = self._launcher.view.size
        for one, piece in zip(wholes, parts, strict=True):
            if piece.numel() * size != one.numel() or one.dtype is not piece.dtype or one.device != piece.device:
                text = f"the {whole} must have {size} times the elements of the {part}, and its dtype and device"
                before, rest = divmod(one.numel(), piece.numel() or 1)
                self._refuse(name, f"{text}: they are {_shown(one)} and {_shown(piece)}", size=None if rest else before)

    def _one_per_rank(self, name: str, role: str, tensors: Tensors) -> None:
        size = self._launcher.view.size
        if len(tensors) != size:
            text = f"needs one {role} for each of the {size} members of the group, not {len(tensors)}"
            self._refuse(name, text, size=len(tensors))
        same_type(name, tensors)

    def _alike(self, name: str, one: Tensor, other: Tensor, role: str, other_role: str) -> None:
        if one.numel() != other.numel() or one.dtype is not other.dtype or one.device != other.device:
            text = f"{role} and {other_role} must be of one size, dtype and device"
            self._refuse(name, f"{text}: they are {_shown(one)} and {_shown(other)}")

    def _split(self, name: str, role: str, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        size = self._launcher.view.size
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % size:
                before = next((one for one in self._launcher.view.before if rows % one == 0), None)
                text = f"the first dimension of the {role}, {rows}, must be a multiple of {size}, or split sizes given"
                self._refuse(name, text, size=before)
            return [tensor.numel() // size] * size
        if len(sizes) != size or sum(sizes) != rows or min(sizes) < 0:
            text = f"the {role} split sizes must be {size} numbers from 0 on whose sum is the first dimension, {rows}"
            self._refuse(name, f"{text}, not {list(sizes)}", size=len(sizes))
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in sizes]


def _shown(tensor: Tensor) -> str:
    where = "" if tensor.is_cpu else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{where}"
