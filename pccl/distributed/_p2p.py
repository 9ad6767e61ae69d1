"""Sends and receives between two members of a process group."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import torch

from pccl._core.enums import DataType
from pccl._core.errors import PCCLError, Result
from pccl._ops.collectives import COUNTED_TAGS, Collective
from pccl.distributed._arguments import OneOrMore
from pccl.distributed._calls import Call, Origin, finished
from pccl.distributed._collectives import Collectives, listed
from pccl.distributed._errors import CollectiveTimeoutError, PeerLostError
from pccl.distributed._launch import Launcher, digest
from pccl.distributed._tensors import address_of, moved_as, readable, stream_of, writable
from pccl.distributed._this_run import this_run
from pccl.distributed._work import Work

if TYPE_CHECKING:
    from pccl._core.groups import Group

_POLL_SECONDS = 0.0001
"""Between two looks for what a call waits for before it is launched; doubled up to the next."""

_POLL_MOST_SECONDS = 0.005


class Later:
    """A call that is launched once something has happened, which `wait` and `done` look for."""

    origin: Origin | None = None

    def __init__(self, name: str, waits_for: str) -> None:
        self._name = name
        self._waits_for = waits_for
        self._call: Call | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None) -> None:
        """Waits until the call can be launched, and then for its end."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _POLL_SECONDS
        while not self._found():
            if end is not None and time.monotonic() >= end:
                raise CollectiveTimeoutError(Result.TIMED_OUT, self._name, f"timed out before {self._waits_for}")
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST_SECONDS)
        assert self._call is not None
        self._call.wait(None if end is None else max(0.0, end - time.monotonic()))

    def done(self) -> bool:
        """Whether the call has ended, or cannot be launched any more."""
        try:
            return self._found() and self._call is not None and self._call.done()
        except Exception:  # which `wait` raises
            return True

    def _found(self) -> bool:
        """Launches the call if it can be. Returns whether it has been. Raises what the launch raises."""
        with self._lock:
            return self._call is not None or self._launched()

    def _launched(self) -> bool:
        """As `_found`, for one thread at a time, and not after it has returned True."""
        raise NotImplementedError


class AfterAnother(Later):
    """A message that is launched when the one before it, of the same members and tag, has ended."""

    def __init__(self, name: str, before: Call, begin: Callable[[], Call]) -> None:
        super().__init__(name, "the message before it, of the same tag, had ended")
        self._before: Call | None = before
        self._begin = begin
        self._error: Exception | None = None

    def _launched(self) -> bool:
        if self._before is not None and self._before.done():
            self._before = None
            try:
                self._call = self._begin()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._call is not None


class Messages:
    """The messages between two members of a group, which the numbers of its calls do not count."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.lock = threading.RLock()  # of all below; who looks for a message holds it until it is received
        self.begin()

    def begin(self) -> None:
        """Starts all counts anew, as `Launcher.begin` does."""
        self._pairs: dict[tuple[UUID, UUID], Group] = {}
        self._sent: dict[tuple[UUID, UUID, int], int] = {}
        self._last: dict[tuple[UUID, UUID, int], Call] = {}
        """The last message of each pair and larger tag that is under way."""
        self._sweep_at = COUNTED_TAGS

    def launch(self, kind: Collective, name: str, source: UUID, target: UUID, tag: int, **arguments: Any) -> Call:
        """Begins a send from one member to another, or the receive of one."""
        pair = source, target
        group = self._pairs.get(pair)
        if group is None:
            group = self._pairs[pair] = self.launcher.communicator.group(pair)
        counted = 0
        if 0 <= tag < COUNTED_TAGS:
            with self.lock:
                counted = self._sent[*pair, tag] = self._sent.get((*pair, tag), 0) + 1
        core_tag = self._tag(*pair, tag, counted)
        begin = functools.partial(self.launcher.launch_message, kind, name, group, core_tag, **arguments)
        if counted:
            return begin()
        with self.lock:
            before = self._last.get((*pair, tag))
            call = begin() if before is None or before.done() else AfterAnother(name, before, begin)
            self._last[*pair, tag] = call
            if len(self._last) > self._sweep_at:
                self._last = {key: last for key, last in self._last.items() if not last.done()}
                self._sweep_at = 2 * len(self._last) + COUNTED_TAGS
        return call

    def refuse(self, name: str, source: UUID, target: UUID, tag: int) -> None:
        """Lets the other member of a pair know that a message fails before it is launched here."""
        with contextlib.suppress(PCCLError):
            self.launcher.adopt(self.launch(Collective.BARRIER, f"{name}, refused", source, target, tag, dtype=DataType.UINT8))

    def posted(self, source: UUID, tag: int) -> bool:
        """Whether a member has sent something under the user's tag that was not received yet."""
        own = self.launcher.view.own
        counted = self._sent.get((source, own, tag), 0) + 1 if 0 <= tag < COUNTED_TAGS else 0
        return self.launcher.communicator.posted(self._tag(source, own, tag, counted), source)

    def _tag(self, source: UUID, target: UUID, tag: int, counted: int) -> int:
        """The core's tag of the message of this count, from 1 on; 0: larger tags are not counted."""
        return digest(self.launcher.seed, source.hex, target.hex, tag, counted)


