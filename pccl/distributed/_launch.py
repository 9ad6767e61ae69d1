"""The ops of one process group: their tags, and their launch over the communicator of the process.

**Who takes part.** Kinds whose meaning survives a loss (all-reduce, reduce, broadcast, barrier) are launched over the founders of
the group, so that a member that has not heard of a loss yet and one that has launch the same op; the core goes on among the
survivors. All other kinds are launched over the living members, whose ranks their counts refer to.

**Fixed membership.** Ranks and sizes stay after a loss. Sums are scaled by the size over the number of contributors. Calls over
the living members whose result can do without the lost ones are repeated among the survivors, as `again` says. All members know
the lost ranks alike, so all of them take the same decision at the same call.

**Tags.** All members make the same calls of a group in the same order, so the number of a call names it. The tag is this number,
mixed with a hash of the group. What a group calls alone (its one member is left) is completed here, without the core.

Calls in callbacks of futures are named by the call whose end they follow (`_work`): their place among the program's calls
differs between members.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import torch

from pccl._core.enums import DataType, ReduceOp
from pccl._core.errors import PCCLError, Result
from pccl._core.gpu import synchronize
from pccl._ops.collectives import Collective
from pccl._peer.communicator import Communicator
from pccl.distributed._calls import ENDED, Again, Asked, Call, CoreCall, Losses, making
from pccl.distributed._errors import CollectiveError, translated
from pccl.distributed._tensors import scale, stream_of
from pccl.distributed._view import View

if TYPE_CHECKING:
    from pccl._core.groups import Group

_MASK = (1 << 64) - 1
_SPREAD = 0x9E3779B97F4A7C15
"""The odd number nearest to 2**64 divided by the golden ratio: its multiples are far apart, and no two are alike."""

_AGREE = 1 << 48
"""Between the number of a call and that of the barrier after its loss."""

_MOST = 4096 - 64
"""How many calls may be in flight: fewer than the core has room for, so that the other members can be told of a refusal."""

_ELASTIC = frozenset((Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER))


def digest(*parts: object) -> int:
    """A 64-bit hash that is the same in every process."""
    hashed = hashlib.blake2b(repr(parts).encode(), digest_size=8)
    return int.from_bytes(hashed.digest(), "little")


class Launcher(Losses):
    """What one group launches."""

    def __init__(self, communicator: Communicator, name: str, view: View, *, strict: bool) -> None:
        super().__init__(communicator, view, strict=strict)
        self.name = name
        self.stands_in = False
        """With fixed membership: whether a living rank stands in for a lost one, whoever calls."""
        self.apart = False
        """Whether the calls of this member end by themselves, as if all others were lost."""
        self.adopt: Callable[[Call], None] = lambda _: None
        """Takes over a call that nobody waits for."""
        self.begin(0)

    def begin(self, number: int) -> None:
        """Starts all counts anew, from a number that all members give alike: after they have admitted a newcomer."""
        self.seed = digest(self.name, number, self.view.founders)
        self._number = 0
        self._numbers = itertools.count(1)  # whose `next` no other thread can come between
        self._unpublished = frozenset()
        self._groups: list[tuple[tuple[UUID, ...], Group]] = []
        self._last_sum: Asked | None = None

    def _agree(self, name: str, number: int, stale: torch.Tensor | None) -> CoreCall:
        """Begins to agree on who was lost in a call, and on the greatest `stale`, which replaces it."""
        options: dict[str, Any] = {"tag": self._tag(number + _AGREE), "survivors": True}
        kind, everybody = Collective.BARRIER, self._group(self.view.founders)
        if stale is not None:
            kind, address = Collective.ALL_REDUCE, stale.data_ptr()
            options.update(send=address, recv=address, count=1, dtype=DataType.UINT8, op=ReduceOp.MAX, keep=stale)
        return self._begin(name, None, everybody, None, None, kind, **options)

    @property
    def number(self) -> int:
        return self._number

    def plan(self, calls: int) -> int:
        """Notes how many calls the method that runs is to make. Returns how many were numbered before."""
        making.planned = calls
        return self._number if making.origin is None else making.calls

    def unmade(self, before: int) -> int:
        """Returns how many of the planned calls have no number yet, given what `plan` returned first."""
        made = (self._number if making.origin is None else making.calls) - before
        return max(0, making.planned - made)

    def next_number(self) -> int:
        if making.origin is not None:
            making.calls += 1
            return digest(*making.origin, making.calls)
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
        asked: Asked | None = None,
        equal: bool = False,
        **arguments: Any,
    ) -> Call:
        """Begins an op; the rest of the arguments is what the core takes.

        What is at a GPU begins after the current stream of `keep`, the tensors, unless `stream` names another.
        `root` is a rank of the view, `root_place` a place among the founders. `scaled`: what was divided for a sum, and by what.
        `again` makes the call again among those who are left. `among`: the living members, where the view does not know them yet.
        `whole`: a loss is an error, whatever the kind. `asked`: it is a sum of the program.
        `equal`: all members divide by the same size.
        """
        number = self.next_number() if number is None else number
        view = self.view
        living = view.living if among is None else among
        if making.origin is not None or self.strict:
            asked = None
        if asked is not None:
            asked.begin(self._last_sum, len(view.founders), alone=len(living) == 1)
            self._last_sum = asked
        if len(living) == 1:
            if asked is not None:
                if asked.shrunk():
                    asked.vote()
                    asked.refuse(self, name)
                asked.release()
            if scaled is not None and scaled[1] != 1:
                scale(scaled[0].detach(), scaled[1], 1)
            return _alone(arguments)
        survivors = kind in _ELASTIC and not self.strict and not whole
        tag = self._tag(number)
        places = view.founders if kind in _ELASTIC and not whole else living
        group = self._group(places)
        try:
            if root_place is None:
                root_place = 0 if root is None else places.index(view.members[root])
            if scaled is not None and not view.fixed and not equal:
                founders = len(view.founders)  # which no loss changes: what was divided by another number is divided by it
                if scaled[1] != founders:
                    scaled[0].detach().mul_(scaled[1] / founders)
                scaled = scaled[0], founders
            return self._begin(
                name, number, group, scaled, again, kind, asked, tag=tag, root=root_place, survivors=survivors, **arguments
            )
        except Exception:
            self._announce(name, group, tag, survivors=survivors)
            raise

    def launch_message(self, kind: Collective, name: str, group: Group, tag: int, **arguments: Any) -> Call:
        """Begins an op of two members, which has a tag of the core and no number."""
        try:
            return self._begin(name, None, group, None, None, kind, tag=tag, root=0, **arguments)
        except Exception:
            if kind is Collective.SEND:
                self._announce(name, group, tag)
            raise

    def _group(self, members: tuple[UUID, ...]) -> Group:
        """The group of the founders, or of those who live, which is made once."""
        for known, group in self._groups:
            if known is members:
                return group
        group = self.communicator.group(members)
        self._groups = [*self._groups[-3:], (members, group)]
        return group

    def _tag(self, number: int) -> int:
        return self.seed ^ (number * _SPREAD & _MASK)

    def _begin(
        self,
        name: str,
        number: int | None,
        group: Group,
        scaled: tuple[torch.Tensor, int] | None,
        again: Again | None,
        kind: Collective,
        asked: Asked | None = None,
        *,
        survivors: bool = False,
        **arguments: Any,
    ) -> CoreCall:
        arguments.setdefault("stream", stream_of(arguments.get("keep")))
        if len(self.communicator._live_ops) >= _MOST and kind is not Collective.BARRIER:
            text = f"{_MOST} calls are in flight, which is the limit; wait for some of them first"
            raise CollectiveError(Result.INVALID_USAGE, name, text)
        try:
            op = self.communicator.launch(kind, group=group, survivors=survivors, **arguments)
        except PCCLError as error:
            raise translated(error, name, self.view.members, self.names(self.view.members)) from error
        return CoreCall(self, self._agree, name, number, group, op, scaled, again, survivors=survivors, asked=asked)

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
    synchronize(tensors if isinstance(tensors, tuple) else (tensors,))
    return ENDED
