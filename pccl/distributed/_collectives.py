"""The calls that torch makes of a process group, by both families of names that torch has for them."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn
from uuid import UUID

import torch
import torch.distributed as dist

from pccl._collectives import Collective
from pccl._enums import DataType, ReduceOp
from pccl.distributed import _bootstrap, _callers
from pccl.distributed._compile import refuse_python_reducer
from pccl.distributed._errors import CollectiveError, PeerLostError
from pccl.distributed._fixed import Parts
from pccl.distributed._launch import ENDED, Again, Call, Followed, Launcher, again_number
from pccl.distributed._tensors import (
    Finish,
    follow,
    gathered,
    in_place,
    in_place_all,
    mark,
    moved_as,
    readable,
    reduced_as,
    same_type,
    spread,
    writable,
)
from pccl.distributed._work import Completer, Work

Tensor = torch.Tensor
Tensors = Sequence[Tensor]

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

KEPT_BYTES = 1 << 20
"""Up to this size any broadcast from rank 0 keeps what it overwrites, so that it can be made again from the next rank 0."""


def reduce_op(options: Any) -> ReduceOp:
    """The reduction that torch's options, or an operation given in their place, ask for."""
    asked = dist.ReduceOp.SUM if options is None else getattr(options, "reduceOp", options)
    found = _REDUCE_OPS.get(getattr(asked, "op", asked))
    if found is None:
        raise ValueError(f"{asked} is not supported; multiply the tensor first, and use SUM")
    return found


def listed(tensors: Tensor | Tensors) -> Tensors:
    """A list of tensors, where torch allows a single one as well."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _before_joining(name: str, frame: FrameType | None, *, fixed: bool) -> bool:
    """Whether a process may make a call before it has joined the run.

    Frameworks call barriers and broadcasts while they are set up. DDP compares the shapes of parameters, from C++.
    """
    if fixed and _bootstrap.acts_alone():
        return True
    return name in ("broadcast", "barrier") or (name == "allgather" and not _callers.torch_distributed(frame))


class Coalescing(threading.local):
    """The calls that a thread makes between torch's `_start_coalescing` and `_end_coalescing`; None outside of them."""

    works: list[Work] | None = None


def announced(method: Callable[..., Work]) -> Callable[..., Work]:
    """Lets the other members know at once when a collective fails at this one, for whatever reason.

    They would wait for it until their timeout. Each call that the method was to make, and has not made, is announced: the others
    get the error of a call that differs between members, and the calls after it still meet.
    """

    @functools.wraps(method)
    def call(self: Collectives, *arguments: Any, **named: Any) -> Work:
        launcher = self._launcher
        if _bootstrap.is_joining() and not _before_joining(method.__name__, sys._getframe(1), fixed=launcher.view.fixed):
            _bootstrap.require_joined(method.__name__)
        before = launcher.plan(1)
        try:
            return method(self, *arguments, **named)
        except Exception:
            for _ in range(launcher.unmade(before)):
                self._announce(method.__name__)
            raise

    return call


_TorchGroup: Any = dist.ProcessGroup  # whose overloads, one for each way that a call was ever made, nobody can match


