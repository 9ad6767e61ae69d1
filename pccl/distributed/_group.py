"""The process group of the backend "pccl", and how torch.distributed makes one."""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import torch
import torch.distributed as dist

from pccl._exports import publish
from pccl._peer.communicator import Communicator
from pccl.distributed import _bootstrap, _callers
from pccl.distributed._arguments import Coalescing
from pccl.distributed._calls import Guard
from pccl.distributed._change import Change, tell
from pccl.distributed._compile import untraced
from pccl.distributed._launch import Launcher
from pccl.distributed._p2p import Messages, PointToPoint
from pccl.distributed._this_run import is_joining, launched
from pccl.distributed._view import View, renumber
from pccl.distributed._work import Completer, Work, seconds_of

ELASTIC, FIXED, STRICT = MEMBERSHIPS = ("elastic", "fixed", "strict")

WORLD_NAME = "world"
"""What tags call the group of all members: torch's own name for it may differ in a process that joined later."""


_backward: Any = torch._C._current_graph_task_id
"""The number of the backward pass that this thread is in."""

_NO_BACKWARD = -1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `init_process_group("pccl", pg_options=...)` takes."""

    membership: str | None = None
    """What a loss does, on all ranks alike; None: as PCCL_MEMBERSHIP says, or "elastic".

    "elastic": the survivors close up, with new ranks and a smaller size. "fixed": ranks and sizes stay, sums are scaled, and a
    replacement takes the lost rank. "strict": every call raises PeerLostError.
    """
    strict: bool | None = None
    """The former name: True is membership="strict", False is membership="elastic". PCCL_STRICT=1 is PCCL_MEMBERSHIP=strict."""
    stands_in: bool = False
    """With "fixed": whether the next living rank stands in for a lost one in each `all_gather` and `gather`, and in each
    `broadcast` from rank 0. False: it does for DDP and for the gathers of frameworks, and other callers get PeerLostError."""
    name: str | None = None
    """What logs and errors call this process, as in `Communicator(name=)`. A group of some members shares that of all."""

    def __post_init__(self) -> None:
        if self.membership and self.membership not in MEMBERSHIPS:
            raise ValueError(f'Options: the membership must be "elastic", "fixed" or "strict", not {self.membership!r}')


def _frame_of(function: str) -> FrameType | None:
    """The innermost frame of a function of this name that calls; None: there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame


def _block_of_caller() -> Any:
    """Returns the generator behind the block that begins, or None if it is not known."""
    frame = _frame_of("_coalescing_manager")
    enter = None if frame is None else frame.f_back  # of contextlib
    return None if enter is None else getattr(enter.f_locals.get("self"), "gen", None)


