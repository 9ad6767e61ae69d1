"""The calls of a process group that are under way: their end, and who was lost in them.

**Who is lost.** An op that goes on among the survivors ends with the same set of them everywhere, and that set is what the view
adopts. One that ends with an error tells each member what it knows by then, which may differ after a second loss: the members
agree by a barrier of the survivors, named after the call, before they raise it, so that their next call has the same ranks. While
a member waits for one call it begins the barriers of others that were cut short, since members may wait in different orders.

**When the view changes.** At a wait of the program, which is at the same call on all members. The thread that completes futures
runs at its own pace: what it hears is kept until the program reads the size or its rank.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import torch

from pccl._core import errors
from pccl._core.errors import LossReason, PCCLError, PCCLTimeoutError, Result
from pccl._core.groups import reason_lost
from pccl._core.names import name_of, peer_label
from pccl._ops.operations import request_cancel
from pccl._peer.communicator import Communicator
from pccl.distributed._errors import CollectiveError, CollectiveTimeoutError, PeerLostError, translated
from pccl.distributed._tensors import Finish, scale
from pccl.distributed._view import View

if TYPE_CHECKING:
    from pccl._core.groups import Group
    from pccl._core.results import CollectiveInfo
    from pccl._ops.collectives import CollectiveOp

_AGAIN = 1 << 56
"""Between the number of a call and that of its repetition."""


class Call(Protocol):
    """Something under way that a `Work` waits for."""

    def wait(self, timeout: float | None) -> object:
        """Returns when it has ended well; may be repeated after a CollectiveTimeoutError."""

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""

    @property
    def origin(self) -> Origin | None:
        """That of calls in callbacks of its future; None: they are made as the program makes them."""


Again = Callable[[tuple[UUID, ...], int], "Call | None"]
"""Makes a call again, among the members that are left, in rank order, and with the number of the repetition; None: it cannot be
made, and its error is raised."""


class Ended:
    """A call that was completed where it was made."""

    def wait(self, timeout: float | None) -> None:
        """Returns."""

    def done(self) -> bool:
        """True."""
        return True

    origin: Origin | None = None


ENDED = Ended()


class Once:
    """Writes the result of a call, once. If that is cut short, the tensors are undefined, and every later wait raises."""

    def __init__(self, name: str, write: Callable[..., None]) -> None:
        self._name = name
        self._write: Callable[..., None] | None = write
        self._begun = False
        self._over: list[None] = []

    def __call__(self, *arguments: object) -> None:
        if self._write is not None and not self._over:
            if self._begun:
                text = "the wait was cut short while the result was written; the tensors of the result are undefined"
                raise CollectiveError(Result.CANCELLED, self._name, text)
            self._begun = True
            # By C: no signal comes between the end of it and the note of that.
            self._over.extend(itertools.starmap(self._write, (arguments,)))
        self._write = None


class Followed:
    """A call with something more to do at its end, once."""

    def __init__(self, call: Call, finish: Finish) -> None:
        self._call = call
        self._finish = Once("wait", finish)
        self.done = call.done

    def wait(self, timeout: float | None) -> None:
        self._call.wait(timeout)
        self._finish()

    @property
    def origin(self) -> Origin | None:
        return self._call.origin


def finished(call: Call, finish: Finish | None) -> Call:
    """The call that ends with `finish`; None: nothing is left to do."""
    return call if finish is None else Followed(call, finish)


class _Hearing(threading.local):
    """What a thread does with the losses that calls tell it of."""

    published: bool = True
    """Whether the view changes at once, as all members see it at the same call: false in the thread that completes futures."""
    kept: bool = True
    """Whether the loss is kept for later, if it is not published: false for a call that was dropped; a later one tells again."""


hearing = _Hearing()

Origin = tuple[int, ...]
"""Of calls that a callback makes: the group and the number of the call whose end it follows, and the places of callbacks."""


class _Making(threading.local):
    """What calls of a thread follow: those of a callback have no numbers of the program."""

    origin: Origin | None = None
    calls: int = 0
    planned: int = 1
    """How many calls the method that runs is to make."""


making = _Making()


@contextlib.contextmanager
def made_under(origin: Origin | None) -> Iterator[None]:
    """Names calls by their origin; None: they are the program's."""
    before = making.origin, making.calls
    making.origin, making.calls = origin, 0
    try:
        yield
    finally:
        making.origin, making.calls = before