class Collectives(_TorchGroup):  # type: ignore[misc]
    """The collectives of a process group. What is in a list of lists is for several devices of a process: there is one."""

    _launcher: Launcher
    _completer: Completer
    _timeout: float
    _size_for_reducer: int
    _size_for_hooks: int
    _coalescing: Coalescing

    # ---- reductions ----

    @announced
    def allreduce(self, tensors: Tensor | Tensors, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduces tensors in place, on all members."""
        tensors = listed(tensors)
        divisor = None
        frame = _callers.caller()
        if not self._launcher.strict and not self._launcher.view.fixed:
            if _callers.reducer_of_ddp(frame):
                divisor = self._size_for_reducer
            elif not _callers.torch_all_reduce(frame):
                refuse_python_reducer()
            elif _callers.hook_of_ddp(frame):
                divisor = self._size_for_hooks
        if tensors[0].is_sparse:
            return self._sparse_all_reduce(tensors[0], opts, timeout, divisor)
        work = self._all_reduce(tensors, opts, timeout, divisor, whole=self._needs_all(frame))
        work.for_cpp = _callers.reducer_of_ddp(frame)
        return work

    @announced
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """As `allreduce`, of all tensors of one type at once."""
        return self._all_reduce(tensors, opts, None, None, whole=self._needs_all(_callers.caller()))

    def _needs_all(self, frame: FrameType | None) -> bool:
        """Whether an all-reduce may sum parts of one result: a functional one, as that of DTensor, in fixed membership.

        PeerLostError: it does, and a rank has no living member.
        """
        fixed = self._launcher.view.fixed
        found = fixed and not _callers.reducer_of_ddp(frame) and not _callers.torch_distributed(frame)
        if found:
            self._require_all("all_reduce")
        return found

    def _all_reduce(
        self, tensors: Tensors, opts: Any, timeout: timedelta | None, divisor: int | None, *, whole: bool = False
    ) -> Work:
        op = reduce_op(opts)
        if self._launcher.view.fixed:
            divisor = self._launcher.view.size
        if len(tensors) == 1:
            core_type = self._reduced_as("all_reduce", tensors[0].dtype, op)
            call, last = self._all_reduce_alike(tensors, op, core_type, divisor, whole=whole)
            return self._work([call], opts, timeout, tensors, last)
        by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        finish: list[Finish | None] = []
        with self._begun(len(by_type)) as calls:
            types = [self._reduced_as("all_reduce", dtype, op) for dtype, _ in by_type]
            for core_type, alike in zip(types, by_type.values(), strict=True):
                call, last = self._all_reduce_alike(alike, op, core_type, divisor, whole=whole)
                calls.append(call)
                finish.append(last)
        return self._work(calls, opts, timeout, tensors, *finish)

    def _all_reduce_alike(
        self, tensors: Tensors, op: ReduceOp, core_type: tuple[DataType, int], divisor: int | None, *, whole: bool
    ) -> tuple[Call, Finish | None]:
        """Begins the all-reduce of tensors of one type."""
        memory, last = in_place_all(tensors)
        pointer = memory.data_ptr()
        dtype, factor = core_type
        call = self._launcher.launch(
            Collective.ALL_REDUCE,
            "all_reduce",
            send=pointer,
            recv=pointer,
            dtype=dtype,
            count=memory.numel() * factor,
            op=op,
            keep=memory,
            scaled=self._scaled(memory, op, divisor),
            whole=whole,
        )
        return call, last

    def _scaled(self, memory: Tensor, op: ReduceOp, divisor: int | None) -> tuple[Tensor, int] | None:
        """What has to be rescaled where fewer than `divisor` members contributed; None: nothing.

        Outside of fixed membership integers are numbers that nobody has divided.
        """
        if divisor is None or op is not ReduceOp.SUM:
            return None
        if memory.is_complex():
            return torch.view_as_real(memory.detach()), divisor
        return (memory, divisor) if memory.is_floating_point() or self._launcher.view.fixed else None

    def _sparse_all_reduce(self, tensor: Tensor, opts: Any, timeout: timedelta | None, divisor: int | None) -> Work:
        """Through a dense copy: it has the same meaning whoever is lost, where lists of indices would lack a part."""
        dense = tensor.detach().to_dense()
        work = self._all_reduce([dense], opts, timeout, divisor)
        return work.followed_by([tensor], lambda: _make_sparse(tensor, dense))

    @announced
    def reduce(
        self,
        tensors: Tensor | Tensors,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces a tensor into that of the root."""
        (tensor,) = listed(tensors)
        root = self._root("reduce", opts)
        asked = reduce_op(opts if op is None and not isinstance(opts, int) else op)
        memory, finish = in_place(tensor)
        core_type, factor = self._reduced_as("reduce", tensor.dtype, asked)
        view = self._launcher.view
        at_root = view.rank == root
        if self._has_no_root("reduce", root):
            return self._work([ENDED], opts, timeout, [tensor])
        call = self._launcher.launch(
            Collective.REDUCE,
            "reduce",
            send=memory.data_ptr(),
            recv=memory.data_ptr() if at_root else 0,
            dtype=core_type,
            count=memory.numel() * factor,
            op=asked,
            root=root,
            keep=memory,
            scaled=self._scaled(memory, asked, view.size) if view.fixed and at_root else None,
            again=_ended if view.fixed and root == 0 else None,
        )
        return self._work([call], opts, timeout, [tensor], finish if at_root else None)

    @announced
    def reduce_scatter(
        self,
        output_tensors: Tensor | Tensors,
        input_tensors: Sequence[Tensors] | Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Reduces a list of tensors, of which each member gets the one at its rank. They may differ in size."""
        name = "reduce_scatter"
        self._require_all(name)
        (output,) = listed(output_tensors)
        inputs = _inner(input_tensors)
        self._one_per_rank(name, "input", inputs)
        self._alike(name, output, inputs[self._launcher.view.rank], "its output", "the input at its own rank")
        source, last = gathered(inputs)
        work = self._reduce_scatter(name, [(output, source, [part.numel() for part in inputs])], opts, timeout)
        return work if last is None else work.followed_by([output], last)

    @announced
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Reduces a tensor, of which each member gets an equal part."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @announced
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """As `reduce_scatter_single`, of several tensors."""
        name = "reduce_scatter_tensor"
        self._launcher.plan(len(outputs))
        self._require_all(name)
        self._check_whole(name, "input", inputs, "output", outputs)
        parts = [(output, readable(input), None) for output, input in zip(outputs, inputs, strict=True)]
        return self._reduce_scatter(name, parts, opts, None)

    def _reduce_scatter(
        self,
        name: str,
        parts: Sequence[tuple[Tensor, Tensor, list[int] | None]],
        opts: Any,
        timeout: timedelta | None,
    ) -> Work:
        finish: list[Finish | None] = []
        with self._begun(len(parts)) as calls:
            op = reduce_op(opts)
            types = [self._reduced_as(name, source.dtype, op) for _, source, _ in parts]
            for (output, source, counts), (core_type, factor) in zip(parts, types, strict=True):
                memory, last = writable(output)
                call = self._launcher.launch(
                    Collective.REDUCE_SCATTER,
                    name,
                    send=source.data_ptr(),
                    recv=memory.data_ptr(),
                    dtype=core_type,
                    op=op,
                    keep=(source, memory),
                    **_counts("recv_counts", counts, memory.numel(), factor),
                )
                calls.append(call)
                finish.append(last)
        return self._work(calls, opts, timeout, [output for output, _, _ in parts], *finish)

    # ---- one to all, all to one ----

    @announced
    def broadcast(self, tensors: Tensor | Tensors, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Brings the tensors of the root to all members."""
        tensors = listed(tensors)
        frame = _callers.caller()
        by_program = _callers.program(frame)
        view = self._launcher.view
        finish: list[Finish | None] = []
        with self._begun(len(tensors)) as calls:
            root = self._root("broadcast", opts)
            if view.fixed:
                takes_over = root == 0 and self._stands_in(_callers.broadcasts_equals, frame) and not _callers.object_list(frame)
                if takes_over and view.members[root] not in view.living:
                    root = view.members.index(view.living[0])
                self._require_living("broadcast", root)
            for tensor in tensors:
                memory, last = in_place(tensor)
                kept = takes_over if view.fixed else root == 0 and (not by_program or memory.nbytes <= KEPT_BYTES)
                calls.append(self._broadcast(memory, root, kept=kept))
                finish.append(last)
        return self._work(calls, opts, timeout, tensors, *finish)

    def _broadcast(self, memory: Tensor, root: int, *, kept: bool, number: int | None = None, place: int | None = None) -> Call:
        """Begins a broadcast. If `kept`, and its root dies, it is made again from the first one left, with its old content.

        `place` is that of the root among the founders, where the view does not know the losses yet.
        """
        launcher, view = self._launcher, self._launcher.view
        again: Again | None = None
        if kept and not launcher.strict and len(view.living) > 1:
            at_root = view.rank == root if place is None else view.founders[place] == view.own
            content = memory if at_root else memory.detach().clone()
            marks = mark([content])

            def again(left: tuple[UUID, ...]) -> Call:
                follow(marks)
                memory.detach().copy_(content)
                return self._broadcast(memory, root, kept=True, number=again_number(named), place=view.places[left[0]])

        core_type, factor = moved_as(memory.dtype)
        pointer = memory.data_ptr()
        named = launcher.next_number() if number is None else number  # after all that may fail, or the others miss a call
        return launcher.launch(
            Collective.BROADCAST,
            "broadcast",
            number=named,
            send=pointer,
            recv=pointer,
            dtype=core_type,
            count=memory.numel() * factor,
            root=root,
            root_place=place,
            keep=memory,
            again=again,
        )

    @announced
    def gather(
        self,
        output_tensors: Sequence[Tensors] | Tensors,
        input_tensors: Tensor | Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Brings the tensors of all members, of one size, to the root."""
        name = "gather"
        (input,) = listed(input_tensors)
        root = self._root(name, opts)
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        outputs: Tensors = _inner(output_tensors) if self._launcher.view.rank == root else ()
        memory: Tensor | None = None
        finish: Finish | None = None
        if self._launcher.view.rank == root:
            self._one_per_rank(name, "output", outputs)
            for output in outputs:
                self._alike(name, output, input, "an output", "its input")
            memory, finish = spread(outputs)
        return self._gather(name, root, memory, input, opts, timeout, outputs, finish, stands_in=stands_in)

    @announced
    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """As `gather`, into one tensor of the root."""
        name = "gather_single"
        root = self._root(name, opts)
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        at_root = self._launcher.view.rank == root
        if at_root:
            self._check_whole(name, "output", [output], "input", [input])
        memory, finish = writable(output) if at_root else (None, None)
        return self._gather(name, root, memory, input, opts, timeout, output, finish, stands_in=stands_in)

    def _gather(
        self,
        name: str,
        root: int,
        memory: Tensor | None,
        input: Tensor,
        opts: Any,
        timeout: timedelta | None,
        result: Any,
        finish: Finish | None,
        *,
        stands_in: bool,
    ) -> Work:
        """Begins a gather; `memory` is None at members other than the root."""
        if self._has_no_root(name, root):
            return self._work([ENDED], opts, timeout, [result])
        if not stands_in:
            self._require_all(name)
        core_type, factor = moved_as(input.dtype)
        source = readable(input)
        view = self._launcher.view

        def begin(living: tuple[UUID, ...], number: int) -> Call:
            parts = Parts(view, living, memory, None)
            call = self._launcher.launch(
                Collective.GATHER,
                name,
                number=number,
                among=living,
                send=source.data_ptr(),
                recv=0 if parts.memory is None else parts.memory.data_ptr(),
                dtype=core_type,
                count=input.numel() * factor,
                root=root,
                keep=(source, parts.memory),
                again=again(number),
            )
            return parts.filled(call)

        def again(number: int) -> Again | None:
            def call(left: tuple[UUID, ...]) -> Call | None:
                if view.members[root] not in left:
                    return ENDED if root == 0 else None
                return begin(left, again_number(number)) if stands_in else None

            return call if view.fixed else None

        return self._work([begin(view.living, self._launcher.next_number())], opts, timeout, [result], finish)

    @announced
    def scatter(
        self,
        output_tensors: Tensor | Tensors,
        input_tensors: Sequence[Tensors] | Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Brings a list of tensors of one size from the root, each to the member at its place."""
        name = "scatter"
        (output,) = listed(output_tensors)
        root = self._root(name, opts)
        self._require_living(name, root)
        view = self._launcher.view
        inputs: Tensors = ()
        if view.rank == root:
            inputs = _inner(input_tensors)
            self._one_per_rank(name, "input", inputs)
            for input in inputs:
                self._alike(name, input, output, "an input", "its output")
        memory, finish = writable(output)
        core_type, factor = moved_as(output.dtype)

        def begin(living: tuple[UUID, ...], number: int) -> Call:
            parts = [part for part, member in zip(inputs, view.members, strict=True) if member in living] if inputs else []
            source, last = gathered(parts) if parts else (None, None)
            call = self._launcher.launch(
                Collective.SCATTER,
                name,
                number=number,
                among=living,
                send=0 if source is None else source.data_ptr(),
                recv=memory.data_ptr(),
                dtype=core_type,
                count=memory.numel() * factor,
                root=root,
                keep=(source, memory),
                again=again(number) if view.fixed else None,
            )
            return call if last is None else Followed(call, last)

        def again(number: int) -> Again:
            return lambda left: begin(left, again_number(number)) if view.members[root] in left else None

        return self._work([begin(view.living, self._launcher.next_number())], opts, timeout, [output], finish)

    # ---- all to all ----

    @announced
    def allgather(
        self,
        output_tensors: Sequence[Tensors] | Tensors,
        input_tensors: Tensor | Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Brings the tensors of all members to all of them. They may differ in size."""
        (input,) = listed(input_tensors)
        outputs = _inner(output_tensors)
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        self._check_all_gather(outputs, input)
        call, finish = self._all_gather(outputs, input, stands_in=stands_in)
        return self._work([call], opts, timeout, [outputs], finish)

    @announced
    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None) -> Work:
        """As `allgather`, of several tensors: `output_lists` has for each rank all that it gives."""
        finish: list[Finish | None] = []
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        with self._begun(len(input_list)) as calls:
            by_input = [list(outputs) for outputs in zip(*output_lists, strict=True)]
            for outputs, input in zip(by_input, input_list, strict=True):
                self._check_all_gather(outputs, input)
            for outputs, input in zip(by_input, input_list, strict=True):
                call, last = self._all_gather(outputs, input, stands_in=stands_in)
                calls.append(call)
                finish.append(last)
        return self._work(calls, opts, None, output_lists, *finish)

    def _check_all_gather(self, outputs: Tensors, input: Tensor) -> None:
        name, own = "all_gather", self._launcher.view.rank
        self._one_per_rank(name, "output", outputs)
        self._alike(name, outputs[own], input, "the output at its own rank", "its input")

    def _all_gather(self, outputs: Tensors, input: Tensor, *, stands_in: bool) -> tuple[Call, Finish | None]:
        memory, finish = spread(outputs)
        counts = [output.numel() for output in outputs]
        return self._gather_into("all_gather", memory, input, counts, stands_in=stands_in), finish

    @announced
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Brings the tensors of all members, of one size, into one tensor on all of them."""
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        return self._all_gather_single([output], [input], opts, stands_in=stands_in)

    @announced
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """As `all_gather_single`, of several tensors."""
        stands_in = self._stands_in(_callers.gathers_samples, _callers.caller())
        return self._all_gather_single(outputs, inputs, opts, stands_in=stands_in)

    def _all_gather_single(self, outputs: Tensors, inputs: Tensors, opts: Any, *, stands_in: bool) -> Work:
        name = "all_gather_into_tensor"
        finish: list[Finish | None] = []
        with self._begun(len(inputs)) as calls:
            self._check_whole(name, "output", outputs, "input", inputs)
            for output, input in zip(outputs, inputs, strict=True):
                memory, last = writable(output)
                calls.append(self._gather_into(name, memory, input, None, stands_in=stands_in))
                finish.append(last)
        return self._work(calls, opts, None, outputs, *finish)

    def _gather_into(self, name: str, memory: Tensor, input: Tensor, counts: list[int] | None, *, stands_in: bool) -> Call:
        if not stands_in:
            self._require_all(name)
        core_type, factor = moved_as(input.dtype)
        source = readable(input)
        view = self._launcher.view

        def begin(living: tuple[UUID, ...], number: int) -> Call | None:
            parts = Parts(view, living, memory, counts)
            if not parts.fit():
                return None
            assert parts.memory is not None
            call = self._launcher.launch(
                Collective.ALL_GATHER,
                name,
                number=number,
                among=living,
                send=source.data_ptr(),
                recv=parts.memory.data_ptr(),
                dtype=core_type,
                keep=(source, parts.memory),
                again=(lambda left: begin(left, again_number(number))) if view.fixed and stands_in else None,
                **_counts("recv_counts", parts.sizes, input.numel(), factor),
            )
            return parts.filled(call)

        if not Parts(view, view.living, memory, counts).fit():
            self._require_all(name)
        call = begin(view.living, self._launcher.next_number())
        assert call is not None
        return call

    @announced
    def alltoall(
        self,
        output_tensors: Tensors,
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Brings each member the tensor at its place in the list of every other one. They may differ in size."""
        name = "all_to_all"
        self._require_all(name)
        self._one_per_rank(name, "output", output_tensors)
        self._one_per_rank(name, "input", input_tensors)
        same_type(name, [*output_tensors, *input_tensors])
        memory, finish = spread(output_tensors)
        received = [tensor.numel() for tensor in output_tensors]
        sent = [tensor.numel() for tensor in input_tensors]
        source, last = gathered(input_tensors)
        call = self._all_to_all(name, memory, source, received, sent)
        return self._work([call], opts, timeout, output_tensors, finish, last)

    @announced
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Brings each member its part of the tensor of every other one: parts of the first dimension, equal or as given."""
        name = "all_to_all_single"
        self._require_all(name)
        same_type(name, [output, input])
        received = self._split(name, "output", output, output_split_sizes)
        sent = self._split(name, "input", input, input_split_sizes)
        memory, finish = writable(output)
        equal = not output_split_sizes and not input_split_sizes
        call = self._all_to_all(name, memory, readable(input), received, sent, equal=equal)
        return self._work([call], opts, timeout, [output], finish)

    def _all_to_all(
        self, name: str, memory: Tensor, source: Tensor, received: list[int], sent: list[int], *, equal: bool = False
    ) -> Call:
        """`equal`: on all members alike; small ones are then faster."""
        rank = self._launcher.view.rank
        if sent[rank] != received[rank]:
            text = f"it sends {sent[rank]} elements to itself, and expects {received[rank]}"
            self._refuse(name, f"the parts of rank {rank} for itself must be of one size: {text}")
        core_type, factor = moved_as(source.dtype)
        counts: dict[str, Any] = {"count": sent[0] * factor}
        if not equal:
            counts = {"send_counts": [n * factor for n in sent], "recv_counts": [n * factor for n in received]}
        return self._launcher.launch(
            Collective.ALL_TO_ALL if equal else Collective.ALL_TO_ALL_V,
            name,
            send=source.data_ptr(),
            recv=memory.data_ptr(),
            dtype=core_type,
            keep=(source, memory),
            **counts,
        )

    @announced
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Ends when all members have called it."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        call = self._launcher.launch(Collective.BARRIER, "barrier", dtype=DataType.UINT8)
        return self._work([call], opts, timeout, [])

    # ---- the older names ----

    _allgather_base = all_gather_single
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- arguments ----

    def _work(self, calls: list[Call], opts: Any, timeout: timedelta | None, result: Any, *finish: Finish | None) -> Work:
        work = Work(self._completer, calls, self._seconds(opts, timeout), result, finish)
        if self._coalescing.works is not None:
            self._coalescing.works.append(work)
        return work

    def _seconds(self, opts: Any, timeout: timedelta | None) -> float:
        asked = getattr(opts, "timeout", None) if timeout is None else timeout
        seconds = 0.0 if asked is None else asked.total_seconds()
        return seconds if seconds > 0 else self._timeout

    def _refuse(self, name: str, text: str, kind: type[Exception] = ValueError, *, size: int | None = None) -> NoReturn:
        """Raises an error for arguments that this member cannot use.

        `size` is the number of members that the arguments are made for: PeerLostError if the group had it before a loss.
        """
        ranks, members = self._launcher.view.lost_of(-1 if size is None else size)
        if ranks:
            lost = f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))} of {size}"
            detail = f"{text}: {lost} have left since; read the world size again, and repeat the call"
            raise PeerLostError(name, detail, ranks, members, self._launcher.names(members))
        raise kind(f"{name}: {text}")

    def _announce(self, name: str) -> None:
        with contextlib.suppress(CollectiveError):
            call = self._launcher.launch(Collective.BARRIER, f"{name}, refused by its caller", dtype=DataType.UINT8)
            self._drop([call])

    def _drop(self, calls: list[Call]) -> None:
        """Lets the thread that completes futures wait for calls that nobody else waits for."""
        self._completer.adopt(Work(self._completer, calls, self._timeout, []))

    @contextlib.contextmanager
    def _begun(self, count: int) -> Iterator[list[Call]]:
        """Lists the calls of a method that makes `count` of them. If it fails halfway, nobody waits for those it has made."""
        self._launcher.plan(count)
        calls: list[Call] = []
        try:
            yield calls
        except Exception:
            self._drop(calls)
            raise

    def _reduced_as(self, name: str, dtype: torch.dtype, op: ReduceOp) -> tuple[DataType, int]:
        try:
            return reduced_as(dtype, op)
        except TypeError as error:
            self._refuse(name, str(error), TypeError)

    def _root(self, name: str, opts: Any) -> int:
        root: int = 0 if opts is None else getattr(opts, "rootRank", opts)
        size = self._launcher.view.size
        if not 0 <= root < size:
            before = min((one for one in self._launcher.view.before if one > root >= 0), default=None)
            self._refuse(name, f"the root must be a rank of the group, 0 to {size - 1}, not {root}", size=before)
        return root

    def _stands_in(self, knows: Callable[[FrameType | None], bool], frame: FrameType | None) -> bool:
        """Whether a living rank stands in for a lost one. `knows` tells of a caller, the `frame`, that its result stays right."""
        launcher = self._launcher
        return launcher.view.fixed and (launcher.stands_in or launcher.apart or _bootstrap.is_joining() or knows(frame))

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
            raise PeerLostError(name, detail, ranks, members, self._launcher.names(members))

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
        """The number of elements for each rank."""
        size = self._launcher.view.size
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % size:
                before = next((one for one in self._launcher.view.before if rows % one == 0), None)
                text = f"the first dimension of the {role}, {rows}, must be a multiple of {size}, or split sizes given"
                self._refuse(name, text, size=before)
            return [tensor.numel() // size] * size
        if len(sizes) != size or sum(sizes) != rows:
            text = f"the {role} split sizes must be {size} numbers whose sum is the first dimension, {rows}"
            self._refuse(name, f"{text}, not {list(sizes)}", size=len(sizes))
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in sizes]


def _ended(left: tuple[UUID, ...]) -> Call:
    """Ends a call whose root is lost, and whose result nobody else gets."""
    return ENDED


def _inner(tensors: Any) -> Tensors:
    """The list of one device's tensors; torch allows it without the outer list."""
    if len(tensors) == 0:
        return ()
    found: Tensors = tensors if isinstance(tensors[0], Tensor) else tensors[0]
    return found


def _counts(name: str, counts: Sequence[int] | None, count: int, factor: int) -> dict[str, Any]:
    """The sizes of the parts of a call: one number where they are equal."""
    if counts is None or all(other == counts[0] for other in counts):
        return {"count": count * factor}
    return {name: [other * factor for other in counts]}


def _make_sparse(tensor: Tensor, dense: Tensor) -> None:
    with torch.no_grad():  # a detached one would get other elements, and leave those of the tensor as they are
        tensor.copy_(dense.to_sparse(tensor.sparse_dim()))


def _shown(tensor: Tensor) -> str:
    where = "" if tensor.is_cpu else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{where}"
