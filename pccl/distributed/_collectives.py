"""The calls that torch makes of a process group, by both families of names that torch has for them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any
from uuid import UUID

import torch

from pccl._core.enums import DataType, ReduceOp
from pccl._ops.collectives import Collective
from pccl.distributed import _callers
from pccl.distributed._arguments import Arguments, Limit, Lists, OneOrMore, Tensor, Tensors, reduce_op
from pccl.distributed._calls import ENDED, Again, Asked, Call, finished
from pccl.distributed._compile import refuse_python_reducer
from pccl.distributed._tensors import (
    Finish,
    apart,
    follow,
    gathered,
    in_place_all,
    mark,
    overlap,
    readable,
    same_type,
    spread,
    writable,
)
from pccl.distributed._this_run import is_joining, this_run
from pccl.distributed._view import View
from pccl.distributed._work import Work

KEPT_BYTES = 1 << 20
"""Up to this size any broadcast from rank 0 keeps what it overwrites, so that it can be made again from the next rank 0."""


def listed(tensors: OneOrMore) -> Tensors:
    """A list of tensors, where torch allows a single one as well."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _before_joining(name: str, frame: FrameType | None, *, fixed: bool) -> bool:
    """Whether a process may make a call before it has joined the run.

    Frameworks call barriers and broadcasts while they are set up. DDP compares the shapes of parameters, from C++.
    """
    if fixed and this_run.acts_alone:
        return True
    return name in ("broadcast", "barrier") or (name == "allgather" and not _callers.torch_distributed(frame))


def announced(method: Callable[..., Work]) -> Callable[..., Work]:
    """Lets the other members know at once when a collective fails at this one, for whatever reason.

    They would wait for it until their timeout. Each call that the method was to make, and has not made, is announced: the others
    get the error of a call that differs between members, and the calls after it still meet.
    """

    @functools.wraps(method)
    def call(self: Collectives, *arguments: Any, **named: Any) -> Work:
        launcher = self._launcher
        if is_joining() and not _before_joining(method.__name__, sys._getframe(1), fixed=launcher.view.fixed):
            this_run.require_joined(method.__name__)
        before = launcher.plan(1)
        try:
            return method(self, *arguments, **named)
        except Exception:
            for _ in range(launcher.unmade(before)):
                self._announce(method.__name__)
            raise

    return call