class FromAny(Later):
    """A receive from whoever sends first."""

    def __init__(self, messages: Messages, tag: int, arguments: dict[str, Any]) -> None:
        super().__init__("recv", f"any member of the group had sent under the tag {tag}")
        self._messages = messages
        self._tag = tag
        self._arguments = arguments
        self.source = -1

    def _launched(self) -> bool:
        """Receives from a member that has sent. PeerLostError: no other member lives, and none has sent."""
        with self._messages.lock:  # else two receives would see the same message
            return self._launched_alone()

    def _launched_alone(self) -> bool:
        launcher, view = self._messages.launcher, self._messages.launcher.view
        living = launcher.communicator.members  # before the look at what they have sent: a member may send, and leave
        for rank, member in enumerate(view.members):
            if member != view.own and member in view.living and self._messages.posted(member, self._tag):
                self.source = rank
                self._call = self._messages.launch(Collective.SEND, "recv", member, view.own, self._tag, **self._arguments)
                return True
        others = [(rank, member) for rank, member in enumerate(view.members) if member != view.own]
        if not any(member in living for _, member in others):
            ranks, lost = tuple(rank for rank, _ in others), tuple(member for _, member in others)
            detail = "no other member of the group is left"
            raise PeerLostError("recv", detail, ranks, lost, launcher.told(lost))
        return False


class WorkFromAny(Work):
    """What `recv_anysource` gives back."""

    _from: FromAny

    def source_rank(self) -> int:
        """The rank in the group that was received from; -1 as long as there is none."""
        return self._from.source

    _source_rank = source_rank


class PointToPoint(Collectives):
    """Messages with tags between two members. Those of one pair and tag are received in the order in which they were sent."""

    _messages: Messages

    def send(self, tensors: OneOrMore, dst_rank: int, tag: int = 0) -> Work:
        """Sends a tensor to a member, which has to call `recv` with the same tag; ends when it has the elements."""
        pair = self._launcher.view.own, self._member("send", dst_rank)
        return self._message("send", f"send to rank {dst_rank}", tensors, pair, tag)

    def recv(self, tensors: OneOrMore, src_rank: int, tag: int = 0) -> Work:
        """Receives a tensor from a member, of the size and dtype that it sends."""
        pair = self._member("recv", src_rank), self._launcher.view.own
        return self._message("recv", f"recv from rank {src_rank}", tensors, pair, tag)

    def _message(self, side: str, name: str, tensors: OneOrMore, pair: tuple[UUID, UUID], tag: int) -> Work:
        (tensor,) = listed(tensors)
        try:
            memory, finish = (readable(tensor), None) if side == "send" else writable(tensor)
            arguments = _described(side, memory)
        except Exception:
            self._messages.refuse(name, *pair, tag)
            raise
        call = self._messages.launch(Collective.SEND, name, *pair, tag, **arguments)
        work = self._work([finished(call, finish)], None, None, [tensor])
        if isinstance(call, AfterAnother):
            self._completer.future_of(work)  # whose thread looks whether it can be launched
        return work

    def recv_anysource(self, tensors: OneOrMore, tag: int = 0) -> Work:
        """Receives from whichever member sends first under the tag; its `source_rank` tells whom it was."""
        this_run.require_joined("recv")
        (tensor,) = listed(tensors)
        memory, finish = writable(tensor)
        call = FromAny(self._messages, tag, _described("recv", memory))
        work = WorkFromAny(self._completer, [finished(call, finish)], self._timeout, [tensor])
        work._from = call
        return work

    def _member(self, name: str, rank: int) -> Any:
        this_run.require_joined(name)
        view = self._launcher.view
        if not 0 <= rank < view.size or rank == view.rank:
            text = f"the other rank must be from 0 to {view.size - 1} and differ from the own rank, {view.rank}"
            before = min((size for size in view.before if size > rank >= 0), default=None) if rank != view.rank else None
            self._refuse(name, f"{text}: it is {rank}", size=before)
        self._require_living(name, rank)
        return view.members[rank]


def _described(side: str, memory: torch.Tensor) -> dict[str, Any]:
    core_type, factor = moved_as(memory.dtype)
    count, stream = memory.numel() * factor, stream_of(memory)  # that of the call: it may be launched later
    return {side: address_of(memory), "dtype": core_type, "count": count, "keep": memory, "stream": stream}
