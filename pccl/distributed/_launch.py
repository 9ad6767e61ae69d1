"""The ops of one process group: their tags, their launch over the communicator of the process, and their end.

**Who takes part.** Kinds whose meaning survives a loss (all-reduce, reduce, broadcast, barrier) are launched over the founders of
the group, so that a member that has not heard of a loss yet and one that has launch the same op; the core goes on among the
survivors. All other kinds are launched over the living members, whose ranks their counts refer to.

**Tags.** All members make the same calls of a group in the same order, so the number of a call names it. The tag is this number,
mixed with a hash of the group. What a group calls alone (its one member is left) is completed here, without the core.

**Who is lost.** An op that goes on among the survivors ends with the same set of them everywhere, and that set is what the view
adopts. One that ends with an error tells each member what it knows by then, which may differ after a second loss: the members
agree by a barrier of the survivors before they raise it, so that their next call has the same ranks.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import torch

import pccl
from pccl._collectives import Collective
from pccl._errors import PCCLError
from pccl.distributed._errors import PeerLostError, translated
from pccl.distributed._view import View

if TYPE_CHECKING:
    from pccl._collectives import CollectiveInfo, CollectiveOp, Group

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
"""The odd number nearest to 2**64 divided by the golden ratio: its multiples are far apart, and no two are alike."""

_AGAIN, _AGREE = 1 << 56, 1 << 48
"""Between the number of a call and those of its repetition, and of the barrier after its loss."""

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


class Ended:
    """A call that was completed where it was made."""

    def wait(self, timeout: float | None) -> None:
        """Returns."""

    def done(self) -> bool:
        """True."""
        return True


ENDED = Ended()


class CoreCall:
    """An op of the core."""

    __slots__ = ("_again", "_group", "_launcher", "_name", "_number", "_op", "_scaled")

    def __init__(
        self,
        launcher: Launcher,
        name: str,
        number: int | None,
        group: Group,
        op: CollectiveOp,
        scaled: tuple[torch.Tensor, int] | None,
        again: Callable[[], Call] | None,
    ) -> None:
        self._launcher = launcher
        self._name = name
        self._number = number  # of the call; None: it concerns two members alone
        self._group = group
        self._op: Any = op
        self._scaled = scaled
        self._again = again

    def wait(self, timeout: float | None) -> None:
        """Returns when the op has ended well, and the group knows whom it was ended with."""
        try:
            info = self._op.wait(timeout)
        except pccl.PeerLostError as error:
            self._lost(error, timeout)
            self._op.wait(timeout)
            return
        except PCCLError as error:
            raise translated(error, self._name, self._group.members) from error
        if info.contributors != len(self._group.members):
            living = [part.peers for part in info.ranges] or [frozenset(self._launcher.communicator.members)]
            self._launcher.lose(set(self._group.members).difference(frozenset.intersection(*living)))
            if self._scaled is not None:
                _rescale(*self._scaled, info)

    def _lost(self, error: pccl.PeerLostError, timeout: float | None) -> None:
        """Makes the call again if it can be, else raises."""
        launcher, listed = self._launcher, self._group.members
        ranks = error.ranks
        if self._number is not None and not launcher.strict:
            launcher.launch(Collective.BARRIER, self._name, number=self._number + _AGREE).wait(timeout)
            ranks = tuple(rank for rank, member in enumerate(listed) if member not in launcher.view.members)
        members = tuple(listed[rank] for rank in ranks)
        if self._again is None:
            raise PeerLostError(self._name, error.detail, ranks, members) from None
        self._op, self._again = self._again(), None

    def done(self) -> bool:
        """Whether the op has ended. One that has to be made again has not."""
        return bool(self._op.done()) and self._again is None


def _rescale(tensor: torch.Tensor, divisor: int, info: CollectiveInfo) -> None:
    """Makes an average of what was divided by `divisor` before it was summed over the contributors."""
    flat = tensor.detach().view(-1)
    for part in info.ranges:
        flat[part.start : part.stop].mul_(divisor / len(part.peers))


class Launcher:
    """What one group launches."""

    def __init__(self, communicator: pccl.Communicator, name: str, view: View, *, strict: bool) -> None:
        self.communicator = communicator
        self.name = name
        self.view = view
        self.strict = strict
        self.on_loss: Callable[[], None] | None = None
        self._pairs: dict[tuple[UUID, UUID], Group] = {}
        self._sent: dict[tuple[UUID, UUID, int], int] = {}
        self.begin(0)

    def begin(self, number: int) -> None:
        """Starts all counts anew, from a number that all members give alike: after they have admitted a newcomer."""
        self._seed = digest(self.name, number, self.view.founders)
        self._number = 0
        self._sent.clear()
        self._founders: Group | None = None
        self._living: Group | None = None

    def lose(self, lost: Collection[UUID]) -> None:
        """Takes members out that an op was ended without."""
        if not self.strict and self.view.lose(lost):
            self._living = None
            if self.on_loss is not None:
                self.on_loss()

    @property
    def seed(self) -> int:
        """What all members have alike since they last began anew."""
        return self._seed

    @property
    def number(self) -> int:
        """The number of the last call."""
        return self._number

    def next_number(self) -> int:
        """The number of a new call."""
        self._number += 1
        return self._number

    def launch(
        self,
        kind: Collective,
        name: str,
        *,
        number: int | None = None,
        root: int = 0,
        scaled: tuple[torch.Tensor, int] | None = None,
        again: Callable[[], Call] | None = None,
        **arguments: Any,
    ) -> Call:
        """Begins an op. `root` is a rank of the view; `scaled`, `again`: see `CoreCall`; the rest is what the core takes."""
        number = self.next_number() if number is None else number
        view = self.view
        if view.size == 1:
            if scaled is not None and scaled[1] != 1:
                scaled[0].detach().mul_(scaled[1])
            return _alone(arguments)
        if kind in _ELASTIC:
            group = self._founders
            if group is None:
                group = self._founders = self._group(view.founders)
            root = view.places[view.members[root]]
        else:
            group = self._living
            if group is None:
                group = self._living = self._group(view.members)
        tag = self._seed ^ (number * _SPREAD & _MASK)
        survivors = kind in _ELASTIC and not self.strict
        return self._begin(name, number, group, scaled, again, kind, tag=tag, root=root, survivors=survivors, **arguments)

    def launch_pair(self, name: str, source: UUID, target: UUID, tag: int, **arguments: Any) -> Call:
        """Begins a send from one member to another, or the receive of one."""
        pair = source, target
        group = self._pairs.get(pair)
        if group is None:
            group = self._pairs[pair] = self._group(pair)
        counted = self._sent[*pair, tag] = self._sent.get((*pair, tag), 0) + 1
        core_tag = self.pair_tag(source, target, tag, counted)
        return self._begin(name, None, group, None, None, Collective.SEND, tag=core_tag, root=0, **arguments)

    def pair_tag(self, source: UUID, target: UUID, tag: int, counted: int | None = None) -> int:
        """The core's tag of the next send of a user's tag between two members, or of that with the given count."""
        if counted is None:
            counted = self._sent.get((source, target, tag), 0) + 1
        return digest(self._seed, source.hex, target.hex, tag, counted)

    def posted(self, source: UUID, tag: int) -> bool:
        """Whether a member has sent something under the user's tag that was not received yet."""
        return self.communicator.posted(self.pair_tag(source, self.view.own, tag), source)

    def _group(self, members: tuple[UUID, ...]) -> Group:
        return self.communicator.group(members)

    def _begin(
        self,
        name: str,
        number: int | None,
        group: Group,
        scaled: tuple[torch.Tensor, int] | None,
        again: Callable[[], Call] | None,
        kind: Collective,
        **arguments: Any,
    ) -> Call:
        try:
            op = self.communicator.launch(kind, group=group, **arguments)
        except PCCLError as error:
            raise translated(error, name, group.members) from error
        return CoreCall(self, name, number, group, op, scaled, again)


def again_number(number: int) -> int:
    """The number of the repetition of a call."""
    return number + _AGAIN


def _alone(arguments: dict[str, Any]) -> Call:
    """Completes an op of a group of one: its result is its input."""
    send, recv = arguments.get("send", 0), arguments.get("recv", 0)
    if send and recv and send != recv:
        counts = arguments.get("send_counts") or arguments.get("recv_counts") or (arguments["count"],)
        ctypes.memmove(recv, send, counts[0] * arguments["dtype"].itemsize)
    return ENDED
