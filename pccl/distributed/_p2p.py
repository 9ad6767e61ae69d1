"""Sends and receives between two members of a process group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from pccl._enums import Result
from pccl.distributed import _bootstrap
from pccl.distributed._collectives import Collectives, listed
from pccl.distributed._errors import CollectiveTimeoutError, PeerLostError
from pccl.distributed._launch import Call, Launcher
from pccl.distributed._tensors import moved_as, readable, stream_of, writable
from pccl.distributed._work import Work

Tensor = torch.Tensor

_POLL_SECONDS = 0.0001
"""Between two looks for a sender; doubled up to the next."""

_POLL_MOST_SECONDS = 0.005


class FromAny:
    """A receive from whoever sends first."""

    origin = None

    def __init__(self, launcher: Launcher, tag: int, arguments: dict[str, Any]) -> None:
        self._launcher = launcher
        self._tag = tag
        self._arguments = arguments
        self._call: Call | None = None
        self.source = -1

    def wait(self, timeout: float | None) -> None:
        """Looks for a sender, and receives from it."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _POLL_SECONDS
        while not self._found():
            if end is not None and time.monotonic() >= end:
                text = f"timed out before any member of the group had sent under the tag {self._tag}"
                raise CollectiveTimeoutError(Result.TIMED_OUT, "recv", text)
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST_SECONDS)
        assert self._call is not None
        self._call.wait(None if end is None else max(0.0, end - time.monotonic()))

    def done(self) -> bool:
        """Whether what was sent has arrived, or nobody is left that could send."""
        try:
            return self._found() and self._call is not None and self._call.done()
        except PeerLostError:
            return True

    def _found(self) -> bool:
        """Whether a member has sent, from whom it then receives. PeerLostError: no other member lives, and none has sent."""
        if self._call is not None:
            return True
        launcher, view = self._launcher, self._launcher.view
        living = launcher.communicator.members  # before the look at what they have sent: a member may send, and leave
        for rank, member in enumerate(view.members):
            if member != view.own and launcher.posted(member, self._tag):
                self.source = rank
                self._call = launcher.launch_pair("recv", member, view.own, self._tag, **self._arguments)
                return True
        others = [(rank, member) for rank, member in enumerate(view.members) if member != view.own]
        if not any(member in living for _, member in others):
            lost, names = tuple(rank for rank, _ in others), tuple(member for _, member in others)
            raise PeerLostError("recv", "no other member of the group is left that could send", lost, names)
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

    def send(self, tensors: Tensor | Sequence[Tensor], dst_rank: int, tag: int = 0) -> Work:
        """Sends a tensor to a member, which has to call `recv` with the same tag; ends when it has the elements."""
        (tensor,) = listed(tensors)
        target = self._member("send", dst_rank)
        name, pair = f"send to rank {dst_rank}", (self._launcher.view.own, target)
        try:
            source = readable(tensor)
            core_type, factor = moved_as(tensor.dtype)
            arguments: dict[str, Any] = {
                "send": source.data_ptr(),
                "dtype": core_type,
                "count": source.numel() * factor,
                "keep": source,
            }
        except Exception:
            self._launcher.refuse_pair(name, *pair, tag)
            raise
        call = self._launcher.launch_pair(name, *pair, tag, **arguments)
        return self._work([call], None, None, [tensor])

    def recv(self, tensors: Tensor | Sequence[Tensor], src_rank: int, tag: int = 0) -> Work:
        """Receives a tensor from a member, of the size and dtype that it sends."""
        (tensor,) = listed(tensors)
        source = self._member("recv", src_rank)
        name, pair = f"recv from rank {src_rank}", (source, self._launcher.view.own)
        try:
            memory, finish = writable(tensor)
            arguments = _received(memory)
        except Exception:
            self._launcher.refuse_pair(name, *pair, tag)
            raise
        call = self._launcher.launch_pair(name, *pair, tag, **arguments)
        return self._work([call], None, None, [tensor], finish)

    def recv_anysource(self, tensors: Tensor | Sequence[Tensor], tag: int = 0) -> Work:
        """Receives from whichever member sends first under the tag; its `source_rank` tells whom it was."""
        _bootstrap.require_joined("recv")
        (tensor,) = listed(tensors)
        memory, finish = writable(tensor)
        call = FromAny(self._launcher, tag, _received(memory))
        work = WorkFromAny(self._completer, [call], self._timeout, [tensor], [finish])
        work._from = call
        return work

    def _member(self, name: str, rank: int) -> Any:
        _bootstrap.require_joined(name)
        view = self._launcher.view
        if not 0 <= rank < view.size or rank == view.rank:
            text = f"the other rank must be one of 0 to {view.size - 1}, and not the own rank, {view.rank}"
            before = min((size for size in view.before if size > rank >= 0), default=None) if rank != view.rank else None
            self._refuse(name, f"{text}: it is {rank}", size=before)
        return view.members[rank]


def _received(memory: Tensor) -> dict[str, Any]:
    core_type, factor = moved_as(memory.dtype)
    count, stream = memory.numel() * factor, stream_of(memory)  # that of the call: it may be launched later
    return {"recv": memory.data_ptr(), "dtype": core_type, "count": count, "keep": memory, "stream": stream}