class ProcessGroup(PointToPoint):
    """A process group over one communicator per process.

    **After a loss**, with elastic membership, the survivors close up: they keep their order and have the ranks 0 to n - 1, in
    this group and in torch's tables. Reductions, barriers and broadcasts from living roots go on among them; a call whose result
    would lack a part raises PeerLostError on all of them. With strict membership all calls raise it, and nothing is numbered
    anew. With fixed membership ranks and sizes stay, and docs/fixed.md says what each call does.

    `group_of_all` is the group that has the communicator; a group of some of its members shares it.
    """

    def __init__(
        self,
        store: dist.Store,
        launcher: Launcher,
        completer: Completer,
        timeout: timedelta,
        group_of_all: ProcessGroup | None = None,
    ) -> None:
        super().__init__(launcher.view.rank, launcher.view.size)
        self._launcher = launcher
        self._messages = Messages(launcher)
        self._completer = completer
        self._timeout = timeout.total_seconds()
        self._group_of_all = group_of_all
        self._subgroups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
        self._made: Counter[tuple[int, tuple[UUID, ...] | tuple[int, ...]]] = Counter()
        self._store = store
        self._name = ""
        self._desc = ""
        self._size_for_reducer = self._size_for_hooks = launcher.view.size
        self._sizes: _callers.Sizes = {}
        self._backward = _NO_BACKWARD
        self._backward_of_reducer = _NO_BACKWARD
        self._coalescing = Coalescing()
        self._revision = 0
        self._living: Collection[UUID] | None = None  # when it was attached
        self._places: tuple[int, ...] = ()  # of a group of some members: their ranks in the group of all
        self._told = launcher.view.living  # to those who asked for changes
        itself = weakref.ref(self)
        launcher.on_loss = lambda lost: _after_loss(itself(), lost)
        launcher.adopt = lambda call: completer.adopt(Work(completer, [call], self._timeout, []))

    # ---- who is in it ----

    def rank(self) -> int:
        """The rank of this process: among the living members, unless the membership is fixed."""
        return self._seen().rank

    def getRank(self) -> int:  # noqa: N802 - what C++ calls
        return self._seen().rank

    def size(self) -> int:
        """The number of members that the last call has ended with; with fixed membership the number of ranks."""
        self._size_for_hooks = size = self._seen().size
        _callers.note_question(self._sizes, size)
        return size

    def getSize(self) -> int:  # noqa: N802 - what C++ calls
        """As `size`; what DDP divides its next gradients by: one number for all wrappers in a backward pass."""
        backward = _backward()
        if backward == _NO_BACKWARD or backward != self._backward_of_reducer:
            self._backward_of_reducer = backward
            self._size_for_reducer = self._seen().size
        return self._size_for_reducer

    @property
    def members(self) -> tuple[UUID, ...]:
        """The names in the run of the living members, in the order of their ranks."""
        return self._seen().living

    @property
    def ranks(self) -> tuple[UUID, ...]:
        """The names in the run of the members by rank; with fixed membership a lost rank has the name of its last member."""
        return self._seen().members

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """With fixed membership the ranks that are lost, and not replaced yet."""
        return self._seen().lost_ranks

    def _seen(self) -> View:
        """The members, as the program sees them: within a backward pass, futures tell of a loss at its first look alone."""
        backward = _backward()
        if backward == _NO_BACKWARD or backward != self._backward:
            self._backward = backward
            self._launcher.publish()
        return self._launcher.view

    @property
    def communicator(self) -> Communicator:
        return self._launcher.communicator

    @property
    def membership(self) -> str:
        """What a loss does: "elastic", "fixed" or "strict"."""
        return "strict" if self._launcher.strict else "fixed" if self._launcher.view.fixed else "elastic"

    def subgroup(self, store: dist.Store, ranks: Sequence[int], timeout: timedelta, *, stands_in: bool = False) -> ProcessGroup:
        """A group of some members, by their ranks in this one. Each of them calls it; nothing is sent."""
        above = self._launcher
        members = [above.view.members[rank] for rank in ranks]
        view = View(members, above.view.own, fixed=above.view.fixed, living=above.view.living)
        # torch's own names count all groups that a process has made, and a process that joined later has made fewer.
        # With fixed membership one that takes a lost rank makes the same groups from the beginning.
        key = (0, tuple(ranks)) if view.fixed else (above.seed, tuple(members))
        self._made[key] += 1
        name = f"{self._made[key]} of ranks {list(ranks)}" if view.fixed else f"{self._made[key]} in {above.seed:x}"
        launcher = Launcher(above.communicator, name, view, strict=above.strict)
        launcher.guard = above.guard
        launcher.stands_in, launcher.apart = above.stands_in or stands_in, above.apart
        made = ProcessGroup(store, launcher, self._completer, timeout, self._group_of_all or self)
        made._places = tuple(ranks)
        (self._group_of_all or self)._subgroups.add(made)
        return made

    def attach(
        self, communicator: Communicator, members: Sequence[UUID], number: int, living: Collection[UUID] | None = None
    ) -> None:
        """Makes this the group of `members`, in rank order, of a run.

        All of them call it between two calls, with the same `members` and with a `number` that they have not given before. With
        fixed membership some of `members` may not be among the `living`; groups of some members are filled up, too.
        """
        own = self._launcher.view.own
        self._launcher.communicator = communicator
        self._revision, self._living = number, living
        self._begin(members, living, communicator.uuid)
        if own != communicator.uuid:  # it has joined, and had another name before
            self._told = ()
        _renumber(self)

    def _begin(self, members: Sequence[UUID], living: Collection[UUID] | None, own: UUID, *, apart: bool = False) -> None:
        fixed = self._launcher.view.fixed
        view = View(members, own, fixed=fixed, living=living)
        self._size_for_reducer = self._size_for_hooks = view.size
        for group in (self, *(self._subgroups if fixed else ())):
            launcher = group._launcher
            if group is not self:
                view = View([members[rank] for rank in group._places], own, fixed=True, living=living)
            launcher.view = view
            launcher.apart = apart
            launcher.begin(self._revision)
            group._messages.begin()

    def stand_apart(self) -> None:
        """Until `come_back`, calls in this group of all and its subgroups end by themselves, as if all others were lost.

        The membership is fixed. The others wait for this member in the calls after `attach`.
        """
        view = self._launcher.view
        self._begin(view.members, (view.own,), view.own, apart=True)

    def come_back(self) -> None:
        """Ends `stand_apart`: the next call is the first one after `attach`, as at the other members."""
        view = self._launcher.view
        self._begin(view.members, self._living, view.own)

    def guard(self, members: Collection[UUID], tags: Collection[int]) -> None:
        """Makes this group of all and its subgroups strict, and ends their calls that wait while a step is broken.

        A step is broken if one of `members` is lost and another one has begun the first op after a step, of any of these tags.
        Calls raise PeerLostError then, even those that need none of the lost ones, or have ended well, on all members alike. All
        call this alike, between two calls, and again with other members.
        """
        launcher = self._launcher
        launcher.guard = launcher.guard or Guard(launcher.communicator)
        launcher.guard.members, launcher.guard.tags = frozenset(members), tuple(tags)
        for group in (self, *self._subgroups):
            group._launcher.guard, group._launcher.strict = launcher.guard, True

    # ---- what torch asks of it by name ----

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "pccl"

    name = _get_backend_name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or torch.cuda.is_available()]

    def _get_backend(self, device: torch.device | str) -> ProcessGroup:
        """Returns the group itself: it serves all devices that it knows. RuntimeError for any other, as torch raises."""
        kind = torch.device(device).type
        if kind not in ("cpu", "cuda"):
            raise RuntimeError(f"pccl has no backend for the device type {kind}; move the tensor to the CPU or to a CUDA GPU")
        return self

    get_backend = _get_backend

    supports_coalescing = False
    supports_shrinking = False
    supports_splitting = False
    supports_time_estimate = False
    # torch asks the backend of a device for these. Calls in a batch run one by one.

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Returns False: FSDP allocates its memory itself."""
        return False

    def get_group_store(self) -> dist.Store:
        """The store that the group was made with. It is used for nothing once the group is there."""
        return self._store

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Sets the limit of calls that are given none. TypeError, ValueError: it is not a time, or not positive."""
        seconds = seconds_of(timeout)
        if seconds == 0:
            raise ValueError(f"the timeout of a group must be positive, not {timeout}")
        self._timeout = seconds

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        pass  # a longer limit for the next calls, which torch gives to the backends that support it

    def _get_sequence_number_for_group(self) -> int:
        return self._launcher.number

    def _set_sequence_number_for_group(self) -> None:
        pass  # all members count from 0

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error says who is missing."""
        self.barrier(None, timeout).wait()

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing.works, self._coalescing.generator = [], _block_of_caller()

    def _end_coalescing(self, device: torch.device) -> Work:
        begun = self._coalescing.works or []
        self._coalescing.works = self._coalescing.generator = None
        return Work(self._completer, begun, self._timeout, [work.outcome for work in begun])

    # ---- its end ----

    def shutdown(self) -> None:
        """Leaves the run, if this is the group of all; what others have under way with this member ends as after a loss."""
        if self._group_of_all is None:
            self._launcher.communicator.close()  # with which all calls end, so that their futures are completed
            self._launcher.forget_unfinished()
            self._completer.stop()

    abort = shutdown  # calls that wait end with an error

    def __repr__(self) -> str:
        view = self._launcher.view
        return f"<pccl ProcessGroup {self._name or self._launcher.name}: rank {view.rank} of {view.size}>"


untraced(ProcessGroup)
untraced(Work)


def _after_loss(group: ProcessGroup | None, lost: Collection[UUID]) -> None:
    """Updates torch's tables after a group has lost members, and tells the groups whose members all know of it.

    The group of all adopts the loss at once. Others do so when the program next reads their size or rank, which is at the same
    place on all members.
    """
    if group is None:
        return
    living = frozenset(group._launcher.view.living)
    of_all = group._group_of_all or group
    for other in (of_all, *of_all._subgroups):
        members = frozenset(other._launcher.view.living)
        if other is not group and members <= living.union(lost):
            (other._launcher.lose if other is of_all else other._launcher.hear)(members - living)
    _renumber(group)


def _renumber(group: ProcessGroup) -> None:
    """Updates torch's tables after the members of a group have changed."""
    of_all = group._group_of_all or group
    for other in [group, *of_all._subgroups] if of_all is group else [group]:
        renumber(other, other._launcher.view, of_all._launcher.view)
    if of_all is group:
        _tell(group)


