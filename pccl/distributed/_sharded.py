"""A training whose state is divided among its members (FSDP2): who is in it, and what each member has of the state."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pccl._core.errors import CallAgainError, Left, PeerLostError, ProtectionError, StateLostError, TooFewPeersError
from pccl._core.names import label_in
from pccl._host.holder import HolderError
from pccl._ops.journal import Journal
from pccl._peer.communicator import Communicator, roll
from pccl.distributed._dtensors import ShardedState, local_part
from pccl.distributed._group import FIXED, ProcessGroup
from pccl.distributed._inventory import LIVE, Standing, Told, settings_of, source_of, told_of, tree_of
from pccl.distributed._launch import digest
from pccl.distributed._remesh import movable, remesh
from pccl.distributed._this_run import this_run
from pccl.distributed._training import Training
from pccl.distributed._trees import fitted, outline_of, reached
from pccl.state import decode, encode
from pccl.state._local.agreement import Terms, joined, require_alike
from pccl.state._local.objects import load_object_state
from pccl.state._local.tree import with_tensors, without_tensors
from pccl.state._snapshots.boxes import ShardMap, shards_from, shards_tree, text_of
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Memory, Sum, hash_slice, write_image
from pccl.state._snapshots.keeper import Keeper
from pccl.state._snapshots.kept import host_name
from pccl.state._snapshots.restore import (
    ATTEMPTS,
    DamagedError,
    Source,
    carry_out,
    misfit,
    plan,
    verify,
)
from pccl.state._snapshots.snapshot import Contribution, PieceName, Snapshot
from pccl.state._snapshots.stock import Stock
from pccl.state._snapshots.talk import Talk, understood

_log = logging.getLogger("pccl.distributed")

_ROLL = digest("Elastic.sync of a sharded model") & (1 << 64) - 1
"""The tag of the first op of each sync."""

NOTICE_SECONDS = 1.0
"""Within which all processes of a job get a signal that ends the job."""


class Restored(NamedTuple):
    """What the last division of the state has cost this member."""

    step: int
    """At which the training goes on."""
    lost: bool
    """Whether that is the step of a snapshot; else it is that of the tensors as they were."""
    received_bytes: int
    seconds: float
    """Without the snapshot that is taken afterwards."""


class Sharded:
    """What `Elastic.sync` does for a model that is sharded."""

    def __init__(
        self,
        training: Training,
        snapshots: Snapshots | None,
        values: Callable[[], dict[str, Any]],
        take_values: Callable[[dict[str, Any]], None],
        progress: Callable[[], int],
        terms: Callable[[ProcessGroup], Terms],
        objects: Callable[[], Mapping[str, Any]],
        commits: Sequence[int] = (),
    ) -> None:
        """`commits`: the tags of ops that a member may begin a sync with, before it calls `sync` of this object."""
        self._terms = terms
        self._objects = objects
        self._commits = commits
        self._training = training
        self._state = ShardedState(training.model, training.optimizers)
        self._snapshots = snapshots
        self._values = values
        self._take_values = take_values
        self._progress = progress
        self.keeper: Keeper | None = None
        self._members: tuple[UUID, ...] = ()
        self._own = 0
        self._revision = 0
        self._attached = 0
        self._era = 0
        self._group: ProcessGroup | None = None
        self._optimizer_steps = 0
        self._stepped = [0] * len(training.optimizers)  # steps of each optimizer since the last sync
        self._votes = 0  # since the last sync
        self._problem = ""  # for which snapshots fail for good, to be told in the next sync
        self._judged: tuple[int, ...] = ()  # forms of the optimizers' state that all members can place
        self._journal = Journal()
        self._at_sync = (0, 0)
        self._taken = 0  # the step of the last snapshot
        self._asks_to_leave: Callable[[], bool] = lambda: False
        self._has_replicas = False
        self._leaves = False
        self._left = False  # the run, in order
        self.restored: Restored | None = None
        for number, optimizer in enumerate(training.optimizers):
            optimizer.register_step_pre_hook(functools.partial(self._before_step, number))
            optimizer.register_step_post_hook(functools.partial(self._after_step, number))

    def _before_step(self, number: int, *_: Any) -> None:
        """With replicas, members agree to step: all survivors step, or none. So what they have are parts of one state.

        The optimizers that step after one another need one agreement. PeerLostError: a member was lost in the step.
        """
        if self._state.shards and self._group is not None and self._stepped[number] == self._votes:
            self._votes += 1
            self._group.barrier().wait()
        if self.keeper is not None:
            self.keeper.fence()

    def _after_step(self, number: int, *_: Any) -> None:
        self._stepped[number] += 1
        self._optimizer_steps += 1

    def _begin_step(self) -> None:
        self._at_sync = self._progress(), self._optimizer_steps
        self._stepped = [0] * len(self._stepped)
        self._votes = 0

    # ---- sync ----

    def sync(self, group: ProcessGroup, seconds: float, *, looks: bool, leaves: Callable[[], bool]) -> bool:
        """Whether the members are others than after the last call, and so the mesh.

        `leaves`: whether this process gives its part to the others, which ends with Left. It has no effect in the first call.
        """
        if group.membership == FIXED:
            raise ValueError('Elastic: a sharded model cannot have fixed membership; pass membership="elastic"')
        comm = group.communicator
        if self.keeper is None and self._snapshots is not None:
            name = self._snapshots.name_of_run(this_run.masters)
            self.keeper = Keeper(comm, self._snapshots, name, timeout=group._timeout)
        if self.keeper is not None:
            self.keeper.fence()
        if not self._members:
            self._enter(group, seconds)
            return True
        self._asks_to_leave = leaves
        self._leaves = leaves()
        broken = None if self.keeper is None else self.keeper.broken
        if broken is not None:
            raise RuntimeError(f"this process has left the run, since its snapshot failed: {broken}") from broken
        if self.keeper is not None:
            if failure := self.keeper.verdict(self._progress()):
                self._problem = f"snapshots fail: {failure}"
            comm._note_protections(**self.keeper.missing)
        with self._journal.call(comm, "sync") as journal:
            living, leaving, unjudged = self._agreed(journal, comm, seconds)
            if unjudged and living == frozenset(self._members):
                journal.once(self._judge, comm, seconds)
            if leaving:
                time.sleep(NOTICE_SECONDS)  # where all of a job get the signal, none divides a state that nobody goes on with
            same = living == frozenset(self._members) and not leaving
            if same and looks:
                same = not journal.once(functools.partial(comm.are_peers_pending, timeout=seconds))
        if same:
            self._begin_step()
            if self._snapshots is not None and self._progress() - self._taken >= self._snapshots.every:
                self.snapshot()
            return False
        self._leaves = leaves()  # `pccl drain` may have named it since, and the next update would let it go with its part
        self._restore(group, seconds)
        if self._left:
            raise Left
        return True

    @property
    def protected_step(self) -> int | None:
        """The step to which a loss would take the run back; None: nothing would be left."""
        if self._has_replicas:
            return self._progress()
        return None if self.keeper is None else self.keeper.protected_step

    def _agreed(self, journal: Journal, comm: Communicator, seconds: float) -> tuple[frozenset[UUID], int, int]:
        """Who lives, how many leave, and of how many the state is to be judged: the same at all, whatever each has heard."""
        unjudged = bool(self._problem) or self._state.forms() != self._judged
        numbers = torch.tensor([int(self._leaves), int(unjudged)], dtype=torch.int64, device="cpu")
        living, numbers = journal.step(lambda values, timeout: roll(comm, values, _ROLL, timeout), numbers, seconds)
        return living, *numbers.tolist()

    def _judge(self, comm: Communicator, seconds: float) -> None:
        """ProtectionError, on all alike: the snapshots of a member fail for good, or the state of optimizers cannot be placed.

        It is judged when there is more of it, as after the first step, rather than when a loss needs it.
        """
        problem, self._judged = self._problem, self._state.forms()
        own: dict[str, str] = {}
        try:
            self._encoded_values()
            own = self._described()
        except Exception as error:  # told to all: others wait for this member
            problem = problem or f"{type(error).__name__}: {error}"
        talk = Talk(comm, self._members, self._own, "judge", seconds)
        try:
            told = talk.gather_bytes(bytes(encode({"problem": problem, "state": own})))
        except PeerLostError:
            self._judged = ()  # another sync does it
            return
        self._problem = ""
        all_told = understood(told, _judgement, "state")
        for rank, (text, state) in enumerate(all_told):
            if text:
                raise ProtectionError(f"the next loss would end the run or take it far back, since at rank {rank} {text}")
            first = all_told[0][1]
            for name in sorted(first.keys() | state.keys()):
                if first.get(name) != state.get(name):
                    texts = f"{first.get(name, 'missing')} at rank 0, and {state.get(name, 'missing')} at rank {rank}"
                    raise ProtectionError(
                        f"{name} is {texts}; a plain tensor must be the same on all members, and only a DTensor is divided"
                    )

    def _enter(self, group: ProcessGroup, seconds: float) -> None:
        """The first sync of this process: a run begins, goes on after all were started anew, or lets this process in."""
        comm = group.communicator
        if not this_run.to_join:
            self._restore(group, seconds, first=True)
            return
        with this_run.joining(comm):
            comm.connect(timeout=seconds, begin=this_run.to_begin)
            self._restore(group, seconds, first=True)

    def snapshot(self) -> None:
        """Begins a snapshot of the state as it is. All members call it at the same step."""
        assert self.keeper is not None
        self.keeper.era = self._era
        self._taken = self._progress()
        parts: dict[str, torch.Tensor] = {}
        shards: ShardMap = {}
        values, problem = b"", None
        try:
            values = self._encoded_values()
            parts, shards = self._state.local()
        except Exception as error:  # told to all: others wait for this member
            problem = error
        self.keeper.take(Contribution(self._taken, parts, shards, values, self._members, self._own, problem))

    def _described(self) -> dict[str, str]:
        """What all members must have alike. TypeError, ValueError: neither a snapshot nor `remesh` can place the state."""
        tensors, modules = reached(self._objects(), self._training.model)
        movable(self._with(modules), self._training.optimizers, tensors)
        return self._state.described()

    def _with(self, modules: Sequence[nn.Module]) -> nn.Module:
        return nn.ModuleList([self._training.model, *modules]) if modules else self._training.model

    def _split(self) -> Any:
        """The values without their DTensors, which become entries of the state."""
        tree, places = without_tensors(self._values(), kind_of=DTensor)
        self._state.trees = {name: one for name, (_, one) in places.items() if isinstance(one, DTensor)}
        return tree

    def _encoded_values(self) -> bytes:
        """What is told beside the tensors. From here on `trees` of the state are as they are now."""
        tree, own = self._split(), self._training.own()
        outlines = {"outline": self._state.outline(), "trees": outline_of(self._state.trees)}
        return bytes(encode({**outlines, "own": own, "values": tree}))

    # ---- restore ----

    def _restore(self, group: ProcessGroup, seconds: float, *, first: bool = False) -> None:
        """Brings the state to all who are there, divided anew, and makes them the members of the group."""
        comm = group.communicator
        self._began = time.monotonic()
        known = () if this_run.to_join else group.members
        damaged: set[int] = set()
        self._spoiled = False
        try:
            group._launcher.end_broken_calls(seconds)
            live = self._live(usable_anyway=first)
            for attempt in range(ATTEMPTS):
                if self.keeper is not None:
                    self.keeper.settle()
                try:
                    if not first or attempt:
                        comm.update_topology(timeout=seconds)
                    if self._restored(group, known, live, damaged, seconds):
                        return
                except (PeerLostError, CallAgainError, TooFewPeersError):
                    if attempt == ATTEMPTS - 1:
                        raise
        except StateLostError:
            raise
        except Exception:
            comm.close()  # the others must not wait for this process
            raise
        raise StateLostError(f"the state is lost: {ATTEMPTS} attempts to restore it have failed; see the log")

    def _live(self, *, usable_anyway: bool) -> _Live:
        """The tensors as they are: of no use after a step that was begun and not ended, since some may have changed theirs."""
        values = self._encoded_values()
        parts, shards = self._state.local()
        progress, steps = self._progress(), self._optimizer_steps
        begun, stepped = self._at_sync
        usable = usable_anyway or progress != begun or steps == stepped
        return _Live(parts, shards, (progress, steps - stepped) if usable else (), values)

    def _restored(self, group: ProcessGroup, known: tuple[UUID, ...], live: _Live, damaged: set[int], seconds: float) -> bool:
        """One attempt. False: another one may succeed."""
        comm = group.communicator
        here = comm._snapshot
        self._leaves = self._leaves or self._asks_to_leave()
        stock = Stock(None if self.keeper is None else self.keeper.kept)
        own_held = stock.held
        era = max([self._era, *(one.era for one in own_held)])
        terms = joined([self._terms(group), settings_of(self._snapshots, self._state.shards)])
        told = Told(
            host_name(),
            known,
            self._revision,
            self._attached,
            era,
            live.version if not self._spoiled else (),
            live.shards,
            own_held,
            stock.layouts,
            sorted(damaged),
            self._leaves,
            self._state.shards,
        )
        talk = Talk(comm, here, here.index(comm.uuid), "Elastic.sync", seconds)
        content, new = bytes(encode(tree_of(told, stock.infos))), bool(this_run.to_join)
        standing = Standing(True, self._revision, False, 0, new, len(content), *terms.digests())
        rows = [Standing(*row) for row in talk.gather(standing)]
        newest = max(one.revision for one in rows)
        in_run = [place for place, one in enumerate(rows) if newest and one.revision == newest]
        digests, who = [one[-2:] for one in rows], label_in(comm, talk.own if new else group.rank())
        alike = functools.partial(require_alike, "Elastic", terms, digests, talk.gather_bytes, who, talk.own)
        if alike(known=in_run, fresh=False):
            return False
        all_told = understood(talk.gather_bytes(content, [one.wanted for one in rows]), told_of, "inventory")
        ranks = next((one.members for one in all_told if one.revision == newest and one.members), ())
        leaving = tuple(one for one, other in zip(here, all_told, strict=True) if other.leaves)
        members = tuple(one for one in (*ranks, *(one for one in here if one not in ranks)) if one in here and one not in leaving)
        order = (*members, *leaving)
        damaged.update(*(one.damaged for one in all_told))
        by_rank = [all_told[here.index(member)] for member in order]
        talk = Talk(comm, order, order.index(comm.uuid), "restore in order", seconds)
        self._state.shards = next(one.replica for one in by_rank if one.revision == newest)
        layouts = stock.exchange_layouts(talk, [one.layouts for one in by_rank])
        source, root, is_live = source_of(by_rank, layouts, damaged, newest)
        era = max(one.era for one in by_rank) + 1
        if source is None and order == known:  # a run begins, with the tensors that each has
            alike()
            self._finish(group, order, talk.own, 1, era)
            if self._snapshots is not None:
                self.snapshot()
            return True
        if source is None:
            raise StateLostError("the state is lost: a member was lost before the first step of the run")
        if not members:
            self._leave_to_holders(comm, is_whole=is_live and frozenset(here) == frozenset(self._members))
            return True
        strangers = [rank for rank, one in enumerate(by_rank) if one.revision == 0 and one.shards is not None]
        known_slices = {name: one for some in source.layout.maps for name, one in some.items()}
        if not _all_fit({rank: by_rank[rank].shards or {} for rank in strangers}, known_slices, talk.own, "model."):
            return False
        pieces = self._opened(talk, source, live, stock, is_live=is_live)
        if pieces is None:
            return False
        if is_live:
            source = self._as_snapshot(talk, source, live, pieces, era)
        # A member that has stepped when others have not, or the other way round, takes their state.
        stale = is_live and bool(known) and not any(talk.own in ranks for ranks in source.images.values())
        content = decode(self._values_of(talk, source, root, pieces, None if stale else live))
        self._attached = max(one.attached for one in by_rank) + 1
        parts: dict[str, torch.Tensor] = {}
        shards: ShardMap = {}
        if not self._leaves:
            self._spoiled |= not is_live or stale  # from here on numbers beside the tensors are those of the snapshot
            group.attach(comm, members, self._attached)
            self._state.take_outline(content["outline"])
            tensors, modules = reached(self._objects(), self._training.model)
            shards_least = self._state.shards or None
            remesh(self._with(modules), self._training.optimizers, shards=shards_least, tensors=tensors)
            self._split()
            self._state.trees = fitted(content.get("trees", {}), self._state.trees, self._training.model)
            parts, shards = self._state.local()
        maps = understood(talk.gather_bytes(bytes(encode(shards_tree(shards)))), shards_from, "shard map")
        if not _all_fit(dict(enumerate(maps[: len(members)])), known_slices, talk.own):
            return False
        received = carry_out(plan(source, maps), source, talk, lambda name: pieces[name].bytes, parts, shards)
        try:
            verify(source, talk, parts, maps)
        except DamagedError as error:
            _log.error("%s", str(error))
            self._spoiled = True
            damaged.add(source.id)
            return False
        if self._leaves:
            self._leave(talk)
            return True
        self._write_back(parts)
        values = with_tensors(content["values"], self._state.trees)
        if not is_live or not known or stale:
            self._training.take_own(content["own"])
            self._take_values(values)
        else:  # values are there, and what an object has told may be copies of its tensors
            for name in {one.split(".")[1] for one in self._state.trees}:
                is_object, state = values["values"][name]
                if is_object:
                    load_object_state(self._objects()[name], state, f"value {name!r}")
        self._finish(group, members, talk.own, newest + 1, era)
        self.restored = Restored(self._progress(), not is_live, received, time.monotonic() - self._began)
        complete = len(members) == 1
        if self._snapshots is not None and len(members) > 1:
            self.snapshot()
            assert self.keeper is not None
            complete = self.keeper.settle()  # until then the next loss would find the snapshot before, of other members
        if leaving and not self._may_go(talk, complete=complete or self._snapshots is None) and self.keeper is not None:
            self._note_early(comm, has_part=self._may_go(talk, complete=True))
        return True

    def _may_go(self, talk: Talk, *, complete: bool) -> bool:
        """Whether all have a complete snapshot, and nobody was lost: then those who leave are not needed any more."""
        try:
            return all(row[0] for row in talk.gather([int(complete)]))
        except PeerLostError:
            return False  # members hear of it in their next sync

    def _note_early(self, comm: Communicator, *, has_part: bool) -> None:
        """Members have left before the others had a complete snapshot; `has_part`: the holders of their hosts have theirs."""
        assert self.keeper is not None
        text = "members have left before the others had a whole snapshot, and "
        if has_part:
            _log.warning("%s", text + "their parts stay with the holders of their hosts until there is one")
        else:
            _log.error("%s", text + "no holder has their parts; a loss before there is one may cost the state")
        self.keeper.missing["drain"] = True
        comm._note_protections(drain=True)

    def _leave(self, talk: Talk) -> None:
        """Waits until the others can do without this process, and leaves."""
        not_needed = self._may_go(talk, complete=True)
        if self.keeper is not None and not_needed:
            self.keeper.close()
        elif self.keeper is not None:
            _log.warning("%s", "leaves before the others have a whole snapshot without it")
            stored = self._snapshots is not None and self._snapshots.holder
            try:
                for snapshot in self.keeper.kept.snapshots:
                    self.keeper.kept.store(snapshot)
            except HolderError as error:
                _log.error("%s", f"the holder has not got its part: {error}; a loss now may cost the state")
                stored = False
            self._may_go(talk, complete=stored)
            self.keeper.kept.abandon()
        self._end(talk.abandon)

    def _leave_to_holders(self, comm: Communicator, *, is_whole: bool) -> None:
        """All leave: whoever is started next with the same name goes on from a last snapshot."""
        if self.keeper is not None:
            if is_whole:
                self.snapshot()
                self.keeper.settle()
            self.keeper.kept.abandon()
        self._end(comm.close)

    def _end(self, leave_run: Callable[[], None]) -> None:
        leave_run()
        self._left = True

    def _opened(self, talk: Talk, source: Source, live: _Live, stock: Stock, *, is_live: bool) -> dict[PieceName, Memory] | None:
        """The pieces that this process has of what is restored. None: a member cannot give one that it has told of."""
        found: dict[PieceName, Memory] = {}
        good = 1
        try:
            if is_live:
                slot = next((slot for slot, ranks in source.images.items() if talk.own in ranks), None)
                if slot is not None:
                    image, values = Memory.new(source.layout.sizes[slot]), Memory.of(live.values)
                    write_image(live.parts, live.shards, image.bytes)
                    found = {PieceName("image", slot): image, PieceName("values", slot): values}
            else:
                found = stock.pieces(source.id)
        except (HolderError, KeyError) as error:
            _log.error("%s", f"snapshots: {error}")
            if self.keeper is not None:
                self.keeper.kept.abandon()
            good = 0
        return found if all(row[0] for row in talk.gather([good])) else None

    def _as_snapshot(self, talk: Talk, source: Source, live: _Live, pieces: Mapping[PieceName, Memory], era: int) -> Source:
        """Keeps the tensors as they are as a snapshot without redundancy, until the next one: a newcomer may be lost at once."""
        slot = next((slot for slot, ranks in source.images.items() if talk.own in ranks), None)
        own = Sum(0, 0)
        for name in source.layout.first[slot] if slot is not None else ():
            own += hash_slice(name, live.shards[name], live.parts[name].cpu())
        rows = talk.gather([*own.signed(), live.version[0] if slot is not None else 0, int.from_bytes(os.urandom(7), "little")])
        sums = {slot: Sum.of_signed(*rows[ranks[0]][:2]) for slot, ranks in source.images.items()}
        if self.keeper is not None and slot is not None:
            step = rows[source.images[0][0]][2]
            self.keeper.kept.snapshots.append(Snapshot(rows[0][3], era, step, source.layout, dict(pieces), sums, True, bare=True))
        return source._replace(total=sum(sums.values(), Sum(0, 0)))

    def _write_back(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Where a local part was not contiguous, `parts` has a copy of it."""
        with torch.no_grad():
            for name, tensor in self._state.tensors().items():
                local = local_part(tensor)
                if local.data_ptr() != parts[name].data_ptr():
                    local.copy_(parts[name])

    def _finish(self, group: ProcessGroup, order: tuple[UUID, ...], own: int, revision: int, era: int) -> None:
        self._members, self._own, self._judged = order, own, ()
        self._revision = revision
        self._era = era
        self._has_replicas = self._state.are_replicas()
        self._begin_step()
        if self._state.shards:
            group.guard(order, (_ROLL, *self._commits))
            self._group = group

    def _values_of(self, talk: Talk, source: Source, root: int, pieces: Mapping[PieceName, Memory], live: _Live | None) -> bytes:
        """The own values of the time of the snapshot, or else those of one member. `live`: None if they are of another step."""
        own: bytes | None = None
        if source.id == LIVE:
            own = live.values if self._revision and live is not None else None
        else:
            names = sorted(name for name in pieces if name.kind == "values")
            kept = self.keeper.kept.snapshots if self.keeper is not None else []
            own_names = [name for one in kept if one.id == source.id for name in one.pieces if name.kind == "values"]
            if not own_names and len(talk.members) == len(source.layout.maps):  # all were started again: by rank
                own_names = [name for name in names if name.place == talk.own]
            name = next(iter(own_names or (names if talk.own == root else ())), None)
            own = None if name is None else pieces[name].bytes.numpy().tobytes()
        told = talk.broadcast(root, own if talk.own == root else None)
        return told if own is None else own


def _all_fit(maps: Mapping[int, ShardMap], known: ShardMap, own: int, part: str = "") -> bool:
    """Whether these members have the tensors of the state. ValueError at one that has not."""
    found = {rank: text.removeprefix("model.") for rank, some in maps.items() if (text := misfit(some, known, part))}
    advice = "make the same model and optimizers on all members"
    return not _refused(found, own, f"{advice}, or, if an earlier run has left the state in memory, give Snapshots another name")


def _refused(found: Mapping[int, str], own: int, advice: str) -> bool:
    """Whether members are refused: `found` has why. ValueError at one of them."""
    if own in found:
        raise ValueError(f"{found[own]}; {advice}")
    for rank, text in found.items():
        _log.warning("%s", f"rank {rank} is refused: {text}")
    return bool(found)


def _judgement(tree: Any) -> tuple[str, dict[str, str]]:
    return text_of(tree["problem"]), {text_of(name): text_of(text) for name, text in tree["state"].items()}


class _Live(NamedTuple):
    """The tensors of a training as they are, and its values."""

    parts: dict[str, torch.Tensor]
    shards: ShardMap
    version: tuple[int, ...]
    values: bytes
