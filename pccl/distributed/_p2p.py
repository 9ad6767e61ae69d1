"""Sends and receives between two members of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pccl.distributed import _bootstrap
from pccl.distributed._collectives import Collectives, listed
from pccl.distributed._errors import PeerLostError
from pccl.distributed._launch import AfterAnother, Call, Later, Launcher, finished
from pccl.distributed._tensors import moved_as, readable, stream_of, writable
from pccl.distributed._work import Work

Tensor = torch.Tensor


class FromAny(Later):
    """A receive from whoever sends first."""

    def __init__(self, launcher: Launcher, tag: int, arguments: dict[str, Any]) -> None:
        super().__init__("recv", f"any member of the group had sent under the tag {tag}")
        self._launcher = launcher
        self._tag = tag
        self._arguments = arguments
        self.source = -1

    def _launched(self) -> bool:
        """Receives from a member that has sent. PeerLostError: no other member lives, and none has sent."""
        launcher, view = self._launcher, self._launcher.view
        living = launcher.communicator.members  # before the look at what they have sent: a member may send, and leave
        for rank, member in enumerate(view.members):
            if member != view.own and member in view.living and launcher.posted(member, self._tag):
                self.source = rank
                self._call = launcher.launch_pair("recv", member, view.own, self._tag, **self._arguments)
                return True
        others = [(rank, member) for rank, member in enumerate(view.members) if member != view.own]
        if not any(member in living for _, member in others):
            ranks, lost = tuple(rank for rank, _ in others), tuple(member for _, member in others)
            detail = "no other member of the group is left"
            raise PeerLostError("recv", detail, ranks, lost, launcher.names(lost))
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
        return self._begun_later(call, self._work([call], None, None, [tensor]))

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
        return self._begun_later(call, self._work([finished(call, finish)], None, None, [tensor]))

    def _begun_later(self, call: Call, work: Work) -> Work:
        if isinstance(call, AfterAnother):
            self._completer.future_of(work)  # whose thread looks whether it can be launched
        return work

    def recv_anysource(self, tensors: Tensor | Sequence[Tensor], tag: int = 0) -> Work:
        """Receives from whichever member sends first under the tag; its `source_rank` tells whom it was."""
        _bootstrap.require_joined("recv")
        (tensor,) = listed(tensors)
        memory, finish = writable(tensor)
        call = FromAny(self._launcher, tag, _received(memory))
        work = WorkFromAny(self._completer, [finished(call, finish)], self._timeout, [tensor])
        work._from = call
        return work

    def _member(self, name: str, rank: int) -> Any:
        _bootstrap.require_joined(name)
        view = self._launcher.view
        if not 0 <= rank < view.size or rank == view.rank:
            text = f"the other rank must be from 0 to {view.size - 1} and differ from the own rank, {view.rank}"
            before = min((size for size in view.before if size > rank >= 0), default=None) if rank != view.rank else None
            self._refuse(name, f"{text}: it is {rank}", size=before)
        self._require_living(name, rank)
        return view.members[rank]


def _received(memory: Tensor) -> dict[str, Any]:
    core_type, factor = moved_as(memory.dtype)
    count, stream = memory.numel() * factor, stream_of(memory)  # that of the call: it may be launched later
    return {"recv": memory.data_ptr(), "dtype": core_type, "count": count, "keep": memory, "stream": stream}