def _tell(world: ProcessGroup) -> None:
    before, now = world._told, world._launcher.view
    if before == now.living:
        return
    world._told = now.living
    tell(
        Change(
            rank=now.rank,
            world_size=now.size,
            members=now.members,
            lost=tuple(one for one in before if one not in now.living),
            joined=tuple(one for one in now.living if one not in before),
            lost_ranks=now.lost_ranks,
            names=world._launcher.names(dict.fromkeys((*now.members, *before))),
        )
    )


def _refuse_mixed_backends() -> None:
    """ValueError: the group was asked for with another backend for some devices.

    torch makes a group in Python the group of all devices, and forgets the other backend. It tells the creator only the store and
    the ranks, so the devices are read from the frame of the function of torch that makes the group.
    """
    frame = _frame_of("_new_process_group_helper")
    config = None if frame is None else frame.f_locals.get("backend_config")
    backends = {} if config is None else config.get_device_backend_map()
    others = sorted({name for name in backends.values() if name != "pccl"})
    if others:
        asked = ",".join(f"{device}:{name}" for device, name in backends.items())
        raise ValueError(
            f'init_process_group: the backend "{asked}" mixes pccl with {", ".join(others)}, but pccl serves every device; '
            f'pass "pccl", and call torch.distributed.new_group(backend="{others[0]}") for a second group'
        )


