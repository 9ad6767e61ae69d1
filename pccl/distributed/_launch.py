"""The ops of one process group: their tags, their launch over the communicator of the process, and their end.

**Who takes part.** Kinds whose meaning survives a loss (all-reduce, reduce, broadcast, barrier) are launched over the founders of
the group, so that a member that has not heard of a loss yet and one that has launch the same op; the core goes on among the
survivors. All other kinds are launched over the living members, whose ranks their counts refer to.

**Fixed membership.** Ranks and sizes stay after a loss. Sums are scaled by the size over the number of contributors. Calls over
the living members whose result can do without the lost ones are repeated among the survivors, as `again` says. All members know
the lost ranks alike, so all of them take the same decision at the same call.

**Tags.** All members make the same calls of a group in the same order, so the number of a call names it. The tag is this number,
mixed with a hash of the group. What a group calls alone (its one member is left) is completed here, without the core.

**Who is lost.** An op that goes on among the survivors ends with the same set of them everywhere, and that set is what the view
adopts. One that ends with an error tells each member what it knows by then, which may differ after a second loss: the members
agree by a barrier of the survivors, named after the call, before they raise it, so that their next call has the same ranks. While
a member waits for one call it begins the barriers of others that were cut short, since members may wait in different orders.

Calls in callbacks of futures are named by the call whose end they follow (`_futures`): their place among the program's calls
differs between members.

**When the view changes.** At a wait of the program, which is at the same call on all members. The thread that completes futures
runs at its own pace: what it hears is kept until the program reads the size or its rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import torch

from pccl import _errors
from pccl._collectives import Collective
from pccl._communicator import Communicator
from pccl._enums import DataType
from pccl._errors import PCCLError, PCCLTimeoutError, Result
from pccl._names import name_of, peer_label
from pccl._operations import request_cancel
from pccl.distributed._errors import CollectiveError, CollectiveTimeoutError, PeerLostError, translated
from pccl.distributed._tensors import Finish, scale, stream_of, synchronize
from pccl.distributed._view import View

if TYPE_CHECKING:
    from pccl._collectives import CollectiveOp
    from pccl._groups import Group
    from pccl._results import CollectiveInfo

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
"""The odd number nearest to 2**64 divided by the golden ratio: its multiples are far apart, and no two are alike."""

_AGAIN, _AGREE = 1 << 56, 1 << 48
"""Between the number of a call and those of its repetition, and of the barrier after its loss."""

_POLL_SECONDS = 0.0001
"""Between two looks for what a call waits for before it is launched; doubled up to the next."""

_POLL_MOST_SECONDS = 0.005

_MOST = 4096 - 64
"""How many calls may be in flight: fewer than the core has room for, so that the other members can be told of a refusal."""

_COUNTED_TAGS = 1024
"""Messages are counted for tags below this. Those of a larger tag are launched one after another, so that no table grows."""

_ELASTIC = frozenset((Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER))


def digest(*parts: object) -> int:
    """A 64-bit hash that is the same in every process."""
    hashed = hashlib.blake2b(repr(parts).encode(), digest_size=8)
    return int.from_bytes(hashed.digest(), "little")


class Call(Protocol):
    """Something under way that a `Work` waits for."""

    def wait(self, timeout: float | None) -> None:
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


class Followed:
    """A call with something more to do at its end, once."""

    def __init__(self, call: Call, finish: Finish) -> None:
        self._call = call
        self._finish: Finish | None = finish
        self.done = call.done

    def wait(self, timeout: float | None) -> None:
        """Waits for the call, and does the rest."""
        self._call.wait(timeout)
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    @property
    def origin(self) -> Origin | None:
        """That of the call."""
        return self._call.origin


def finished(call: Call, finish: Finish | None) -> Call:
    """The call that ends with `finish`; None: nothing is left to do."""
    return call if finish is None else Followed(call, finish)


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


_making = _Making()


@contextlib.contextmanager
def made_under(origin: Origin | None) -> Iterator[None]:
    """Names calls by their origin; None: they are the program's."""
    before = _making.origin, _making.calls
    _making.origin, _making.calls = origin, 0
    try:
        yield
    finally:
        _making.origin, _making.calls = before


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
        """Those of the members who are lost."""
        return self.members.difference(self._communicator.members)

    def is_broken(self) -> bool:
        """Whether one of the members is lost, and another one has ended the step."""
        lost = self.lost()
        return bool(lost) and any(self._communicator.posted(tag, member) for member in self.members - lost for tag in self.tags)


