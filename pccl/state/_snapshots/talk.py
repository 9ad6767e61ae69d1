"""Messages between members beside the program's own operations."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import torch

from pccl._core.enums import DataType
from pccl._core.errors import OperationCancelledError, PCCLTimeoutError, PeerLostError, Result, UsageError
from pccl._ops.collectives import Collective, CollectiveOp
from pccl._ops.operations import request_cancel
from pccl.state._local.tree import decode

if TYPE_CHECKING:
    from pccl._peer.communicator import Communicator

LIMIT_BYTES = 1 << 32
"""What a member accepts at once from one other member, or from all together."""

LIMIT_BYTES_EACH = 1 << 28
"""What a member accepts from each where all tell something."""

CHUNK_BYTES = 4 << 20
"""What one message between two members carries at most."""

IN_FLIGHT = 3
"""Messages of one member in one direction: as many hide the time of the master's answer."""

CANCEL_SECONDS = 20.0
"""For a message that was cancelled to end on all members: none of them waits for another one's program."""

T = TypeVar("T")


class GarbledError(ValueError):
    """Members do not understand each other: one of them is broken, or has another version of the library."""


class Talk:
    """One conversation among `members`, of which this process is the one at `own`.

    All of them make the same calls in the same order, but for `send` and `recv`, whose messages have names of their own. Each
    call raises PeerLostError on all members if one of those it needs is lost. PCCLTimeoutError: `timeout` seconds have passed, if
    given, here or at another member; the call is then cancelled on all. GarbledError on all: their sizes differ.

    The first call agrees on a number, which is in the tags of all later messages, so those that arrive late are not taken for
    messages of the next conversation. A first call that was cancelled ends that of a late member, too, and no other one.
    """

    def __init__(
        self,
        comm: Communicator,
        members: Sequence[UUID],
        own: int,
        topic: str,
        timeout: float | None,
        *,
        background: bool = False,
    ) -> None:
        self._comm = comm
        self.members = tuple(members)
        self.own = own
        self._topic = topic
        self._timeout = timeout
        self._background = background
        self._group: Any = comm.group(self.members) if len(self.members) > 1 else None
        self._numbers = itertools.count()
        self._mark: int | None = None  # of this conversation

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers that each member gives, in their order; as many of each, of 64 bits with sign."""
        if self._group is None:
            return [list(numbers)]
        is_first = self._mark is None
        send = torch.tensor([*numbers, *([int.from_bytes(os.urandom(7))] if is_first else ())], dtype=torch.int64, device="cpu")
        recv = torch.zeros(len(self.members), len(send), dtype=torch.int64, device="cpu")
        self._all(Collective.ALL_GATHER, send, recv, dtype=DataType.INT64, count=len(send))
        found: list[list[int]] = recv.tolist()
        if is_first:
            marks = [row.pop() for row in found]
            self._mark = marks[0]
        return found

    def gather_bytes(self, content: bytes, counts: Sequence[int] | None = None) -> list[bytes]:
        """The bytes that each member gives, in their order. `counts`: how many, if members have told it already."""
        if self._group is None:
            return [content]
        counts = [row[0] for row in self.gather([len(content)])] if counts is None else counts
        for member, count in enumerate(counts):
            if not 0 <= count <= LIMIT_BYTES_EACH or sum(counts[: member + 1]) > LIMIT_BYTES:
                raise GarbledError(
                    f"member {member} announces {count} bytes; {LIMIT_BYTES_EACH} of each member are accepted, "
                    f"and {LIMIT_BYTES} of all"
                )
        send = _tensor(content)
        recv = torch.zeros(max(1, sum(counts)), dtype=torch.uint8, device="cpu")
        self._all(Collective.ALL_GATHER, send, recv, dtype=DataType.UINT8, count=len(content), recv_counts=counts)
        ends = list(itertools.accumulate(counts))
        joined = recv.numpy().tobytes()
        return [joined[end - count : end] for end, count in zip(ends, counts, strict=True)]

    def broadcast(self, root: int, content: bytes | None) -> bytes:
        """The bytes that the root gives; the others give None."""
        if self._group is None:
            assert content is not None
            return content
        size = self.gather([len(content) if content is not None else 0])[root][0]
        if not 0 <= size <= LIMIT_BYTES:
            raise GarbledError(f"member {root} announces {size} bytes, and at most {LIMIT_BYTES} are accepted")
        data = _tensor(content) if content is not None else torch.zeros(max(1, size), dtype=torch.uint8, device="cpu")
        self._all(Collective.BROADCAST, data, data, dtype=DataType.UINT8, count=size, root=root)
        return data[:size].numpy().tobytes()

    def send(self, to: int, name: str, content: torch.Tensor) -> CollectiveOp:
        """Begins to send an uint8 tensor, which must not change until the op that is returned has ended."""
        return self._pair(self.own, to, name, content, send=content.data_ptr())

    def recv(self, source: int, name: str, into: torch.Tensor) -> CollectiveOp:
        """Begins to receive what that member sends under the name, as many bytes."""
        return self._pair(source, self.own, name, into, recv=into.data_ptr())

    def abandon(self) -> None:
        """Leaves the run, so that the others do not wait for messages that this process cannot send."""
        self._comm.close()

    def wait(self, op: CollectiveOp) -> None:
        try:
            try:
                op.wait(self._timeout)
            except PCCLTimeoutError:
                request_cancel(self._comm._handle, op)  # in flight it would block the next vote
                op.wait(CANCEL_SECONDS)  # it may have ended well meanwhile, then it has on all
        except OperationCancelledError:
            raise PCCLTimeoutError(Result.TIMED_OUT, self._topic, "a member has waited too long for another one") from None
        except UsageError as error:
            if self._comm._handle.closed:
                raise
            raise GarbledError(f"members send each other messages of other sizes than expected: {error}") from error

    def _pair(self, sender: int, receiver: int, name: str, data: torch.Tensor, **where: Any) -> CollectiveOp:
        ends = [self.members[sender], self.members[receiver]]
        tag = self._tag(f"{name} {ends[0]} {ends[1]}")
        group = self._comm.group(ends)
        count, background = data.numel(), self._background
        return self._comm.launch(Collective.SEND, group=group, tag=tag, count=count, background=background, keep=data, **where)

    def _all(self, kind: Collective, send: torch.Tensor, recv: torch.Tensor, **arguments: Any) -> None:
        tag = self._tag(f"call {next(self._numbers)}")
        where: dict[str, Any] = {"send": send.data_ptr(), "recv": recv.data_ptr()}
        op = self._comm.launch(kind, group=self._group, tag=tag, keep=(send, recv), **where, **arguments)
        self.wait(op)

    def _tag(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._topic} {self._mark} {name}".encode(), digest_size=8)
        if self._group is not None:
            digest.update(b"".join(member.bytes for member in self.members))
        return int.from_bytes(digest.digest(), "little")


class Window:
    """Messages in flight to or from others."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._ops: list[tuple[CollectiveOp, Callable[[], object]]] = []

    def add(self, op: CollectiveOp, then: Callable[[], object] = lambda: None) -> None:
        """Waits for an earlier message if IN_FLIGHT are under way. `then` is called when this one has ended."""
        self._ops.append((op, then))
        while len(self._ops) > IN_FLIGHT:
            self._next()

    def drain(self) -> None:
        while self._ops:
            self._next()

    def _next(self) -> None:
        op, then = self._ops.pop(0)
        self._talk.wait(op)
        then()

    def forget(self, *, gives_up: bool = False) -> None:
        """Waits for messages whose other side is lost: an op that nobody waits for would block the next vote.

        `gives_up`: ends them, on both sides, without waiting for the time that they may take.
        """
        ops, self._ops = self._ops, []
        for op, _ in ops if gives_up else ():
            request_cancel(self._talk._comm._handle, op)
        for op, _ in ops:
            with contextlib.suppress(PeerLostError, PCCLTimeoutError, GarbledError):
                self._talk.wait(op)


def understood(told: Sequence[bytes], make: Callable[[Any], T], what: str) -> list[T]:
    """What `make` returns for the tree that each member has told. It must check all of the tree.

    GarbledError, on all alike, names the first member of which it cannot be made.
    """
    found = []
    for member, content in enumerate(told):
        try:
            found.append(make(decode(content, numbers_and_text=True)))
        except Exception as error:
            raise GarbledError(f"member {member} has told a malformed {what}: {error or type(error).__name__}") from error
    return found


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
