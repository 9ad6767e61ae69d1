"""A training whose state every member has whole: newcomers get it out of the memory of the others."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from pccl._core.errors import CallAgainError, JoinError, PeerLostError, TooFewPeersError
from pccl._core.names import label_in, name_of, peer_label
from pccl._ops.journal import Journal
from pccl._peer.communicator import Communicator
from pccl.distributed._group import FIXED, ProcessGroup
from pccl.distributed._inventory import Standing
from pccl.distributed._this_run import is_joining, launched, this_run
from pccl.distributed._training import Training
from pccl.distributed._view import arrange
from pccl.state import decode, encode, warn_if_overridden
from pccl.state._entries import Entries
from pccl.state._local.agreement import Terms, require_alike
from pccl.state._local.tree import with_tensors, without_tensors
from pccl.state._snapshots.talk import Talk

_log = logging.getLogger("pccl.distributed")

ATTEMPTS = 20
"""To bring a newcomer up to date, while members die."""

_DONE = {"repair": "repaired from the majority", "expel": "expelled"}

_LARGE_BYTES = 1 << 16
"""A buffer, or a tensor in a value, that has as many travels only to a newcomer that lacks it; a smaller one with the values."""

_current: weakref.WeakKeyDictionary[ProcessGroup, weakref.ref[Replicated]] = weakref.WeakKeyDictionary()
"""The training of each group whose first sync is over; a later one may take its place."""


class Replicated:
    """What `Elastic.sync` does for a model that every member has whole."""

    def __init__(
        self,
        training: Training,
        values: Callable[[], dict[str, Any]],
        take_values: Callable[[dict[str, Any]], None],
        progress: Callable[[], int],
        terms: Callable[[ProcessGroup], Terms],
        parity_every: int | None,
        policy: str,
    ) -> None:
        self._training = training
        self._values = values
        self._take_values = take_values
        self._progress = progress
        self._terms = terms
        self._parity_every = parity_every or 0
        self._policy = policy
        self._revision = 0
        self._round = 1
        self._group: weakref.ref[ProcessGroup] | None = None
        self._journal = Journal()
        self.loaded: int | None = None
        """The step of the checkpoint that this process has loaded; None after the first sync."""

    def sync(
        self, group: ProcessGroup, seconds: float, step: int, *, looks: bool, announce: Callable[[ProcessGroup], None]
    ) -> bool:
        """Whether it was the first sync of this process, or newcomers were let in.

        `step` counts the calls of the run. `announce` tells the members that this process leaves, if it does.
        """
        comm = group.communicator
        with self._journal.call(comm, "sync") as journal:
            joins, anew = journal.once(self._enter, group, seconds, step)
            announce(group)
            looks = looks or joins  # a newcomer looks as those do who let it in
            pending = looks and journal.once(functools.partial(comm.are_peers_pending, timeout=seconds))
        while pending:
            self._admit(group, seconds)
            anew = True
            pending = comm.are_peers_pending(timeout=seconds)
        return anew

    def _enter(self, group: ProcessGroup, seconds: float, step: int) -> tuple[bool, bool]:
        """Whether this process joins the run, and whether this is its first sync in the group."""
        joins = is_joining()
        anew = joins or self._is_new(group)
        if joins:
            self._join(group, seconds)
        elif anew:
            self._begin(group, seconds)
        elif self._parity_every and step % self._parity_every == 0:
            self._check_parity(group.communicator, seconds)
        self._group, _current[group] = weakref.ref(group), weakref.ref(self)
        return joins, anew

    def _is_new(self, group: ProcessGroup) -> bool:
        """Whether this training has yet to begin in the group. RuntimeError: another one that lives has taken its place."""
        current = _current[group]() if group in _current else None
        if self._group is None or self._group() is not group:
            return True
        if current not in (None, self):  # a newcomer would get the state of one of them alone
            raise RuntimeError(
                "two Elastic objects take turns in one process group; give all models to one Elastic, as a torch.nn.ModuleList "
                "with a list of their optimizers"
            )
        return False

    def _check_parity(self, comm: Communicator, seconds: float) -> None:
        """Compares the members' training. What differs in a newcomer's is theirs by now, since it was let in by a sync."""
        found = comm.check_parity(self._training.entries().tensors, policy=self._policy, timeout=seconds)
        if found.entry is not None:
            names = ", ".join(peer_label(name_of(comm._handle, one), one) for one in found.minority)
            _log.warning("parity: entry %r differed at %s; %s", found.entry, names, _DONE[self._policy])

    # ---- at members ----

    def _admit(self, group: ProcessGroup, seconds: float) -> None:
        self._revision += 1
        told = self._described(group)  # before anybody is let in: what cannot be packed is an error on all alike
        group.communicator.update_topology(timeout=seconds)
        self._bring_up_to_date(group, lambda: told, seconds)

    def _begin(self, group: ProcessGroup, seconds: float) -> None:
        """The first sync of a run: if somebody has loaded a checkpoint, all begin with that of the highest step."""
        if group.communicator.world_size > 1:
            self._bring_up_to_date(group, lambda: self._described(group), seconds)
        self.loaded = None

    def _described(self, group: ProcessGroup) -> bytes:
        """What a newcomer is told."""
        skeleton, large, digest = self._own()
        told = {
            "revision": self._revision,
            "round": self._round,
            "members": group.ranks,
            "training": self._training.outline(),
            "own": skeleton,
            "large": large.layout(),
            "digest": digest,
        }
        return bytes(encode(told))

    def _own(self) -> tuple[Any, Entries, str]:
        """What is each member's own: the small part as a tree, the large tensors, and their hash."""
        own = {"training": self._training.own(), "values": self._values()}
        skeleton, places = without_tensors(own, least_bytes=_LARGE_BYTES)
        large = Entries({name: tensor.detach() for name, (_, tensor) in places.items()})
        return skeleton, large, large.state.hash() if large.state is not None else ""

    # ---- at a newcomer ----

    def _join(self, group: ProcessGroup, seconds: float) -> None:
        comm = group.communicator
        with this_run.joining(comm):
            told = self._described(group) if this_run.to_begin else b""
            comm.connect(timeout=seconds, begin=this_run.to_begin)
            self._bring_up_to_date(group, (lambda: told) if told else None, seconds, new=True)

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
                here = comm._snapshot
                talk = Talk(comm, here, here.index(comm.uuid), "Elastic.sync", seconds)
                loaded, wanted = self.loaded is not None, launched("RANK")
                terms = self._terms(group)
                standing = Standing(told is not None, self._revision, loaded, self._progress(), new, wanted, *terms.digests())
                all_here = [Standing(*row) for row in talk.gather(standing)]
                known = [place for place, one in enumerate(all_here) if one.revision]
                fresh = not any(one.revision or one.loaded or one.new for one in all_here)
                who = label_in(comm, talk.own if new else group.rank())
                rows = [one[-2:] for one in all_here]
                require_alike("Elastic", terms, rows, talk.gather_bytes, who, talk.own, known=known, fresh=fresh)
                if fresh:
                    return  # a run begins, and nobody has loaded a checkpoint
                best = max(all_here, key=Standing.order)
                root = all_here.index(best)
                if not best.tells:
                    raise JoinError("no member is left that has the state: the run has ended")
                content = decode(_broadcast(talk, root, told))
                if content["revision"] == 0 and touched:
                    raise JoinError("all members that had the state have left")
                touched = new and content["revision"] > 0
                asked = {member: one.wanted for member, one in zip(here, all_here, strict=True)}
                members = arrange(content["members"], here, asked, fixed=group.membership == FIXED)
                if comm.uuid not in members:
                    raise JoinError(f"none of the {len(members)} ranks is free, and the membership is fixed")
                is_root = root == talk.own
                behind = not is_root and (new or standing.order() != best.order())
                self._share(comm, here, content, seconds, is_root=is_root, behind=behind)
                break
            except (PeerLostError, CallAgainError, TooFewPeersError):
                if attempt == ATTEMPTS - 1:
                    raise
                comm.update_topology(timeout=seconds)
        if behind:
            warn_if_overridden(self.loaded, best.step, "Elastic")
        self.loaded = None
        self._revision = content["revision"] or 1
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
            own = with_tensors(content["own"], large.tensors)
            self._training.take_own(own["training"])
            self._take_values(own["values"])

    def _sync_entries(self, comm: Communicator, entries: Entries, revision: int, seconds: float) -> None:
        reached = entries.sync(comm, revision, seconds)
        if reached is not None:
            self._round = reached + 1  # what the master expects in the next one


def _broadcast(talk: Talk, root: int, told: Callable[[], bytes] | None) -> bytes:
    """What the root tells, on all members. An error in it is one on all."""
    if root != talk.own or told is None:
        body = talk.broadcast(root, None)
        if not body:
            raise JoinError("the member that has the state cannot send it; see its error")
        return body
    try:
        body = told()
    except Exception:
        talk.broadcast(root, b"")
        raise
    return talk.broadcast(root, body)