class Collectives(Arguments):
    """The collectives of a process group. What is in a list of lists is for several devices of a process: there is one."""

    _size_for_reducer: int
    _size_for_hooks: int
    _sizes: _callers.Sizes

    # ---- reductions ----

    @announced
    def allreduce(self, tensors: OneOrMore, opts: Any = None, timeout: Limit = None) -> Work:
        tensors = listed(tensors)
        divisor = None
        frame = _callers.caller()
        if not self._launcher.strict and not self._launcher.view.fixed:
            if _callers.reducer_of_ddp(frame):
                divisor = self._size_for_reducer
            else:
                if not _callers.torch_all_reduce(frame):
                    refuse_python_reducer()
                founders = len(self._launcher.view.founders)
                divisor = _callers.divisor_of(frame, self._size_for_hooks, founders, self._sizes)
        asked = _callers.size_of_program(frame, self._sizes) if divisor is None else None
        if tensors and tensors[0].is_sparse:
            return self._sparse_all_reduce(tensors[0], opts, timeout, divisor, asked)
        equal = _callers.fsdp2(frame)
        calls = self._all_reduce(tensors, opts, divisor, asked, whole=self._needs_all(frame), equal=equal)
        work = self._work(calls, opts, timeout, tensors)
        work.for_cpp = _callers.reducer_of_ddp(frame)
        return work

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
        self,
        tensors: Tensors,
        opts: Any,
        divisor: int | None,
        asked: int | None = None,
        *,
        whole: bool = False,
        equal: bool = False,
    ) -> list[Call]:
        op = reduce_op(opts)
        if divisor is not None and divisor < 0 and op is ReduceOp.SUM:
            self._refuse("all_reduce", "FSDP2 has divided microbatches by different sizes of the group", size=-divisor)
        whole = whole or (divisor == _callers.UNKNOWN and op is not ReduceOp.AVG)
        if self._launcher.view.fixed:
            divisor = self._launcher.view.size
        by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        with self._begun(len(by_type)) as calls:
            for dtype, _ in by_type:
                self._elements("all_reduce", dtype, op)
            for alike in by_type.values():
                memory, finish = in_place_all(alike)
                options: dict[str, Any] = {"scaled": self._scaled(memory, op, divisor), "whole": whole}
                options.update(asked=self._asked(memory, op, asked), equal=equal)
                call = self._launch(Collective.ALL_REDUCE, "all_reduce", memory, memory, op, **options)
                calls.append(finished(call, finish))
        return calls

    def _scaled(self, memory: Tensor, op: ReduceOp, divisor: int | None) -> tuple[Tensor, int] | None:
        """What has to be rescaled where fewer than `divisor` members contributed; None: nothing.

        Outside of fixed membership integers are numbers that nobody has divided.
        """
        if not divisor or op is not ReduceOp.SUM:
            return None
        if memory.is_complex():
            return torch.view_as_real(memory.detach()), divisor
        return (memory, divisor) if memory.is_floating_point() or self._launcher.view.fixed else None

    def _asked(self, memory: Tensor, op: ReduceOp, size: int | None) -> Asked | None:
        """What a sum of the program needs if members are lost. Integers are counts, which nobody divides."""
        view = self._launcher.view
        if size is None or op is not ReduceOp.SUM or view.fixed or not (memory.is_floating_point() or memory.is_complex()):
            return None
        return Asked(size, memory)

    def _sparse_all_reduce(self, tensor: Tensor, opts: Any, timeout: Limit, divisor: int | None, asked: int | None) -> Work:
        """Through a dense copy: it has the same meaning whoever is lost, where lists of indices would lack a part."""
        dense = tensor.detach().to_dense()
        (call,) = self._all_reduce([dense], opts, divisor, asked)
        return self._work([finished(call, lambda: _make_sparse(tensor, dense))], opts, timeout, [tensor])

    @announced
    def reduce(self, tensors: OneOrMore, opts: Any = None, op: Any = None, timeout: Limit = None) -> Work:
        (tensor,) = listed(tensors)
        root = self._root("reduce", opts)
        asked = reduce_op(opts if op is None and not isinstance(opts, int) else op)
        memory, finish = writable(tensor, holds_input=True)
        view = self._launcher.view
        at_root = view.rank == root
        if self._has_no_root("reduce", root):
            return self._work([ENDED], opts, timeout, [tensor])
        call = self._launch(
            Collective.REDUCE,
            "reduce",
            memory,
            memory if at_root else None,
            asked,
            root=root,
            scaled=self._scaled(memory, asked, view.size) if view.fixed and at_root else None,
            asked=self._asked(memory, asked, _callers.size_of_program(_callers.caller(), self._sizes)),
            again=(lambda *_: ENDED) if view.fixed and root == 0 else None,
        )
        return self._work([finished(call, finish if at_root else None)], opts, timeout, [tensor])

    @announced
    def reduce_scatter(self, output_tensors: OneOrMore, input_tensors: Lists, opts: Any = None, timeout: Limit = None) -> Work:
        """Reduces a list of tensors, of which each member gets the one at its rank. They may differ in size."""
        name = "reduce_scatter"
        self._require_all(name)
        (output,) = listed(output_tensors)
        inputs = _inner(input_tensors)
        self._one_per_rank(name, "input", inputs)
        self._alike(name, output, inputs[self._launcher.view.rank], "its output", "the input at its own rank")
        source, last = gathered(inputs)
        with self._begun(1) as calls:
            counts = [part.numel() for part in inputs]
            calls.append(finished(self._reduce_scatter(name, output, source, opts, counts), last))
        return self._work(calls, opts, timeout, [output])

    @announced
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    @announced
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        name = "reduce_scatter_tensor"
        self._launcher.plan(len(outputs))
        self._require_all(name)
        self._check_whole(name, "input", inputs, "output", outputs)
        with self._begun(len(outputs)) as calls:
            for input in inputs:
                self._elements(name, input.dtype, reduce_op(opts))
            sources = apart([readable(input) for input in inputs], [[output] for output in outputs])
            for output, source in zip(outputs, sources, strict=True):
                calls.append(self._reduce_scatter(name, output, source, opts))
        return self._work(calls, opts, None, outputs)

    def _reduce_scatter(self, name: str, output: Tensor, source: Tensor, opts: Any, counts: Sequence[int] = ()) -> Call:
        memory, finish = writable(output, source=source)
        call = self._launch(Collective.REDUCE_SCATTER, name, source, memory, reduce_op(opts), recv_counts=_unequal(counts))
        return finished(call, finish)

    # ---- one to all, all to one ----

    @announced
    def broadcast(self, tensors: OneOrMore, opts: Any = None, timeout: Limit = None) -> Work:
        tensors = listed(tensors)
        frame = _callers.caller()
        by_program = _callers.program(frame)
        view = self._launcher.view
        with self._begun(len(tensors)) as calls:
            root = self._root("broadcast", opts)
            if view.fixed:
                takes_over = root == 0 and self._stands_in(_callers.broadcasts_equals) and not _callers.object_list(frame)
                if takes_over and view.members[root] not in view.living:
                    root = view.members.index(view.living[0])
                self._require_living("broadcast", root)
            for tensor in tensors:
                memory, last = writable(tensor, holds_input=True)
                kept = takes_over if view.fixed else root == 0 and (not by_program or memory.nbytes <= KEPT_BYTES)
                calls.append(finished(self._broadcast(memory, root, kept=kept), last))
        return self._work(calls, opts, timeout, tensors)

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

            def again(left: tuple[UUID, ...], number: int) -> Call:
                follow(marks)
                memory.detach().copy_(content)
                return self._broadcast(memory, root, kept=True, number=number, place=view.places[left[0]])

        options: dict[str, Any] = {"number": number, "root": root, "root_place": place, "again": again}
        return self._launch(Collective.BROADCAST, "broadcast", memory, memory, **options)

    @announced
    def gather(self, output_tensors: Lists, input_tensors: OneOrMore, opts: Any = None, timeout: Limit = None) -> Work:
        name = "gather"
        (input,) = listed(input_tensors)
        root = self._root(name, opts)
        outputs: Tensors = _inner(output_tensors) if self._launcher.view.rank == root else ()
        memory: Tensor | None = None
        finish: Finish | None = None
        if self._launcher.view.rank == root:
            self._one_per_rank(name, "output", outputs)
            for output in outputs:
                self._alike(name, output, input, "an output", "its input")
            memory, finish = spread(outputs)
        return self._work([finished(self._gather(name, root, memory, input), finish)], opts, timeout, [outputs])

    @announced
    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Limit = None) -> Work:
        name = "gather_single"
        root = self._root(name, opts)
        at_root = self._launcher.view.rank == root
        if at_root:
            self._check_whole(name, "output", [output], "input", [input])
        memory, finish = writable(output) if at_root else (None, None)
        return self._work([finished(self._gather(name, root, memory, input), finish)], opts, timeout, [output])

    def _gather(self, name: str, root: int, memory: Tensor | None, input: Tensor) -> Call:
        """Begins a gather; `memory` is None at members other than the root."""
        source = readable(input)
        if memory is not None and overlap(memory, source):
            source = source.clone()
        return self._of_parts(Collective.GATHER, name, source, memory, root=root)

    def _of_parts(
        self,
        kind: Collective,
        name: str,
        source: Tensor,
        memory: Tensor | None,
        counts: Sequence[int] = (),
        root: int | None = None,
    ) -> Call:
        """Begins a gather to the root, or to all without one. After a loss a living rank stands in, or nobody has a result."""
        stands_in = self._stands_in(_callers.gathers_samples)
        if root is not None and self._has_no_root(name, root):
            return ENDED
        view = self._launcher.view
        parts = Parts(view, view.living, memory, counts)

        def begin(number: int | None = None) -> Call:
            options: dict[str, Any] = {"number": number, "root": root, "again": again if view.fixed else None}
            sizes = _unequal(parts.sizes)
            return self._launch(kind, name, source, parts.memory, recv_counts=sizes, among=parts.living, **options)

        def again(left: tuple[UUID, ...], number: int) -> Call | None:
            nonlocal parts
            if root is not None and view.members[root] not in left:
                return ENDED if root == 0 else None
            parts = Parts(view, left, memory, counts)
            return begin(number) if stands_in and parts.fit() else None

        if not stands_in or not parts.fit():
            self._require_all(name)
        return finished(begin(), (lambda: parts.fill()) if view.fixed else None)

    @announced
    def scatter(self, output_tensors: OneOrMore, input_tensors: Lists, opts: Any = None, timeout: Limit = None) -> Work:
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
        if any(overlap(memory, input) for input in inputs):  # a repetition reads all of them after the output was written
            inputs = torch.stack([readable(input.detach()).reshape(-1) for input in inputs]).unbind()

        def begin(living: tuple[UUID, ...], number: int | None = None) -> Call:
            parts = [part for part, member in zip(inputs, view.members, strict=True) if member in living] if inputs else []
            source, last = gathered(parts) if parts else (None, None)
            options: dict[str, Any] = {"number": number, "among": living, "root": root, "again": again if view.fixed else None}
            return finished(self._launch(Collective.SCATTER, name, source, memory, **options), last)

        def again(left: tuple[UUID, ...], number: int) -> Call | None:
            return begin(left, number) if view.members[root] in left else None

        return self._work([finished(begin(view.living), finish)], opts, timeout, [output])

    # ---- all to all ----

    @announced
    def allgather(self, output_tensors: Lists, input_tensors: OneOrMore, opts: Any = None, timeout: Limit = None) -> Work:
        """Brings the tensors of all members to all of them. They may differ in size."""
        outputs = _inner(output_tensors)
        return self._all_gather([outputs], listed(input_tensors), opts, timeout, [outputs])

    @announced
    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None) -> Work:
        self._launcher.plan(len(input_list))
        by_input = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self._all_gather(by_input, input_list, opts, None, output_lists)

    def _all_gather(self, by_input: Sequence[Tensors], inputs: Tensors, opts: Any, timeout: Limit, result: Any) -> Work:
        name, own = "all_gather", self._launcher.view.rank
        with self._begun(len(inputs)) as calls:
            for outputs, input in zip(by_input, inputs, strict=True):
                self._one_per_rank(name, "output", outputs)
                self._alike(name, outputs[own], input, "the output at its own rank", "its input")
            results = [spread(outputs) for outputs in by_input]
            sources = apart([readable(input) for input in inputs], by_input)
            for outputs, source, (memory, finish) in zip(by_input, sources, results, strict=True):
                counts = [output.numel() for output in outputs]
                calls.append(finished(self._gather_into(name, memory, source, counts), finish))
        return self._work(calls, opts, timeout, result)

    @announced
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    @announced
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        name = "all_gather_into_tensor"
        with self._begun(len(inputs)) as calls:
            self._check_whole(name, "output", outputs, "input", inputs)
            results = [writable(output) for output in outputs]
            sources = apart([readable(input) for input in inputs], [[output] for output in outputs])
            for source, (memory, finish) in zip(sources, results, strict=True):
                calls.append(finished(self._gather_into(name, memory, source), finish))
        return self._work(calls, opts, None, outputs)

    def _gather_into(self, name: str, memory: Tensor, source: Tensor, counts: Sequence[int] = ()) -> Call:
        """Begins an all-gather; `counts` are the sizes of the members' parts, unless they are equal."""
        rank = self._launcher.view.rank
        before = sum(counts[:rank]) if counts else rank * source.numel()
        if overlap(memory, source) and source.data_ptr() != memory.data_ptr() + before * memory.itemsize:
            source = source.clone()  # the core takes an input at its place in the result
        return self._of_parts(Collective.ALL_GATHER, name, source, memory, counts)

    @announced
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: Limit = None) -> Work:
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
        call = finished(self._all_to_all(name, memory, source, received, sent), finish)
        return self._work([finished(call, last)], opts, timeout, output_tensors)

    @announced
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: Limit = None,
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
        return self._work([finished(call, finish)], opts, timeout, [output])

    def _all_to_all(
        self, name: str, memory: Tensor, source: Tensor, received: list[int], sent: list[int], *, equal: bool = False
    ) -> Call:
        """`equal`: on all members alike; small ones are then faster."""
        rank = self._launcher.view.rank
        if sent[rank] != received[rank]:
            text = f"it sends {sent[rank]} elements to itself, and expects {received[rank]}"
            self._refuse(name, f"the parts of rank {rank} for itself must be of one size: {text}")
        if overlap(memory, source):
            source = source.clone()
        if equal:
            return self._launch(Collective.ALL_TO_ALL, name, source, memory, count=sent[0])
        return self._launch(Collective.ALL_TO_ALL_V, name, source, memory, send_counts=sent, recv_counts=received)

    @announced
    def barrier(self, opts: Any = None, timeout: Limit = None) -> Work:
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        call = self._launcher.launch(Collective.BARRIER, "barrier", dtype=DataType.UINT8)
        return self._work([call], opts, timeout, [])

    # ---- the older names ----

    allreduce_coalesced = allreduce
    _allgather_base = all_gather_single
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