def _membership(options: Options) -> str:
    """Returns what the options ask for, or the environment. ValueError: they contradict each other, or are unknown."""
    older = None if options.strict is None else STRICT if options.strict else ELASTIC
    chosen = options.membership or older
    if options.membership and older and (options.membership == STRICT) != (older == STRICT):
        raise ValueError(f"Options: strict={options.strict} contradicts membership={options.membership!r}; leave strict out")
    if chosen is None:
        older = STRICT if os.environ.get("PCCL_STRICT", "0") not in ("", "0") else None
        chosen = os.environ.get("PCCL_MEMBERSHIP") or older or ELASTIC
        if older and chosen != older:
            raise ValueError(f"PCCL_STRICT=1 contradicts PCCL_MEMBERSHIP={chosen}; leave PCCL_STRICT out")
    if chosen not in MEMBERSHIPS:
        raise ValueError(f'PCCL_MEMBERSHIP: the membership must be "elastic", "fixed" or "strict", not {chosen!r}')
    return chosen


def group_of_all(who: str) -> ProcessGroup:
    """The group of all members. RuntimeError: it is none of pccl, which `who` needs."""
    group: Any = dist.GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        text = f'{who} needs a process group of the backend "pccl": call init_process_group("pccl") first'
        raise RuntimeError(f"{text}, or pccl.distributed.join()")
    return group


def lost_ranks() -> tuple[int, ...]:
    """Returns the ranks of the group of all that are lost, and not replaced yet; none unless the membership is fixed.

    As `get_rank`, it is the same on all members at the same place of the program. RuntimeError: the group of all is none of pccl.
    """
    return group_of_all("lost_ranks").lost_ranks


def _expected(own: UUID) -> View:
    """The view of a process that is to take a lost rank: it has its rank and the size already, and nobody else is there yet."""
    rank, size = launched("RANK"), launched("WORLD_SIZE")
    if not 0 <= rank < size:
        return View([own], own, fixed=True)
    members = [own if one == rank else uuid4() for one in range(size)]
    return View(members, own, fixed=True, living=[own])


def create(asked: Any, options: Any = None) -> ProcessGroup:
    """Makes the group that torch.distributed asks for: that of all members, or one of some of them."""
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options must be a pccl.distributed.Options, not {type(options).__name__}")
    _refuse_mixed_backends()
    options = options or Options()
    above = dist.GroupMember.WORLD
    if isinstance(above, ProcessGroup):
        if (options.membership or options.strict is not None) and _membership(options) != above.membership:
            text = f'the group of all has the membership "{above.membership}", which all groups share'
            raise ValueError(f"new_group: {text}; it cannot have another one, so give Options to init_process_group")
        return above.subgroup(asked.store, asked.global_ranks_in_group, asked.timeout, stands_in=options.stands_in)
    membership = _membership(options)
    name = WORLD_NAME if above is None else asked.group_id  # a group beside one of another backend
    communicator, members = _bootstrap.connect(
        asked.store,
        asked.group_rank,
        asked.group_size,
        asked.timeout,
        options.name,
        membership,
        stands_in=options.stands_in,
    )
    own = members[asked.group_rank if len(members) == asked.group_size else 0]  # else it joins a run, and is alone until then
    view = View(members, own, fixed=membership == FIXED)
    if view.fixed and is_joining():
        view = _expected(own)
    launcher = Launcher(communicator, name, view, strict=membership == STRICT)
    launcher.stands_in = options.stands_in
    return ProcessGroup(asked.store, launcher, Completer(), asked.timeout)


publish(globals())