class CoreCall:
    """An op of the core."""

    __slots__ = (
        "_again",
        "_agreement",
        "_group",
        "_launcher",
        "_lost",
        "_members",
        "_name",
        "_number",
        "_op",
        "_repeated",
        "_scaled",
    )

    def __init__(
        self,
        launcher: Launcher,
        name: str,
        number: int | None,
        group: Group,
        op: CollectiveOp,
        scaled: tuple[torch.Tensor, int] | None,
        again: Again | None,
        *,
        survivors: bool,
    ) -> None:
        self._launcher = launcher
        self._name = name
        self._number = number  # of the call; None: it concerns two members alone
        self._group = group
        self._members = launcher.view.members  # whose ranks errors tell
        self._op = op
        self._scaled = scaled
        self._again = again
        self._agreement: CoreCall | None = None
        self._repeated: Call | None = None
        self._lost: frozenset[UUID] = frozenset()
        if again is not None or (self._agrees and not survivors) or launcher.guard is not None:
            _unfinished[self] = None

    def wait(self, timeout: float | None) -> None:
        """Returns when the op has ended well, and the group knows whom it was ended with."""
        try:
            self._wait(timeout)
        except CollectiveTimeoutError:
            raise
        except BaseException:
            _unfinished.pop(self, None)
            raise
        _unfinished.pop(self, None)

    def _wait(self, timeout: float | None) -> None:
        try:
            info = self._op.wait(timeout) if not _unfinished else _wait_in_turns(self._op, timeout)
            if info.world_size != len(self._group.members):
                self._adopt(info)
            if self._scaled is not None:
                _rescale(*self._scaled, info)
        except _errors.PeerLostError as error:
            self._recover(error, timeout)
        except PCCLError as error:
            if error.result is Result.CANCELLED and self._launcher.guard is not None:
                raise self._launcher.broken(self._name, self._members) from error
            raise translated(error, self._name, self._members, self._launcher.names(self._members)) from error

    def _adopt(self, info: CollectiveInfo) -> None:
        """Takes out whom the op was ended without."""
        living = [part.peers for part in info.ranges] or [frozenset(self._launcher.communicator.members)]
        self._lost = frozenset(self._group.members).difference(frozenset.intersection(*living))
        if self._number is not None:
            self._launcher.lose(self._lost)

    def _recover(self, error: _errors.PeerLostError, timeout: float | None) -> None:
        """Makes the call again, or raises its error when all members know who was lost. May be repeated after a timeout."""
        lost = frozenset(self._group.members[place] for place in error.ranks)
        if self._agrees:
            self.advance()
            assert self._agreement is not None
            self._agreement.wait(timeout)
            lost = self._agreement._lost
            self._launcher.lose(lost)
            self.advance()
            if self._repeated is not None:
                self._repeated.wait(timeout)
                return
        ranks = tuple(rank for rank, member in enumerate(self._members) if member in lost)
        members = tuple(self._members[rank] for rank in ranks)
        raise PeerLostError(self._name, error.detail, ranks, members, self._launcher.names(members)) from None

    @property
    def origin(self) -> Origin | None:
        """That of calls in callbacks of its future."""
        return None if self._number is None else (self._launcher.seed, self._number)

    def done(self) -> bool:
        """Whether the op has ended. One that is made again ends with its repetition."""
        self._end_if_broken()
        if not self._op.done() or not (self._agrees and self._cut_short):
            return bool(self._op.done())
        self.advance()
        last = self._repeated if self._again is not None else self._agreement
        return last is not None and last.done()

    @property
    def _agrees(self) -> bool:
        """Whether members have to agree on who was lost in it, if it ends with an error."""
        return self._number is not None and not self._launcher.strict

    @property
    def _cut_short(self) -> bool:
        return bool(self._op.c.result == Result.RANK_CONNECTION_LOST.value)

    def advance(self) -> None:
        """Begins what follows after a loss, as far as it can be without waiting: the agreement, and the repetition."""
        self._end_if_broken()
        with _advancing:
            if self._agreement is None and self._number is not None and self._agrees and self._op.done() and self._cut_short:
                self._agreement = self._launcher.agree(self._name, self._number)
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
        guard = self._launcher.guard
        if guard is not None and not self._op.done():
            with contextlib.suppress(PCCLError):  # the communicator is closed
                if guard.is_broken():
                    request_cancel(self._launcher.communicator._handle, self._op)


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


