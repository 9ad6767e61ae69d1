"""Training that processes join while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from pccl._collectives import Collective
from pccl._communicator import Communicator
from pccl._enums import DataType
from pccl._errors import CallAgainError, JoinError, Left, PCCLError, PeerLostError, TooFewPeersError, UsageError
from pccl._names import name_of, peer_label
from pccl.distributed import _bootstrap
from pccl.distributed._group import FIXED, ProcessGroup
from pccl.distributed._launch import digest
from pccl.distributed._sharded import Restored, Sharded
from pccl.distributed._training import Training
from pccl.distributed._view import arrange
from pccl.notice import Notice, as_notice
from pccl.state import decode, encode, load, save, warn_if_overridden
from pccl.state._entries import Entries
from pccl.state._module import require_same_names
from pccl.state._objects import has_state, load_object_state, object_state
from pccl.state._parity import POLICIES, require_policy
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.snapshot import Report as SnapshotReport
from pccl.state._split import with_tensors, without_tensors
from pccl.state._start import broadcast_bytes

_log = logging.getLogger("pccl.distributed")

ATTEMPTS = 20
"""To bring a newcomer up to date, while members die."""

_TAG = digest("Elastic.sync")
"""Of the calls in a sync, and the next two numbers. No process group has a call under way then."""


_OWN = frozenset(
    {
        *("_values", "_training", "_every", "_calls", "_steps", "_revision", "_round", "_known", "_loaded", "_sharded"),
        *("_leaves", "_deals", "_notice", "_parity_every", "_policy"),
    }
)
"""Attributes of an Elastic that are no values."""

_DONE = {"repair": "repaired from the majority", "expel": "expelled"}

_LARGE_BYTES = 1 << 16
"""A buffer, or a tensor in a value, that has as many travels only to a newcomer that lacks it; a smaller one with the values."""


_begun: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
"""Groups whose first sync is over."""


class Elastic:
    """A model and its optimizer in a training whose processes may be lost, and others join.

    All processes call `sync` at the top of each step. It lets those in that wait, and brings them up to date out of the memory of
    the others: parameters and optimizer state; buffers and `values` are those of the member that has been there for longest.

    `values` are what else a newcomer needs, such as `step=0`; they are attributes. One with `state_dict` and `load_state_dict`,
    such as a scheduler, is brought up to date by these; any other is replaced. What they consist of are numbers, strings,
    tensors, arrays, and lists, tuples, dicts and sets of these; `pccl.state.allow` adds a class. The learning rates of the
    optimizer that a scheduler steers come along. Generators of random numbers are values too.

    `save` and `load` are for the loss of all processes: a run begins with the checkpoint of the highest step, whoever has it.

    `every`: only each so many calls of `sync` look whether somebody waits. ValueError: arguments that do not fit the model.

    `parity_every`: each so many calls of `sync` of the run compare parameters and optimizers of all members, bit for bit, before
    newcomers are let in. `parity` is the policy of `check_parity`: "raise", "repair", which logs a warning, or "expel". Then
    `sync` may raise ParityError.

    `leaves_on`: a signal, such as SIGTERM, or a `pccl.notice.Notice`, upon which this process leaves in order, as by `leave`. A
    second signal, 2 s later or more, does what the first would have done without. With signals the constructor has to be called
    in the main thread.

    **Sharded models.** The model may be sharded with FSDP2 (`fully_shard`) over all members, also with replicas (HSDP). A lost
    member takes its part of the state along: `snapshots` keeps copies or a code of each part in the memory of others. Catch the
    PeerLostError of a step, and call `sync` again: it divides the state among those who are there, and what was lost comes from
    the newest snapshot, to whose step all go back. Where nothing was lost, as when somebody joins, or when replicas have all
    parts, the step stays. StateLostError on all members: more was lost than the snapshots bear. With replicas every call after
    a loss raises PeerLostError until `sync`, as in strict mode, and so does `optimizer.step()`, in which all agree to step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        every: int = 1,
        snapshots: Snapshots | None = None,
        leaves_on: Notice | signal.Signals | None = None,
        parity_every: int | None = None,
        parity: str = "raise",
        **values: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more calls, not {every}")
        if parity_every is not None and parity_every < 1:
            raise ValueError(f"parity_every must be 1 or more calls, not {parity_every}")
        require_policy(parity)
        for name in values:
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"Elastic: {name!r} cannot be the name of a value; choose another name")
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
        self._values = values
        self._training = Training(model, optimizers)
        self._sharded: Sharded | None = None
        if self._training.is_sharded:
            commits = [one.commit_tag for one in self._data()]
            self._sharded = Sharded(
                self._training, snapshots, self._told_values, self._take_told_values, self._progress, every, commits
            )
        elif snapshots is not None:
            raise ValueError("snapshots are for sharded models; every member of this training has the whole state")
        if self._training.is_sharded and parity_every is not None:
            raise ValueError("parity_every compares what all members hold alike, and this model is sharded")
        self._every = every
        self._parity_every = parity_every
        self._policy = parity
        self._calls = 0
        self._steps = 0
        self._revision = 0
        self._round = 1
        self._known: tuple[UUID, ...] = ()
        self._loaded: int | None = None
        self._leaves = False
        self._deals = False
        for one in optimizers if self._data() else ():
            inner = getattr(one, "optimizer", one)  # of a wrapper, such as accelerate's, which takes no hooks
            (inner if isinstance(inner, Optimizer) else one).register_step_post_hook(lambda *_: self._seal())
        self._notice = None if leaves_on is None else as_notice(leaves_on)
        if self._notice is not None:
            self._leave_on(self._notice)

    def sync(self, timeout: timedelta | None = None) -> bool:
        """Lets newcomers in; at one of them, becomes a member. Whether the members are others than after the last call.

        Then ranks and the world size may be others too, so that data has to be shared out anew; the first call gives True.
        It is a barrier of all members, to be called between two steps. `timeout`: as of the group, unless given.

        JoinError, at a newcomer only: it was not let in. Left, after `leave`: this process is a member no longer.
        """
        group = _group_of_all()
        seconds = group._timeout if timeout is None else timeout.total_seconds()
        looks = self._calls % self._every == 0
        self._wants_to_leave()
        lost = self._commit_data(group, seconds)
        if self._sharded is not None:
            if group.membership == FIXED:
                raise ValueError('Elastic: a sharded model cannot have fixed membership; pass membership="elastic"')
            changed = self._sharded.sync(group, seconds, looks=looks, leaves=self._wants_to_leave)
            if self._sharded.left:
                raise Left
            self._calls = 1 if changed else self._calls + 1
            self._steps += 1
            if changed or lost:
                self._deal_data(group, seconds, keeps_open=not (self._deals and changed))
            return changed
        if _bootstrap.to_join():
            self._join(group, _bootstrap.to_join(), seconds)
            looks = True  # as the members do after they have let it in
        elif group not in _begun:
            self._begin(group, seconds)
        elif self._parity_every is not None and self._steps % self._parity_every == 0:
            self._check_parity(group, seconds)
        _begun.add(group)
        if self._leaves:
            self._announce(group)
        anew = lost or not self._deals
        if looks:
            while group.communicator.are_peers_pending(timeout=seconds):
                self._admit(group, seconds)
                anew = True
        if anew:
            self._deal_data(group, seconds)
        self._calls += 1
        self._steps += 1
        changed = group.members != self._known
        self._known = group.members
        return changed

    def leave(self) -> None:
        """Makes the next `sync` of this process the last one: it raises Left, and the others go on without it at the same step.

        With `every` it is the next one that looks. What this process has of a sharded state is divided among the others before.
        If all members leave at once, a last snapshot stays in the memory of their hosts for a run of the same name.
        """
        self._leaves = True
        group = dist.GroupMember.WORLD if dist.is_initialized() else None
        if isinstance(group, ProcessGroup) and not _bootstrap.to_join():
            self._announce(group)

    def _wants_to_leave(self) -> bool:
        if not self._leaves and ((self._notice is not None and self._notice.given) or self._is_drained()):
            self.leave()
        return self._leaves

    def _is_drained(self) -> bool:
        """Whether `pccl drain` has named this member. Without a call of `leave` it would go before it has given its part away."""
        group = dist.GroupMember.WORLD if self._sharded is not None else None
        comm = group.communicator if isinstance(group, ProcessGroup) and not _bootstrap.to_join() else None
        return comm is not None and comm.uuid in comm.leaving

    def _leave_on(self, notice: Notice) -> None:
        itself = weakref.ref(self)

        def leave(_: Notice) -> None:
            run = itself()
            if run is not None:
                run.leave()

        notice.listen(leave)

    def _check_parity(self, group: ProcessGroup, seconds: float) -> None:
        """Compares the members' training. What differs in a newcomer's is theirs by now, since it was let in by a sync."""
        found = group.communicator.check_parity(self._training.entries().tensors, policy=self._policy, timeout=seconds)
        if found.entry is not None:
            names = ", ".join(peer_label(name_of(group.communicator._handle, one), one) for one in found.minority)
            _log.warning("parity: entry %r differed at %s; %s", found.entry, names, _DONE[self._policy])

    def _announce(self, group: ProcessGroup) -> None:
        """Tells all members that this one leaves. It hands its part of a sharded state over first, and leaves by itself then."""
        within = None if self._notice is None else self._notice.seconds_left
        with contextlib.suppress(PCCLError):  # the call that follows says it
            if self._sharded is not None:
                group.communicator._announce(within, at_update=False)
            else:
                group.communicator.leave(within=within)

    @property
    def snapshot_report(self) -> SnapshotReport | None:
        """What the last snapshot has cost this member; None: there are no snapshots."""
        return None if self._sharded is None else self._sharded.report

    @property
    def last_restore(self) -> Restored | None:
        """What the last division of a sharded state among other members has cost this one; None: there was none."""
        return None if self._sharded is None else self._sharded.restored

    def wait_for_snapshot(self) -> bool:
        """Waits for the end of a snapshot under way. Whether the last one is complete on all members; True without snapshots."""
        return self._sharded is None or self._sharded.settle()

    def fence(self) -> None:
        """Waits until a snapshot under way has copied the tensors. Optimizers do so by themselves; anything else that changes
        parameters must call it before."""
        if self._sharded is not None:
            self._sharded.fence()

    def close(self) -> None:
        """Drops the snapshots of this process, at the end of the training; a process that ends without it leaves them."""
        if self._sharded is not None:
            self._sharded.close()

    # ---- data ----

    def _data(self) -> list[Any]:
        """The values that hand out samples (`pccl.data`), in the same order on all members."""
        return [value for _, value in sorted(self._values.items()) if hasattr(value, "commit_step")]

    def _seal(self) -> None:
        """The optimizer has made a step: with the samples that the program has got by now."""
        for one in self._data():
            one.seal()

    def _commit_data(self, group: ProcessGroup, seconds: float) -> bool:
        """Commits the samples of the steps since the last sync; whether a member was lost. In the first sync nothing."""
        if not self._deals:
            return False
        if not self._training.optimizers:
            self._seal()
        lost = [one.commit_step(group.communicator, seconds) for one in self._data()]
        return any(lost)

    def _deal_data(self, group: ProcessGroup, seconds: float, *, keeps_open: bool = True) -> None:
        """Deals out the samples that are left among the members who are there now."""
        for one in self._data():
            one.sync(group.communicator, seconds, keeps_open=keeps_open)
        self._deals = True

    # ---- at members ----

    def _admit(self, group: ProcessGroup, seconds: float) -> None:
        comm = group.communicator
        self._revision += 1
        told = bytes(encode(self._described(group)))  # before anybody is let in: what cannot be packed is an error on all alike
        comm.update_topology(timeout=seconds)
        self._bring_up_to_date(group, lambda: told, seconds)

    def _begin(self, group: ProcessGroup, seconds: float) -> None:
        """The first sync of a run: if somebody has loaded a checkpoint, all begin with that of the highest step."""
        if group.communicator.world_size > 1:
            self._bring_up_to_date(group, lambda: bytes(encode(self._described(group))), seconds)
        self._loaded = None

    def _described(self, group: ProcessGroup) -> dict[str, Any]:
        """What a newcomer is told."""
        skeleton, large, digest = self._own()
        return {
            "revision": self._revision,
            "round": self._round,
            "steps": self._steps,
            "members": group.ranks,
            "membership": group.membership,
            "training": self._training.outline(),
            "own": skeleton,
            "large": large.layout(),
            "digest": digest,
        }

    def _own(self) -> tuple[Any, Entries, str]:
        """What is each member's own: the small part as a tree, the large tensors, and their hash."""
        own = {"training": self._training.own(), "values": {name: _described_value(one) for name, one in self._values.items()}}
        skeleton, places = without_tensors(own, least_bytes=_LARGE_BYTES)
        large = Entries({name: tensor.detach() for name, (_, tensor) in places.items()})
        return skeleton, large, large.state.hash() if large.state is not None else ""

    # ---- at a newcomer ----

    def _join(self, group: ProcessGroup, masters: str, seconds: float) -> None:
        comm = group.communicator
        try:
            told = bytes(encode(self._described(group))) if _bootstrap.to_begin() else b""
            comm.connect(timeout=seconds, begin=_bootstrap.to_begin())
            self._bring_up_to_date(group, (lambda: told) if told else None, seconds, new=True)
        except BaseException as error:
            comm.close()  # whatever went wrong, members must not wait for this process
            if not isinstance(error, Exception):
                raise
            raise JoinError(f"this process could not join the run at {masters}: {error or type(error).__name__}") from error
        _bootstrap.joined()

    def _told_values(self) -> dict[str, Any]:
        return {"steps": self._steps, "values": {name: _described_value(one) for name, one in self._values.items()}}

    def _take_told_values(self, told: dict[str, Any]) -> None:
        require_same_names(self._values, told["values"], "value")
        self._take_values(told["values"])
        self._steps = told["steps"]

    def _take_own(self, own: dict[str, Any]) -> None:
        self._training.take_own(own["training"])
        require_same_names(self._values, own["values"], "value")
        self._take_values(own["values"])

    def _take_values(self, values: Mapping[str, Any]) -> None:
        for name, (is_object, content) in values.items():
            if is_object != has_state(self._values[name]):
                raise ValueError(f"value {name!r} has the method state_dict in some processes only")
            if is_object:
                load_object_state(self._values[name], content, f"value {name!r}")
            else:
                self._values[name] = content

    # ---- at all ----

    def _bring_up_to_date(
        self, group: ProcessGroup, told: Callable[[], bytes] | None, seconds: float, *, new: bool = False
    ) -> None:
        """Makes all who are there members of the group, with the content that one of them tells.

        In a run that goes on that is the member that has been there for longest; in one that begins, the one with the highest
        step. `told` makes what this process would tell; a newcomer (`new`) has it only if it may begin a run. All see the same
        losses in the same calls, so all make the same attempts.
        """
        comm = group.communicator
        touched = False  # by a run that goes on: then it is too late to begin one
        for attempt in range(ATTEMPTS):
            try:
                here = comm.members
                loaded, wanted = self._loaded is not None, _bootstrap.launched_rank()
                settings = self._every, self._parity_every or 0, POLICIES.index(self._policy)
                standing = _Standing(told is not None, self._revision, loaded, self._progress(), new, wanted, *settings)
                all_here = _gather(comm, here, standing, seconds)
                _require_same_settings(all_here, standing)
                if not any(one.revision or one.loaded or one.new for one in all_here):
                    return  # a run begins, and nobody has loaded a checkpoint
                best = max(all_here, key=_Standing.order)
                root = all_here.index(best)
                if not best.tells:
                    raise JoinError("no member is left that has the state: the run has ended")
                content = decode(_broadcast(comm, here, root, told, seconds))
                if content["revision"] == 0 and touched:
                    raise JoinError("all members that had the state have left")
                touched = new and content["revision"] > 0
                if content["membership"] != group.membership:
                    text = f'it has the membership "{group.membership}", and the members "{content["membership"]}"'
                    raise JoinError(f"{text}; give all of them the same Options(membership=) or PCCL_MEMBERSHIP")
                asked = {member: one.wanted for member, one in zip(here, all_here, strict=True)}
                members = arrange(content["members"], here, asked, fixed=group.membership == FIXED)
                if comm.uuid not in members:
                    raise JoinError(f"none of the {len(members)} ranks is free, and the membership is fixed")
                is_root = here[root] == comm.uuid
                behind = not is_root and (new or standing.order() != best.order())
                self._share(comm, here, content, seconds, is_root=is_root, behind=behind)
                break
            except (PeerLostError, CallAgainError, TooFewPeersError, _DisagreedError):
                if attempt == ATTEMPTS - 1:
                    raise
                comm.update_topology(timeout=seconds)
        if behind:
            warn_if_overridden(self._loaded, best.step, "Elastic")
        self._loaded = None
        self._revision = content["revision"] or 1
        self._calls = 0
        group.attach(comm, members, self._revision, living=here)
        self._training.make_buckets_anew()

    def _share(
        self,
        comm: Communicator,
        here: Sequence[UUID],
        content: dict[str, Any],
        seconds: float,
        *,
        is_root: bool,
        behind: bool,
    ) -> None:
        """Brings the tensors to those who lack them; one who is `behind` takes all of the content. Blocks until all have it."""
        self._round = content["round"]
        if behind:
            self._training.take_outline(content["training"])
        if len(here) > 1:
            self._sync_entries(comm, self._training.entries(), self._round if not behind else 0, seconds)
        _, large, digest = self._own()
        if content["large"] and not is_root:
            # A member whose own tensors are others than those of the root helps to pass these on, in copies.
            keeps = not behind and digest != content["digest"]
            large = large.fitted(content["large"], copy=keeps)
        if len(here) > 1 and content["large"]:
            same = is_root or (not behind and digest == content["digest"])
            self._sync_entries(comm, large, self._round if same else 0, seconds)
        if behind:
            self._take_own(with_tensors(content["own"], large.tensors))
            self._steps = content["steps"]

    def _sync_entries(self, comm: Communicator, entries: Entries, revision: int, seconds: float) -> None:
        reached = entries.sync(comm, revision, seconds)
        if reached is not None:
            self._round = reached + 1  # what the master expects in the next one

    def _progress(self) -> int:
        """The step by which checkpoints are compared: the value `step`, or else the number of calls of `sync` of the run."""
        step = self._values.get("step")
        return step if type(step) is int and 0 <= step < 1 << 62 else self._steps

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """The state of the model and of the optimizers as torch has it, and the values: plain values and tensors.

        Tensors are those of the training itself, not copies.
        """
        values = {name: _described_value(value) for name, value in self._values.items()}
        return {"steps": self._steps, "step": self._progress(), **self._training.state_dict(), "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned. Call it before the first `sync`, in any of the processes.

        The run begins with the state of the process that has the highest `step`, the value, or has made most calls of `sync`;
        one whose own gives way logs a warning. A process that joins a run that goes on gets the state of the members.

        ValueError, RuntimeError: the state is that of another training; the model and the values are unspecified then.
        """
        require_same_names(self._values, state["values"], "value")
        self._training.load_state_dict(state)
        self._take_values(state["values"])
        self._steps = state["steps"]
        self._loaded = self._progress()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `state_dict` to the folder `path`, as `pccl.state.save` does. One process is enough; others need other paths.

        After a crash the folder is the old one or the new one.
        """
        save(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads what `save` wrote, like `load_state_dict`. FileNotFoundError: there is none. CheckpointError: it is damaged."""
        self.load_state_dict(load(path))

    # ---- values ----

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: {', '.join(values) or 'there are none'}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        elif name in self._values:
            self._values[name] = value
        else:
            raise AttributeError(f"{name!r} is not one of the values given to Elastic: Elastic(model, optimizer, {name}=...)")


class _DisagreedError(Exception):
    """Members have seen different ones of several losses, and made groups of different members."""


class _Standing(NamedTuple):
    """What one process tells all others before a state is handed over."""

    tells: bool
    revision: int
    loaded: bool
    step: int
    new: bool
    wanted: int
    """The rank that its launcher gave it, or -1."""
    every: int
    """Calls of `sync`, of which one looks whether somebody waits."""
    parity_every: int
    """Calls of `sync`, of which one compares the state; 0: none."""
    policy: int

    def order(self) -> tuple[bool, int, bool, int]:
        """The one with the highest tells the others its state; the first of these if there are several.

        Steps count at the beginning of a run only: later all members are at the same one.
        """
        step = self.step if self.loaded or not self.revision else 0
        return self.tells and not (self.new and self.revision), self.revision, self.loaded, step


def _gather(comm: Communicator, here: Sequence[UUID], own: _Standing, seconds: float) -> list[_Standing]:
    """What each of these members tells, in their order."""
    if len(here) == 1:
        return [own]
    send = torch.tensor([int(one) for one in own], dtype=torch.int64)
    rows = torch.zeros(len(here), len(own), dtype=torch.int64)
    _call(comm, comm.group(here), Collective.ALL_GATHER, send, rows, 0, _TAG, seconds)
    return [_Standing(bool(row[0]), row[1], bool(row[2]), row[3], bool(row[4]), *row[5:]) for row in rows.tolist()]


def _require_same_settings(all_here: Sequence[_Standing], own: _Standing) -> None:
    """ValueError: members have other settings of `sync`. On all when a run begins, later at the newcomer alone."""

    def told(one: _Standing) -> str:
        parity = f", parity_every={one.parity_every}, parity={POLICIES[one.policy]!r}" if one.parity_every else ""
        return f"every={one.every}{parity}"

    first = max(all_here, key=lambda one: one.revision)
    others = [rank for rank, one in enumerate(all_here) if told(one) != told(first)]
    if others and (not first.revision or told(own) != told(first)):
        text = f"{told(first)} at rank {all_here.index(first)}, and {told(all_here[others[0]])} at rank {others[0]}"
        raise ValueError(f"Elastic: {text}; give the same to all")


def _broadcast(comm: Communicator, here: Sequence[UUID], root: int, told: Callable[[], bytes] | None, seconds: float) -> bytes:
    """The content of one of these members, on all of them. An error of its own is one on all."""
    group = comm.group(here)
    body, failure = b"", None
    if group.rank == root and told is not None:
        try:
            body = told()
        except Exception as error:
            failure = error
    if len(here) > 1:
        tags = iter((_TAG + 1, _TAG + 2))

        def broadcast(tensor: torch.Tensor) -> None:
            _call(comm, group, Collective.BROADCAST, tensor, tensor, root, next(tags), seconds)

        body = broadcast_bytes(broadcast, body, failed=failure is not None)
    if failure:
        raise failure
    return body


def _call(
    comm: Communicator,
    group: Any,
    kind: Collective,
    send: torch.Tensor,
    recv: torch.Tensor,
    root: int,
    tag: int,
    seconds: float,
) -> None:
    try:
        op = comm.launch(
            kind,
            group=group,
            tag=tag & (1 << 64) - 1,
            send=send.data_ptr(),
            recv=recv.data_ptr(),
            dtype=DataType.INT64 if send.dtype == torch.int64 else DataType.UINT8,
            count=send.numel(),
            root=root,
            survivors=True,
            keep=(send, recv),
        )
        op.wait(seconds)
    except UsageError as error:
        raise _DisagreedError(str(error)) from error


def _described_value(value: Any) -> tuple[bool, Any]:
    """Whether a value is an object with a state, and what a newcomer needs of it."""
    return (True, object_state(value)) if has_state(value) else (False, value)


def _group_of_all() -> ProcessGroup:
    group: Any = dist.GroupMember.WORLD
    if not isinstance(group, ProcessGroup):
        raise RuntimeError(
            'Elastic needs a process group of the backend "pccl": call init_process_group("pccl") first, or join()'
        )
    return group