class Guard:
    """Members that a training needs, and the tags of the ops with which each of them ends a step.

    If one of them is lost, those who need it go to that op, and others may wait for them in calls that do not need it. So a
    process ends its calls in flight once it hears of a loss, and that somebody has begun that op. A call that is cancelled has
    ended well on no member, or on all of them. Without the second condition a member that leaves after its last step would end
    last calls of others.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.members: frozenset[UUID] = frozenset()
        self.tags: tuple[int, ...] = ()

    def lost(self) -> frozenset[UUID]:
        return self.members.difference(self._communicator.members)

    def is_broken(self) -> bool:
        """Whether one of the members is lost, and another one has ended the step."""
        lost = self.lost()
        return bool(lost) and any(self._communicator.posted(tag, member) for member in self.members - lost for tag in self.tags)


class Losses:
    """What the calls of one group tell of lost members."""

    def __init__(self, communicator: Communicator, view: View, *, strict: bool) -> None:
        self.communicator = communicator
        self.view = view
        self.strict = strict
        self.seed = 0
        """What all members have alike since they last began anew."""
        self.guard: Guard | None = None
        self.on_loss: Callable[[Collection[UUID]], None] | None = None
        self._unpublished: frozenset[UUID] = frozenset()
        self._lock = threading.RLock()  # of the losses above; a work may be dropped anywhere

    def names(self, members: Iterable[UUID]) -> dict[UUID, str]:
        """What logs call these members, the lost ones too; "" for one that is not known."""
        return {member: name_of(self.communicator._handle, member) for member in members}

    def told(self, members: Iterable[UUID]) -> dict[UUID, tuple[str, LossReason, str]]:
        """The names of lost members, why they are gone, and what the master says."""
        handle = self.communicator._handle
        return {member: (name_of(handle, member), *reason_lost(handle, member)) for member in members}

    def lose(self, lost: Collection[UUID]) -> None:
        """Takes members out that an op was ended without: at once, or when the view is read."""
        if self.strict:
            return
        if not hearing.published:
            if hearing.kept:
                self.hear(lost)
        elif self.view.lose(lost) and self.on_loss is not None:
            self.on_loss(lost)

    def hear(self, lost: Collection[UUID]) -> None:
        """Keeps lost members until the program reads the view. Ignored in strict mode, and for others than members."""
        if not self.strict:
            with self._lock:
                self._unpublished = self._unpublished.union(lost).intersection(self.view.living)

    def publish(self) -> None:
        """Takes members out that another group, or the thread that completes futures, has heard of."""
        if self._unpublished and hearing.published:
            with self._lock:
                lost, self._unpublished = self._unpublished, frozenset()
            self.lose(lost)

    def forget_unfinished(self) -> None:
        """Forgets the calls of this communicator that nobody awaited: it is closed, so they need nothing of other members."""
        for call in tuple(_unfinished):
            if call._losses.communicator is self.communicator:
                _unfinished.pop(call, None)

    def end_broken_calls(self, timeout: float) -> None:
        """Ends the calls of this communicator that nobody awaited, if a member that the guard names is lost."""
        if self.guard is None or not self.guard.lost():
            return
        for call in tuple(_unfinished):
            if call._losses.communicator is self.communicator:
                with contextlib.suppress(PCCLError):
                    request_cancel(self.communicator._handle, call._op)
                    call.wait(timeout)

    def broken(self, name: str, members: tuple[UUID, ...]) -> PeerLostError:
        """The error of a call of this group that ended since a member that the guard names was lost."""
        lost = self.guard.lost() if self.guard is not None else frozenset()
        ranks = tuple(rank for rank, member in enumerate(members) if member in lost)
        told = self.told(lost)
        text = ", ".join(peer_label(told[member][0], member) for member in sorted(lost)) or "a member"
        detail = f"{text} was lost, so this call was ended before the next Elastic.sync"
        return PeerLostError(name, detail, ranks, tuple(members[rank] for rank in ranks), told)


class Asked:
    """A sum of the program, which may divide it by a size from before a loss. All members know alike which call is one.

    `size` is the size that the caller has asked for before the call; 0: none. Else a copy of `memory` is kept.
    """

    def __init__(self, size: int, memory: torch.Tensor) -> None:
        self._size = size
        self._kept = (memory, memory.detach().clone()) if size else None
        self._stale: torch.Tensor | None = None
        self.op: CollectiveOp | None = None
        self.previous: Asked | None = None
        self._left = self._before = 0

    def begin(self, previous: Asked | None, founders: int, *, alone: bool) -> None:
        """Notes the sum of the program before this one; None: the group had `founders` members then."""
        self.previous, self._before, self._left = previous, founders, int(alone)

    def release(self) -> None:
        """Lets the tensors go: the next sum refers to this one."""
        self._kept = None

    def left(self) -> int:
        """How many members it has ended with; if with an error, the sum before it. 0: it has not ended."""
        chain = [self]  # of sums that have ended; a program may wait for the last of thousands first
        while chain[-1]._is_over() and chain[-1]._left == 0 and chain[-1].previous is not None:
            chain.append(chain[-1].previous)
        while chain and chain[-1]._note_end():
            chain.pop()
        return self._left

    def _is_over(self) -> bool:
        return self.op is None or self.op.done()

    def _note_end(self) -> int:
        if self._left == 0 and self._is_over() and (before := self.before()):
            succeeded = self.op is not None and self.op.c.result == Result.SUCCESS.value
            self._left = self.op.c.info.local_world_size if succeeded and self.op is not None else before
        return self._left

    def before(self) -> int:
        """How many members the sum before this one has ended with. 0: it has not ended."""
        if self.previous is not None and (left := self.previous.left()):
            self.previous, self._before = None, left
        return 0 if self.previous is not None else self._before

    def shrunk(self) -> bool:
        """Whether members were lost since the sum before this one. False as long as either has not ended."""
        return 0 < self.left() < self.before()

    def vote(self) -> torch.Tensor:
        """Returns whether the size is stale here. What members agree on takes its place, so it is made once."""
        self._stale = torch.tensor([self._size not in (0, self.left())], dtype=torch.uint8, device="cpu")
        return self._stale

    def refuse(self, losses: Losses, name: str) -> None:
        """Gives the memory its content back if a rank has a stale size, as agreed after a `vote`. PeerLostError."""
        if self._stale is None or not self._stale.item():
            return
        if self._kept is not None:
            memory, content = self._kept
            memory.detach().copy_(content)
        text = "the caller, on this rank or another, asked for the size of the group before the call, and may divide by it"
        ranks, members = losses.view.lost_of(self._before, losses._unpublished)
        detail = f"{text}; ask after the call, or use ReduceOp.AVG, and repeat the step"
        raise PeerLostError(name, detail, ranks, members, losses.told(members))


class CoreCall:
    """An op of the core."""

    def __init__(
        self,
        losses: Losses,
        agree: Callable[[str, int, torch.Tensor | None], CoreCall],
        name: str,
        number: int | None,
        group: Group,
        op: CollectiveOp,
        scaled: tuple[torch.Tensor, int] | None,
        again: Again | None,
        *,
        survivors: bool,
        asked: Asked | None = None,
    ) -> None:
        self._losses = losses
        self._agree = agree
        self._name = name
        self._number = number  # of the call; None: it concerns two members alone
        self._group = group
        self._members = losses.view.members  # whose ranks errors tell
        self._op = op
        self._rescale = None if scaled is None else Once(name, functools.partial(_rescale, *scaled))
        self._again = again
        self._asked = asked
        if asked is not None:
            asked.op = op
        self._agreement: CoreCall | None = None
        self._repeated: Call | None = None
        self._lost: frozenset[UUID] = frozenset()
        if again is not None or asked is not None or (self._agrees and not survivors) or losses.guard is not None:
            _unfinished[self] = None

    def wait(self, timeout: float | None) -> None:
        """Returns when the op has ended well, and the group knows whom it was ended with."""
        try:
            self._wait(timeout)
        except CollectiveTimeoutError:
            raise
        except BaseException:
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        _unfinished.pop(self, None)
        if self._asked is not None:
            self._asked.release()

    def _wait(self, timeout: float | None) -> None:
        try:
            info = self._op.wait(timeout) if not _unfinished else _wait_in_turns(self._op, timeout)
            if info.world_size != len(self._group.members):
                self._adopt(info)
        except errors.PeerLostError as error:
            self._recover(error, timeout)
        except PCCLError as error:
            if error.result is Result.CANCELLED and self._losses.guard is not None:
                raise self._losses.broken(self._name, self._members) from error
            raise translated(error, self._name, self._members, self._losses.names(self._members)) from error
        else:
            if self._rescale is not None:
                self._rescale(info)
            if self._asked is not None:
                self._ask(self._asked, timeout)

    def _ask(self, asked: Asked, timeout: float | None) -> None:
        """Agrees on whether a caller may divide a sum by a size from before a loss. PeerLostError: one may."""
        while asked.previous is not None and not asked.before():
            assert asked.previous.op is not None
            with contextlib.suppress(PCCLError):
                asked.previous.op.wait(timeout)
        if asked.shrunk():
            self.advance()
            assert self._agreement is not None
            self._agreement.wait(timeout)
            asked.refuse(self._losses, self._name)

    def _adopt(self, info: CollectiveInfo) -> None:
        """Takes out whom the op was ended without."""
        living = [part.peers for part in info.ranges] or [frozenset(self._losses.communicator.members)]
        self._lost = frozenset(self._group.members).difference(frozenset.intersection(*living))
        if self._number is not None:
            self._losses.lose(self._lost)

    def _recover(self, error: errors.PeerLostError, timeout: float | None) -> None:
        """Makes the call again, or raises its error when all members know who was lost. May be repeated after a timeout."""
        lost = frozenset(self._group.members[place] for place in error.ranks)
        if self._agrees:
            self.advance()
            assert self._agreement is not None
            self._agreement.wait(timeout)
            lost = self._agreement._lost
            self._losses.lose(lost)
            self.advance()
            if self._repeated is not None:
                self._repeated.wait(timeout)
                return
        ranks = tuple(rank for rank, member in enumerate(self._members) if member in lost)
        members = tuple(self._members[rank] for rank in ranks)
        raise PeerLostError(self._name, error.detail, ranks, members, self._losses.told(members)) from None

    @property
    def origin(self) -> Origin | None:
        return None if self._number is None else (self._losses.seed, self._number)

    def done(self) -> bool:
        """Whether the op has ended. One that is made again ends with its repetition."""
        self._end_if_broken()
        if not self._op.done():  # read once: an op that ends in between may need the agreement below
            return False
        if not (self._agrees and self._cut_short):
            return True
        try:
            self.advance()
        except PCCLError:  # which `wait` raises
            return True
        last = self._repeated if self._again is not None else self._agreement
        return last is not None and last.done()

    @property
    def _agrees(self) -> bool:
        """Whether members have to agree on who was lost in it, if it ends with an error."""
        return self._number is not None and not self._losses.strict

    @property
    def _cut_short(self) -> bool:
        return self._is_lost or (self._asked is not None and self._asked.shrunk())

    @property
    def _is_lost(self) -> bool:
        return bool(self._op.c.result == Result.RANK_CONNECTION_LOST.value)

    def advance(self) -> None:
        """Begins what follows after a loss, as far as it can be without waiting: the agreement, and the repetition."""
        self._end_if_broken()
        with _advancing:
            if self._agreement is None and self._number is not None and self._agrees and self._op.done() and self._cut_short:
                stale = None if self._is_lost or self._asked is None else self._asked.vote()
                self._agreement = self._agree(self._name, self._number, stale)
            agreement = self._agreement
            if self._again is not None and agreement is not None and self._repeated is None and agreement.done():
                agreement.wait(None)
                left = tuple(member for member in self._group.members if member not in agreement._lost)
                assert self._number is not None
                self._repeated = self._again(left, self._number + _AGAIN)
                if self._repeated is None:
                    self._again = None

    def _end_if_broken(self) -> None:
        """Asks to cancel the op if the step is broken; repeated, it has no effect."""
        guard = self._losses.guard
        if guard is not None and not self._op.done():
            with contextlib.suppress(PCCLError):  # the communicator is closed
                if guard.is_broken():
                    request_cancel(self._losses.communicator._handle, self._op)


_unfinished: dict[CoreCall, None] = {}
"""Calls that are not awaited yet, and need more of all members if they end with a loss, or that a guard ends. One table for all
groups of the process: members may wait in another order for calls of groups that have communicators of their own."""

_advancing = threading.RLock()
TURN_SECONDS = 0.05
"""How long one op is waited for before it is looked whether another one has ended."""


def _wait_in_turns(op: CollectiveOp, timeout: float | None) -> CollectiveInfo:
    """Waits for an op, and goes on with others: members may wait for them in another order."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            return op.wait(min(TURN_SECONDS, max(0.0, left)))
        except PCCLTimeoutError:
            if left <= 0:
                raise
        for call in tuple(_unfinished):
            with contextlib.suppress(PCCLError):  # which its own wait raises
                call.advance()


def _rescale(tensor: torch.Tensor, divisor: int, info: CollectiveInfo) -> None:
    """Multiplies a sum by `divisor` over the number of its contributors, range by range."""
    flat = tensor.detach().view(-1)
    whole = [(0, len(flat), info.world_size)]
    for begin, end, peers in [(part.start, part.stop, len(part.peers)) for part in info.ranges] or whole:
        if peers not in (0, divisor):
            scale(flat[begin:end], divisor, peers)
