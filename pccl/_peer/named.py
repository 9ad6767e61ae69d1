"""The collectives of a `Communicator`. Each is described once, by the method that waits for it.

A description checks all that one member can check by itself, and returns a `Call`. `waiting` makes of it the method that users
call, and `returning_at_once` the one with `_async`. `launch` is the form for addresses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from pccl._core.calls import Deadline, call, whole_number
from pccl._core.enums import DataType, ReduceOp
from pccl._core.errors import PCCLError, PCCLTimeoutError, PeerLostError, Result, error_for
from pccl._core.gpu import common_stream, hold_stream
from pccl._core.groups import Group, name_lost
from pccl._core.library import _ffi
from pccl._core.results import CollectiveInfo
from pccl._core.tensors import InputDigest, require, require_kind
from pccl._exports import publish
from pccl._ops.collectives import NUMBER_BITS, Call, Collective, CollectiveOp, Everyone, tag_of
from pccl._ops.handle import Handle
from pccl._ops.operations import request_cancel
from pccl._ops.parts import (
    Buffer,
    buffer_of,
    check_alike,
    check_own,
    check_size,
    divided,
    equal_or_counts,
    one_buffer,
    rooted_parts,
)
from pccl._peer.connection import Connection

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pccl._core.gpu import Stream

    Tensor = torch.Tensor | np.ndarray[Any, Any]
    Parts = Tensor | Sequence[Tensor]

POLL_SECONDS = 0.0002
"""Between two looks for a sender, of a receive from anybody; doubled up to POLL_MOST_SECONDS."""

POLL_MOST_SECONDS = 0.005

P = ParamSpec("P")
Method = TypeVar("Method", bound=Callable[..., Any])


class CollectiveHandle(Handle[CollectiveInfo]):
    """A collective in flight. It keeps its tensors until it has ended. Dropped before that, it is awaited in the background."""

    def __init__(self, comm: NamedCollectives, call: Call) -> None:
        super().__init__(comm._events)
        self._comm = comm
        self._call = call
        self._op = comm._prepare_call(call)
        self._input: InputDigest | None = None
        self._cancelled = False

    @property
    def tag(self) -> int | None:
        """The tag that the caller gave."""
        return self._call.tag

    def begin(self) -> CollectiveHandle:
        """Launches it, unless it was launched."""
        self._comm._handle.check_owner(self._call.kind.name.lower())
        self._op.launch()
        if self._cancelled:
            request_cancel(self._comm._handle, self._op)
        return self

    def _advance(self, deadline: Deadline) -> CollectiveInfo:
        return self._op.wait(deadline.remaining())

    def _request_cancel(self) -> None:
        self._cancelled = True
        if not self._ended:
            request_cancel(self._comm._handle, self._op)

    def wait_stream(self, stream: Stream | None = None) -> None:
        """As `AsyncReduceHandle.wait_stream`, for a collective whose tensors are at a GPU."""
        if not self._ended and not self._op.ended:
            hold_stream(self._comm._handle, self._op.tag, stream, self._call.arguments["stream"], "wait_stream")

    def note_input(self) -> None:
        self._input = self._input or self._call.input_digest()

    def check_input(self) -> None:
        if self._input is not None and not self._ended:
            self._input.check(self._call.kind.name.lower())

    def __repr__(self) -> str:
        state = "ended" if self._ended else "in flight"
        return f"<CollectiveHandle of {self._call.kind.name.lower()}: {state}>"


def _derived(describe: Callable[..., Any], method: Method, returns: str) -> Method:
    """Gives a method the name, the texts and the parameters of its description, which becomes `method.__wrapped__`."""
    functools.update_wrapper(method, describe)
    method.__annotations__ = {**describe.__annotations__, "return": returns}
    method.__signature__ = inspect.signature(describe).replace(return_annotation=returns)  # type: ignore[attr-defined]
    return method


def waiting(
    describe: Callable[Concatenate[NamedCollectives, P], Call],
) -> Callable[Concatenate[NamedCollectives, P], CollectiveInfo]:
    """Makes of a description the method that launches its collective and waits, `timeout` seconds at most."""

    def method(self: NamedCollectives, /, *arguments: P.args, **named: P.kwargs) -> CollectiveInfo:
        return self._finish_call(describe(self, *arguments, **named), named.get("timeout"))  # type: ignore[arg-type]

    return _derived(describe, method, "CollectiveInfo")


def returning_at_once(
    method: Callable[Concatenate[NamedCollectives, P], CollectiveInfo],
) -> Callable[Concatenate[NamedCollectives, P], CollectiveHandle]:
    """Makes of a method that waits the one with `_async`, which has no `timeout`."""
    describe: Callable[..., Call] = method.__wrapped__  # type: ignore[attr-defined]

    def launch(self: NamedCollectives, /, *arguments: P.args, **named: P.kwargs) -> CollectiveHandle:
        if "timeout" in named:
            raise TypeError(f"{made.__name__}() got an unexpected keyword argument 'timeout'")
        return self._launch(describe(self, *arguments, **named))

    made: Any = _derived(describe, launch, "CollectiveHandle")
    name = describe.__name__
    made.__name__, made.__qualname__ = f"{name}_async", f"{describe.__qualname__}_async"
    made.__doc__ = f"Launches `{name}` and returns at once."
    del made.__annotations__["timeout"]
    signature = made.__signature__
    made.__signature__ = signature.replace(parameters=[one for one in signature.parameters.values() if one.name != "timeout"])
    return launch


class NamedCollectives(Connection):
    """The methods of a Communicator that are collectives by name.

    **Who.** A collective is of the members of `group` (`Communicator.group`), by default all members of the peer group; roots
    and all other ranks are places in that group. All its members make the call, with the same arguments but for the tensors;
    else all of them get a UsageError that names both sides.

    **Tensors** are torch tensors, on the CPU or a GPU, numpy arrays, or arrays with the CUDA array interface; contiguous, all
    of one data type (AssertionError). Shapes are not compared: elements are taken as they lie in memory. What has a part for
    each member is either one tensor with all parts one behind the other, in the order of ranks, or a list with one tensor for
    each rank; with `counts`, the elements of each part, parts may have different sizes. A part may be empty.

    **Tags.** Any number of collectives may be in flight. All members give the same `tag` to one call, and it is that of no other
    call of the group in flight. Without a tag the calls of a group are numbered: then all members make them in the same order,
    and threads that share a group give tags.

    **Death.** With `survivors`, where there is such a parameter, a collective goes on without members that are lost, and the info
    has the `world_size` that is left. Otherwise, and always when the root is lost, it ends with PeerLostError on all
    surviving members; `ranks` names the lost. Tensors to be received are unspecified then, and those to be sent as before
    unless they share memory with these.

    **Waiting.** With `timeout` (seconds) a PCCLTimeoutError ends the call, but not the collective: the same call, repeated, waits
    on. Tensors on the CPU are then as before the call; a repeat with other contents raises UsageError. The methods with `_async`
    return at once. They copy tensors on the CPU, and results come into these where the handle tells the end; tensors on a GPU
    belong to the collective until then. Both take the memory of the tensors once more.
    """

    def _tear_down(self) -> None:
        super()._tear_down()
        self._cut_short.clear()

    # ---- one to all, all to one ----

    @waiting
    def broadcast(
        self,
        tensor: Tensor,
        root: int = 0,
        *,
        group: Group | None = None,
        tag: int | None = None,
        survivors: bool = True,
        timeout: float | None = None,
    ) -> Call:
        """Copies the root's `tensor` into that of every member: of the same number of elements, of any shape.

        PeerLostError: the root was lost, or any member without `survivors`; `tensor` is unspecified then, but for the root's.
        """
        group = self._group_of(group)
        data = one_buffer("tensor", tensor, written=_rank("root", root, group) != group.rank)
        return _call(Collective.BROADCAST, group, tag, data, data, survivors=survivors, count=data.numel, root=root)

    broadcast_async = returning_at_once(broadcast)

    @waiting
    def reduce(
        self,
        send: Tensor,
        recv: Tensor | None = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        root: int = 0,
        group: Group | None = None,
        tag: int | None = None,
        survivors: bool = True,
        timeout: float | None = None,
    ) -> Call:
        """Reduces `send` of all members by `op` into `recv` of the root, or in place without. Other members need no `recv`.

        AVG divides by the contributors. PeerLostError: the root was lost, or any member without `survivors`.
        """
        group = self._group_of(group)
        op = ReduceOp.of(op)
        at_root = _rank("root", root, group) == group.rank
        source, target = reduced(send, recv) if at_root else (one_buffer("send", send), None)
        return _call(Collective.REDUCE, group, tag, source, target, survivors=survivors, count=source.numel, op=op, root=root)

    reduce_async = returning_at_once(reduce)

    @waiting
    def _all_reduce(
        self,
        send: Tensor,
        recv: Tensor | None,
        *,
        op: ReduceOp | str,
        group: Group,
        tag: int | None,
        survivors: bool,
        timeout: float | None,
    ) -> Call:
        """The all-reduce of a group; that of all members is `Communicator.all_reduce`."""
        group = self._group_of(group)
        op = ReduceOp.of(op)
        source, target = reduced(send, recv)
        return _call(Collective.ALL_REDUCE, group, tag, source, target, survivors=survivors, count=source.numel, op=op)

    @waiting
    def gather(
        self,
        send: Tensor,
        recv: Parts | None = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Puts `send` of all members one behind the other into `recv` of the root. Other members need no `recv`.

        Where the members' tensors differ in size, all members give the same `counts`. PeerLostError: any member was lost.
        """
        group = self._group_of(group)
        at_root = _rank("root", root, group) == group.rank
        own = one_buffer("send", send)
        whole = None
        if at_root:
            require(recv is not None, "recv is missing; the root must pass it")
            whole = buffer_of(recv, "recv", written=True)
            check_alike(own, whole)
        parts = rooted_parts(own, "send", whole, "recv", group, counts)
        return _call(Collective.GATHER, group, tag, own, whole, root=root, **equal_or_counts(parts))

    gather_async = returning_at_once(gather)

    @waiting
    def scatter(
        self,
        send: Parts | None,
        recv: Tensor,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Gives each member its part of `send` of the root in `recv`. Other members pass None for `send`.

        Where the parts differ in size, all members give the same `counts`. PeerLostError: any member was lost.
        """
        group = self._group_of(group)
        at_root = _rank("root", root, group) == group.rank
        own = one_buffer("recv", recv, written=True)
        whole = None
        if at_root:
            require(send is not None, "send is missing; the root must pass it")
            whole = buffer_of(send, "send")
            check_alike(whole, own)
        parts = rooted_parts(own, "recv", whole, "send", group, counts)
        sizes = equal_or_counts(parts)
        if "recv_counts" in sizes:
            sizes = {"send_counts": parts}
        return _call(Collective.SCATTER, group, tag, whole, own, root=root, **sizes)

    scatter_async = returning_at_once(scatter)

    # ---- all to all ----

    @waiting
    def all_gather(
        self,
        send: Tensor,
        recv: Parts,
        *,
        counts: Sequence[int] | None = None,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Puts `send` of all members one behind the other into `recv` of every member.

        `send` may be the own part of `recv`. Where the members' tensors differ in size, `recv` is a list of tensors of these
        sizes, or `counts` has them, the same on all members. PeerLostError: any member was lost.
        """
        group = self._group_of(group)
        own, whole = one_buffer("send", send), buffer_of(recv, "recv", written=True)
        check_alike(own, whole)
        parts = divided(whole, "recv", group, counts)
        check_own("send", own, parts[group.rank], "recv")
        return _call(Collective.ALL_GATHER, group, tag, own, whole, **equal_or_counts(parts))

    all_gather_async = returning_at_once(all_gather)

    @waiting
    def reduce_scatter(
        self,
        send: Parts,
        recv: Tensor,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        counts: Sequence[int] | None = None,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Reduces `send` of all members by `op`, and gives each member its part of the result in `recv`.

        Where the parts differ in size, `send` is a list of tensors of these sizes, or `counts` has them, the same on all
        members. PeerLostError: any member was lost.
        """
        group = self._group_of(group)
        op = ReduceOp.of(op)
        whole, own = buffer_of(send, "send"), one_buffer("recv", recv, written=True)
        check_alike(whole, own)
        parts = divided(whole, "send", group, counts)
        check_own("recv", own, parts[group.rank], "send")
        return _call(Collective.REDUCE_SCATTER, group, tag, whole, own, op=op, **equal_or_counts(parts))

    reduce_scatter_async = returning_at_once(reduce_scatter)

    @waiting
    def all_to_all(
        self,
        send: Parts,
        recv: Parts,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Call:
        """Gives each member its part of `send`, and puts those of all members one behind the other into `recv`.

        Either all members give two tensors of equal parts; or all of them give lists, or tensors with `send_counts` and
        `recv_counts`, whose parts may differ in size: what a member sends to another is what that one receives from it.
        PeerLostError: any member was lost.
        """
        group = self._group_of(group)
        source, target = buffer_of(send, "send"), buffer_of(recv, "recv", written=True)
        check_alike(source, target)
        gives = divided(source, "send", group, send_counts, "send_counts")
        takes = divided(target, "recv", group, recv_counts, "recv_counts")
        unequal = source.counts is not None or send_counts is not None
        both = unequal == (target.counts is not None or recv_counts is not None)
        require(both, "send and recv must both have parts of given sizes (lists or counts), or neither")
        if unequal:
            return _call(Collective.ALL_TO_ALL_V, group, tag, source, target, send_counts=gives, recv_counts=takes)
        check_size(source, target)
        return _call(Collective.ALL_TO_ALL, group, tag, source, target, count=gives[0])

    all_to_all_async = returning_at_once(all_to_all)

    @waiting
    def barrier(
        self,
        *,
        group: Group | None = None,
        tag: int | None = None,
        survivors: bool = True,
        timeout: float | None = None,
    ) -> Call:
        """Returns when all members have called it. PeerLostError: any member was lost, without `survivors`."""
        return _call(Collective.BARRIER, self._group_of(group), tag, None, None, survivors=survivors)

    barrier_async = returning_at_once(barrier)

    # ---- one to one ----

    @waiting
    def send(
        self, tensor: Tensor, to: int, *, group: Group | None = None, tag: int | None = None, timeout: float | None = None
    ) -> Call:
        """Sends `tensor` to the member of rank `to`, which receives as many elements of the same type with `recv`.

        Of two members, the sends of one `tag` are received in the order in which they were sent; those of other tags, and of
        other members, do not meet them. A tag of 1,024 or more belongs to one message of the two at a time: UsageError while that
        is in flight. PeerLostError: the receiver was lost.
        """
        group = self._group_of(group)
        return self._pair(one_buffer("tensor", tensor), None, group, group.rank, _other("to", to, group), tag)

    send_async = returning_at_once(send)

    def recv(
        self,
        tensor: Tensor,
        source: int | None = None,
        *,
        group: Group | None = None,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Receives into `tensor` what the member of rank `source` sends; None: what any member sends. Gives the sender's rank.

        PeerLostError: the sender was lost, or with None all other members were.
        """
        deadline = Deadline(timeout)
        group = self._group_of(group)
        if source is None:
            source = self._next_sender(group, tag, deadline)
        self._finish_call(self._recv_call(tensor, source, group, tag), deadline.remaining())
        return source

    def recv_async(self, tensor: Tensor, source: int, *, group: Group | None = None, tag: int | None = None) -> CollectiveHandle:
        """Launches `recv` from one member and returns at once."""
        return self._launch(self._recv_call(tensor, source, group, tag))

    def _recv_call(self, tensor: Tensor, source: int, group: Group | None, tag: int | None) -> Call:
        group = self._group_of(group)
        into = one_buffer("tensor", tensor, written=True)
        return self._pair(None, into, group, _other("source", source, group), group.rank, tag)

    def _pair(
        self, sent: Buffer | None, received: Buffer | None, group: Group, sender: int, receiver: int, tag: int | None
    ) -> Call:
        ends = self.group([group.members[sender], group.members[receiver]])
        data = sent or received
        assert data is not None
        made = _call(Collective.SEND, ends, tag, sent, received, count=data.numel, root=0)
        made.numbered = "send"
        made.caller_group = group
        return made

    def _next_sender(self, group: Group, tag: int | None, deadline: Deadline) -> int:
        """Waits until a member has sent what was not received yet."""
        pairs = [(sender, group.members[group.rank]) for sender in group.members]
        pause = POLL_SECONDS
        while True:
            begun = {key[1] for key in list(self._cut_short) if key[0] is Collective.SEND and key[2] == tag}
            for rank, pair in enumerate(pairs):
                if rank != group.rank and (pair in begun or self._has_sent(pair, tag)):
                    return rank
            living = set(self.members)
            if not any(sender in living for sender, _ in pairs if sender != pairs[group.rank][0]):
                error = error_for(Result.RANK_CONNECTION_LOST.value, "recv", "all other members of the group were lost")
                assert isinstance(error, PeerLostError)
                name_lost(error, self._handle, group.members, self.members)
                raise error
            if deadline.passed():
                raise PCCLTimeoutError(Result.TIMED_OUT, "recv", "no member has sent anything; call recv again to wait on")
            deadline.sleep(pause)
            pause = min(2 * pause, POLL_MOST_SECONDS)

    def _has_sent(self, pair: tuple[UUID, UUID], tag: int | None) -> bool:
        """Whether the first of two members has sent the next message of this tag to the second one, this peer."""
        name = tag_of("send", pair, tag)
        launched = _ffi.new("uint32_t *")
        call(self._handle, "pccl_ext_launched", name, launched)
        return self.posted(name | launched[0] % (1 << NUMBER_BITS), pair[0])

    # ---- on addresses ----

    def launch(
        self,
        kind: Collective,
        *,
        group: Group,
        tag: int,
        send: int = 0,
        recv: int = 0,
        dtype: DataType = DataType.UINT8,
        count: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        survivors: bool = False,
        stream: int = 0,
        background: bool = False,
        keep: object = None,
    ) -> CollectiveOp:
        """Launches a collective on memory at the addresses `send` and `recv` (`pcclCollectiveAsync`), and returns at once.

        `keep` is held until the op has ended. With `background` this member sends only while its other large operations have
        nothing to send. Of memory at a GPU, the op comes after what the stream of this number has had,
        a CUstream; 0: the legacy default stream. UsageError: the call is wrong, the tag is in flight, or the stream captures a
        CUDA graph.
        """
        collective = CollectiveOp(
            self,
            kind,
            group,
            tag,
            send=send,
            recv=recv,
            dtype=dtype,
            count=count,
            op=op,
            root=root,
            send_counts=send_counts,
            recv_counts=recv_counts,
            survivors=survivors,
            stream=stream,
            background=background,
            keep=keep,
        )
        collective.launch()
        return collective

    # ---- inside ----

    def _adopt(self, pointer: Any, ip: Any) -> None:
        super()._adopt(pointer, ip)
        self._cut_short: dict[tuple[Any, ...], CollectiveHandle] = {}
        self._everyone: Everyone | None = None

    def _prepare_call(self, call: Call) -> CollectiveOp:
        """The operation of a call, which is not launched yet."""
        keep = [buffer.owner for buffer in (call.loads, call.stores) if buffer is not None]
        arguments = {**call.arguments, "survivors": call.survivors, "keep": keep, "call": call}
        return CollectiveOp(self, call.kind, call.group, call.name, **arguments)

    def _group_of(self, group: Group | None) -> Group:
        if group is not None:
            require_kind("group", group, Group)
            return group
        members = self._snapshot
        everyone = self._everyone
        if everyone is None or everyone.members != members:
            everyone = self._everyone = Everyone(self._handle, members)
        return everyone

    def _launch(self, call: Call) -> CollectiveHandle:
        """Launches a call on private memory: the program may use its tensors until the end."""
        call.make_private(self._pool)
        self._reaper.start()
        handle = CollectiveHandle(self, call).begin()
        self._reaper.watch(handle, handle._op)
        return handle

    def _finish_call(self, call: Call, timeout: float | None) -> CollectiveInfo:
        """Launches a call and waits for its end, or for that of one like it that was cut short."""
        deadline = Deadline(timeout)
        key = call.key()
        handle = self._cut_short.get(key)
        if handle is not None:
            handle.check_input()
        else:
            if timeout is not None:
                call.make_private(self._pool)
            handle = self._cut_short[key] = CollectiveHandle(self, call)
        try:
            info = handle.begin().wait(deadline.remaining())
        except PCCLTimeoutError:
            handle.note_input()
            raise
        except PCCLError:
            if self._cut_short.get(key) is handle:  # a signal handler may have made the same call
                self._cut_short.pop(key, None)
            raise
        try:
            if self._cut_short.get(key) is handle:
                del self._cut_short[key]  # the last: until here a repeated call gives the result that there is
        except KeyError:  # another thread has closed the communicator just now
            pass
        return info


# ---- descriptions ----


def _call(
    kind: Collective,
    group: Group,
    tag: int | None,
    send: Buffer | None,
    recv: Buffer | None,
    *,
    survivors: bool = False,
    **arguments: Any,
) -> Call:
    if tag is not None:
        tag = whole_number("tag", tag, 64)
    known = send or recv
    if known is not None:
        arguments["dtype"] = known.dtype
    arguments["send"] = 0 if send is None else send.pointer
    arguments["recv"] = 0 if recv is None else recv.pointer
    arguments["stream"] = common_stream((role, part.stream) for role, part in (("send", send), ("recv", recv)) if part)
    return Call(kind, group, arguments, send, recv, tag, survivors=survivors)


def reduced(send: Tensor, recv: Tensor | None) -> tuple[Buffer, Buffer]:
    """The memory of a reduce, in place if there is no `recv`."""
    source = one_buffer("send", send, written=recv is None)
    target = source if recv is None else one_buffer("recv", recv, written=True)
    check_alike(source, target)
    check_size(source, target)
    return source, target


def _rank(name: str, rank: int, group: Group) -> int:
    number = whole_number(name, rank, 32)
    if number >= group.size:
        raise ValueError(f"{name} is {number}, but the group has {group.size} members: ranks 0 to {group.size - 1}")
    return number


def _other(name: str, rank: int, group: Group) -> int:
    number = _rank(name, rank, group)
    if number == group.rank:
        raise ValueError(f"{name} is {number}, the rank of this member itself")
    return number


publish(globals())