class Parts:
    """Where the parts of a gather among `living` members go; the result is `whole`, None where there is none.

    In a group of fixed membership the next living rank stands in for a lost one: its part is in the result twice. All members
    fill results alike, and parts that belong together, such as predictions and labels, come from one rank.

    `sizes` are the numbers of elements of the parts, by rank; none: they are equal.
    """

    def __init__(self, view: View, living: tuple[UUID, ...], whole: torch.Tensor | None, sizes: Sequence[int] = ()) -> None:
        self.living = living
        self._whole = whole
        self._sources = _sources(view, living) if view.fixed and len(living) < view.size else []
        self._sizes = list(sizes)
        self.memory = whole
        """What the core fills."""
        self.sizes = sizes
        """The sizes of the parts that it fills."""
        if self._sources:
            here = [rank for rank, source in enumerate(self._sources) if source == rank]
            if whole is not None and not sizes:
                self._sizes = [whole.numel() // view.size] * view.size
            if sizes:
                self.sizes = [sizes[rank] for rank in here]
            if whole is not None:
                self.memory = whole.new_empty(sum(self._sizes[rank] for rank in here))

    def fit(self) -> bool:
        """Whether each part has the size of the one that takes its place."""
        return all(self._sizes[rank] == self._sizes[source] for rank, source in enumerate(self._sources) if self._sizes)

    def fill(self) -> None:
        """Fills the result. Of a call that was repeated, only the last attempt has all parts."""
        if not self._sources or self._whole is None:
            return
        assert self.memory is not None
        here = [rank for rank, source in enumerate(self._sources) if source == rank]
        got = dict(zip(here, torch.split(self.memory, [self._sizes[rank] for rank in here]), strict=True))
        for target, source in zip(torch.split(self._whole.detach().view(-1), self._sizes), self._sources, strict=True):
            target.copy_(got[source])


def _sources(view: View, living: Sequence[UUID]) -> list[int]:
    """For each rank the one whose part it gets: itself if it lives, or else the next that does."""
    ranks = [rank for rank, member in enumerate(view.members) if member in living]
    return [next((one for one in ranks if one >= rank), ranks[0]) for rank in range(view.size)]


def _inner(tensors: Any) -> Tensors:
    """The list of one device's tensors; torch allows it without the outer list."""
    if len(tensors) == 0:
        return ()
    found: Tensors = tensors if isinstance(tensors[0], Tensor) else tensors[0]
    return found


def _unequal(counts: Sequence[int]) -> Sequence[int] | None:
    """The sizes of the parts of a call; None: they are equal."""
    return counts if any(other != counts[0] for other in counts) else None


def _make_sparse(tensor: Tensor, dense: Tensor) -> None:
    with torch.no_grad():  # a detached one would get other elements, and leave those of the tensor as they are
        tensor.copy_(dense.to_sparse(tensor.sparse_dim()))