def _divided_alike(tensor: torch.Tensor, divisor: int, founders: int) -> tuple[torch.Tensor, int]:
    """Makes of what was divided by `divisor` what is divided by the number of founders, which no loss changes."""
    if divisor != founders:
        tensor.detach().mul_(divisor / founders)
    return tensor, founders


class Launcher:
    """What one group launches."""

    def __init__(self, communicator: Communicator, name: str, view: View, *, strict: bool) -> None:
        self.communicator = communicator
        self.name = name
        self.view = view
        self.strict = strict
        self.guard: Guard | None = None
        self.stands_in = False
        """With fixed membership: whether a living rank stands in for a lost one, whoever calls."""
        self.apart = False
        """Whether the calls of this member end by themselves, as if all others were lost."""
        self.on_loss: Callable[[Collection[UUID]], None] | None = None
        self.adopt: Callable[[Call], None] = lambda _: None
        """Takes over a call that nobody waits for."""
        self._unpublished: frozenset[UUID] = frozenset()
        self._lock = threading.RLock()  # of the losses above, and of the counts of messages
        self._pairs: dict[tuple[UUID, UUID], Group] = {}
        self._sent: dict[tuple[UUID, UUID, int], int] = {}
        self._last: dict[tuple[UUID, UUID, int], Call] = {}
        """The last message of each pair and larger tag that is under way."""
        self._sweep_at = _COUNTED_TAGS
        self.begin(0)

    def begin(self, number: int) -> None:
        """Starts all counts anew, from a number that all members give alike: after they have admitted a newcomer."""
        self._seed = digest(self.name, number, self.view.founders)
        self._number = 0
        self._numbers = itertools.count(1)  # whose `next` no other thread can come between
        self._unpublished = frozenset()
        self._sent.clear()
        self._last.clear()
        self._founders: Group | None = None
        self._living: Group | None = None

    def names(self, members: Iterable[UUID]) -> dict[UUID, str]:
        """What logs call these members, the lost ones too; "" for one that is not known."""
        return {member: name_of(self.communicator._handle, member) for member in members}

    def lose(self, lost: Collection[UUID]) -> None:
        """Takes members out that an op was ended without: at once, or when the view is read."""
        if self.strict:
            return
        if not hearing.published:
            if hearing.kept:
                self.hear(lost)
        elif self.view.lose(lost):
            self._living = None
            if self.on_loss is not None:
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
            if call._launcher.communicator is self.communicator:
                _unfinished.pop(call, None)

    def end_broken_calls(self, timeout: float) -> None:
        """Ends the calls of this communicator that nobody awaited, if a member that the guard names is lost."""
        if self.guard is None or not self.guard.lost():
            return
        for call in tuple(_unfinished):
            if call._launcher.communicator is self.communicator:
                with contextlib.suppress(PCCLError):
                    request_cancel(self.communicator._handle, call._op)
                    call.wait(timeout)

    def broken(self, name: str, members: tuple[UUID, ...]) -> PeerLostError:
        """The error of a call of this group that ended since a member that the guard names was lost."""
        lost = self.guard.lost() if self.guard is not None else frozenset()
        ranks = tuple(rank for rank, member in enumerate(members) if member in lost)
        names = self.names(lost)
        text = ", ".join(peer_label(names[member], member) for member in sorted(lost)) or "a member"
        detail = f"{text} was lost, so this call was ended before the next Elastic.sync"
        return PeerLostError(name, detail, ranks, tuple(members[rank] for rank in ranks), names)

    def agree(self, name: str, number: int) -> CoreCall:
        """Begins to agree on who was lost in a call."""
        tag = self._tag(number + _AGREE)
        return self._begin(name, None, self._all(), None, None, Collective.BARRIER, tag=tag, survivors=True)

    @property
    def seed(self) -> int:
        """What all members have alike since they last began anew."""
        return self._seed

    @property
    def number(self) -> int:
        """The number of the last call."""
        return self._number

    def plan(self, calls: int) -> int:
        """Notes how many calls the method that runs is to make. Returns how many were numbered before."""
        _making.planned = calls
        return self._number if _making.origin is None else _making.calls

    def unmade(self, before: int) -> int:
        """Returns how many of the planned calls have no number yet, given what `plan` returned first."""
        made = (self._number if _making.origin is None else _making.calls) - before
        return max(0, _making.planned - made)

    def next_number(self) -> int:
        """The number of a new call."""
        if _making.origin is not None:
            _making.calls += 1
            return digest(*_making.origin, _making.calls)
        self._number = number = next(self._numbers)
        return number

    def launch(
        self,
        kind: Collective,
        name: str,
        *,
        number: int | None = None,
        root: int | None = None,
        root_place: int | None = None,
        scaled: tuple[torch.Tensor, int] | None = None,
        again: Again | None = None,
        among: tuple[UUID, ...] | None = None,
        whole: bool = False,
        **arguments: Any,
    ) -> Call:
        """Begins an op; the rest of the arguments is what the core takes.

        What is at a GPU begins after the current stream of `keep`, the tensors, unless `stream` names another.
        `root` is a rank of the view, `root_place` a place among the founders. `scaled`: what was divided for a sum, and by what.
        `again` makes the call again among those who are left. `among`: the living members, where the view does not know them yet.
        `whole`: a loss is an error, whatever the kind.
        """
        number = self.next_number() if number is None else number
        view = self.view
        living = view.living if among is None else among
        if len(living) == 1:
            if scaled is not None and scaled[1] != 1:
                scale(scaled[0].detach(), scaled[1], 1)
            return _alone(arguments)
        survivors = kind in _ELASTIC and not self.strict and not whole
        tag = self._tag(number)
        group = self._all() if kind in _ELASTIC else self._of_living() if living is view.living else self._group(living)
        try:
            if root_place is None:
                places = view.founders if kind in _ELASTIC else living
                root_place = 0 if root is None else places.index(view.members[root])
            if scaled is not None and not view.fixed:
                scaled = _divided_alike(*scaled, len(view.founders))
            return self._begin(
                name, number, group, scaled, again, kind, tag=tag, root=root_place, survivors=survivors, **arguments
            )
        except Exception:
            self._announce(name, group, tag, survivors=survivors)
            raise

    def _of_living(self) -> Group:
        group = self._living
        if group is None:
            group = self._living = self._group(self.view.living)
        return group

    def launch_pair(self, name: str, source: UUID, target: UUID, tag: int, **arguments: Any) -> Call:
        """Begins a send from one member to another, or the receive of one."""
        pair = source, target
        group = self._pairs.get(pair)
        if group is None:
            group = self._pairs[pair] = self._group(pair)
        if 0 <= tag < _COUNTED_TAGS:
            with self._lock:
                counted = self._sent[*pair, tag] = self._sent.get((*pair, tag), 0) + 1
            return self._launch_pair(name, group, self.pair_tag(*pair, tag, counted), arguments)
        begin = functools.partial(self._launch_pair, name, group, self.pair_tag(*pair, tag), arguments)
        with self._lock:
            before = self._last.get((*pair, tag))
            call = begin() if before is None or before.done() else AfterAnother(name, before, begin)
            self._last[*pair, tag] = call
            if len(self._last) > self._sweep_at:
                self._last = {key: last for key, last in self._last.items() if not last.done()}
                self._sweep_at = 2 * len(self._last) + _COUNTED_TAGS
        return call

    def _launch_pair(self, name: str, group: Group, core_tag: int, arguments: dict[str, Any]) -> Call:
        kind = arguments.pop("kind", Collective.SEND)
        try:
            return self._begin(name, None, group, None, None, kind, tag=core_tag, root=0, **arguments)
        except Exception:
            if kind is Collective.SEND:
                self._announce(name, group, core_tag)
            raise

    def refuse_pair(self, name: str, source: UUID, target: UUID, tag: int) -> None:
        """Lets the other member of a pair know that a message fails before it is launched here."""
        with contextlib.suppress(PCCLError):
            options: dict[str, Any] = {"kind": Collective.BARRIER, "dtype": DataType.UINT8}
            call = self.launch_pair(f"{name}, refused", source, target, tag, **options)
            self.adopt(call)

    def pair_tag(self, source: UUID, target: UUID, tag: int, counted: int | None = None) -> int:
        """The core's tag of the next send of a user's tag between two members, or of that with the given count."""
        if not 0 <= tag < _COUNTED_TAGS:
            counted = 0
        elif counted is None:
            counted = self._sent.get((source, target, tag), 0) + 1
        return digest(self._seed, source.hex, target.hex, tag, counted)

    def posted(self, source: UUID, tag: int) -> bool:
        """Whether a member has sent something under the user's tag that was not received yet."""
        return self.communicator.posted(self.pair_tag(source, self.view.own, tag), source)

    def _group(self, members: tuple[UUID, ...]) -> Group:
        return self.communicator.group(members)

    def _all(self) -> Group:
        group = self._founders
        if group is None:
            group = self._founders = self._group(self.view.founders)
        return group

    def _tag(self, number: int) -> int:
        return self._seed ^ (number * _SPREAD & _MASK)

    def _begin(
        self,
        name: str,
        number: int | None,
        group: Group,
        scaled: tuple[torch.Tensor, int] | None,
        again: Again | None,
        kind: Collective,
        *,
        survivors: bool = False,
        **arguments: Any,
    ) -> CoreCall:
        arguments.setdefault("stream", stream_of(arguments.get("keep")))
        if len(self.communicator._live_ops) >= _MOST and kind is not Collective.BARRIER:
            text = f"{_MOST} calls are in flight, which is the limit; wait for some of them first"
            raise CollectiveError(Result.INVALID_USAGE, name, text)
        try:
            op = self.communicator._prepare(kind, group=group, survivors=survivors, **arguments)
            op.launch()
        except PCCLError as error:
            raise translated(error, name, self.view.members, self.names(self.view.members)) from error
        return CoreCall(self, name, number, group, op, scaled, again, survivors=survivors)

    def _announce(self, name: str, group: Group, tag: int, *, survivors: bool = False) -> None:
        """Lets the other members know that a call failed here: they get the error of a call that differs."""
        with contextlib.suppress(PCCLError):
            options: dict[str, Any] = {"tag": tag, "survivors": survivors, "dtype": DataType.UINT8}
            call = self._begin(f"{name}, refused", None, group, None, None, Collective.BARRIER, **options)
            self.adopt(call)


def _alone(arguments: dict[str, Any]) -> Call:
    """Completes an op of a group of one: its result is its input."""
    send, recv, tensors = arguments.get("send", 0), arguments.get("recv", 0), arguments.get("keep")
    copies = send and recv and send != recv
    if copies and isinstance(tensors, tuple) and tensors[0].is_cuda:
        source, target = (tensor.detach().view(-1) for tensor in tensors)
        target[: source.numel()].copy_(source)
    elif copies:
        counts = arguments.get("send_counts") or arguments.get("recv_counts") or (arguments["count"],)
        ctypes.memmove(recv, send, counts[0] * arguments["dtype"].itemsize)
    synchronize(tensors)
    return ENDED
