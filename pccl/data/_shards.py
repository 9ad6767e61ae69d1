"""Streams: shards that are read from their beginning, whose records are each in exactly one committed step."""

from __future__ import annotations

import itertools
import logging
import operator
import os
import random
import threading
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from pccl._exports import publish
from pccl._ops.journal import Journal
from pccl._peer.communicator import Communicator
from pccl.data._exchange import (
    TAG,
    digest_of,
    fingerprint,
    require_dealt,
    require_order,
    require_same,
    require_state,
    require_whole,
    tell_all,
)
from pccl.data._members import communicator_of, founders, rank_in

_log = logging.getLogger("pccl.data")

_VAIN_STEPS = 2000
"""After so many steps of a rank without records, and without a commit, `batches` warns."""


class Mark(NamedTuple):
    """How far a shard was read."""

    shard: int
    """Its place in the list of shards."""
    records: int
    """From its beginning on."""
    ended: bool
    """Whether there are no more."""


class Progress:
    """What all members know alike: which records are committed, and who reads which shard. Pure.

    Each shard has one reader at a time, which commits its records in order. So what is committed of a shard is a number, and a
    shard that changes its reader goes on there.
    """

    def __init__(self, count: int, seed: int, *, shuffle: bool) -> None:
        self.count = count
        self.epoch = 0
        self.members: tuple[Hashable, ...] = ()
        self.plans: list[list[int]] = []
        """The shards of each member that have not ended, in the order in which it reads them."""
        self.marks: dict[int, Mark] = {}
        """Of the shards that were begun in this epoch."""
        self._seed, self._shuffle = seed, shuffle

    @property
    def left(self) -> list[int]:
        """The shards that have not ended, in the order of the epoch."""
        order = list(range(self.count))
        if self._shuffle:
            random.Random(f"{self._seed} {self.epoch}").shuffle(order)
        return [one for one in order if not self.mark(one).ended]

    def mark(self, shard: int) -> Mark:
        """Returns how far a shard is committed."""
        return self.marks.get(shard, Mark(shard, 0, False))

    def deal(self, members: Sequence[Hashable], held: Sequence[Iterable[int]]) -> None:
        """Gives each shard that has not ended to a member. `held` are those of which it has records that are to be committed."""
        left = self.left
        owner: dict[int, int] = {}
        for place, shards in enumerate(held):
            for one in shards:
                owner.setdefault(one, place)
        self.members = tuple(members)
        self.plans = [[one for one in left if owner.get(one) == place] for place in range(len(self.members))]
        for one in left:
            if one not in owner:
                min(self.plans, key=len).append(one)

    def commit(self, rows: Mapping[Any, Iterable[Mark]]) -> bool:
        """Commits what members have read. Returns True if the shards are to be dealt out anew, since some member has none."""
        for marks in rows.values():
            for mark in marks:
                before = self.mark(mark.shard)
                if mark.records < before.records or before.ended:
                    raise ValueError(f"shard {mark.shard} is committed up to record {before.records}, and not {mark.records}")
                self.marks[mark.shard] = mark
        self.plans = [[one for one in plan if not self.mark(one).ended] for plan in self.plans]
        sizes = [len(plan) for plan in self.plans]
        return len(rows) < len(self.members) or (min(sizes) == 0 and max(sizes) > 1)

    def begin(self, epoch: int) -> None:
        """Begins an epoch, after all shards of the one before have ended."""
        self.epoch, self.marks = epoch, {}
        if self.members:
            self.deal(self.members, [()] * len(self.members))

    def state(self) -> dict[str, Any]:
        """What `load` takes: plain values."""
        return {"shards": self.count, "epoch": self.epoch, "marks": [list(one) for one in sorted(self.marks.values())]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Loads a state; there are no members then. ValueError: it is of another number of shards."""
        if state["shards"] != self.count:
            raise ValueError(f"the state is of {state['shards']} shards, not {self.count}")
        self.epoch = state["epoch"]
        self.marks = {shard: Mark(shard, records, bool(ended)) for shard, records, ended in state["marks"]}
        self.members, self.plans = (), []

    def digest(self) -> int:
        """Returns a number that differs where states differ."""
        return zlib.crc32(repr(self.state()).encode())


class _Part(IterableDataset[tuple[list[Mark], Any]]):
    """Batches of some shards, with how far these were read. Workers of a loader share the shards out."""

    def __init__(
        self,
        plan: Sequence[tuple[int, Any, int]],
        read: Callable[[Any], Iterable[Any]],
        batch_size: int,
        collate: Callable[[list[Any]], Any],
    ) -> None:
        self._plan, self._read, self._batch_size, self._collate = plan, read, batch_size, collate

    def __iter__(self) -> Iterator[tuple[list[Mark], Any]]:
        worker = get_worker_info()
        plan = self._plan if worker is None else self._plan[worker.id :: worker.num_workers]
        records: list[Any] = []
        marks: dict[int, Mark] = {}
        for shard, content, skipped in plan:
            count = skipped
            for record in itertools.islice(self._read(content), skipped, None):
                if len(records) == self._batch_size:  # not sooner: the last batch tells that its shard has ended
                    yield list(marks.values()), self._collate(records)
                    records, marks = [], {}
                records.append(record)
                count += 1
                marks[shard] = Mark(shard, count, False)
            marks[shard] = Mark(shard, count, True)
        if marks:
            yield list(marks.values()), self._collate(records) if records else None


class ElasticShards:
    """Reads shards, such as files, whose records are each in exactly one committed step of an epoch::

        shards = ElasticShards(paths, read=read_records, batch_size=32)
        run = pccl.distributed.Elastic(model, optimizer, step=0, shards=shards)
        run.sync()
        for epoch in shards.epochs(3):
            for batch in shards.batches(num_workers=2):
                loss = loss_of(model(batch)) if batch is not None else 0 * sum(p.sum() for p in model.parameters())
                ...
                run.sync()

    `shards`: what `read` turns into an iterable of records, which are the same in the same order each time. Their number need not
    be known. `collate` makes a batch of a list of records. `shuffle`, `seed`, `communicator` and the methods `seal`, `commit`,
    `commit_step`, `sync`, `state_dict` and `load_state_dict`: as of ElasticSampler. `comm`: a communicator in place of that one;
    `timeout` is in seconds. ValueError: `batch_size` is below 1, or there are no shards. TypeError: it is no whole number, or
    `read` is not callable.

    Each shard has one reader at a time. When members are lost or join, the shards are dealt out anew; what loaders have read
    ahead is dropped on all members, and read again. Have a few times more shards than members.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        read: Callable[[Any], Iterable[Any]],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        communicator: Communicator | None = None,
    ) -> None:
        if operator.index(batch_size) < 1:
            raise ValueError(f"batch_size must be 1 or more records, not {batch_size}")
        if not len(shards):
            raise ValueError(f"shards must name one shard or more, not {shards!r}")
        if not callable(read):
            raise TypeError(f"read must be a callable that turns a shard into an iterable of records, not {read!r}")
        self._shards, self._read, self._batch_size, self._collate = shards, read, batch_size, collate
        self._comm = communicator
        self._progress = Progress(len(shards), seed, shuffle=shuffle)
        self._order = {"seed": seed, "shuffle": bool(shuffle), "names": fingerprint(*map(_name_of, shards))}
        self._digest = digest_of(self)
        self._lock = threading.RLock()
        self._place = 0
        self._era = 0
        self._commits = 0
        self._given: dict[int, Mark] = {}
        """How far the program has got, of what is not committed."""
        self._sealed: dict[int, Mark] = {}
        self._marks: deque[dict[int, Mark]] = deque(maxlen=8)
        self._journal = Journal()
        self._owes_sync = False  # a commit has found that shards are to be dealt out anew

    commit_tag = TAG + 1
    """Of the op that `commit_step` begins with."""

    @property
    def epoch(self) -> int:
        """The epoch under way."""
        return self._progress.epoch

    @property
    def remaining(self) -> int:
        """Shards of the epoch with records that are not committed, or that may have some."""
        return len(self._progress.left)

    def epochs(self, stop: int) -> Iterator[int]:
        """Gives each epoch before `stop`, from the one under way on."""
        while True:
            if not self.remaining:
                if self.epoch + 1 >= stop:
                    return
                self.set_epoch(self.epoch + 1)
            yield self.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, on all members. One that has begun is no change. ValueError: the one before is not committed."""
        with self._lock:
            require_whole(self._journal, "sync")
            if epoch > self.epoch:
                if self.remaining and self._progress.marks:
                    raise ValueError(f"set_epoch({epoch}): {self.remaining} shards of epoch {self.epoch} are not committed")
                self._progress.begin(epoch)
                self._drop()

    def batches(self, num_workers: int = 0, **arguments: Any) -> Iterator[Any]:
        """Gives the batches of this rank until all members have committed all records of the epoch.

        A rank that has no records left gets None meanwhile: it takes part in the steps of the others with a gradient of zero.
        The last batches of a worker may be smaller. `arguments`: of the DataLoader that reads in workers.
        """
        self._require_members()
        with self._lock:
            self._given = dict(self._sealed)  # a loop before was left, and its last batches are in no step
        era, vain = -1, 0
        reader: Iterator[tuple[Sequence[Mark], Any]] = iter(())
        while self.remaining:
            if era != self._era:
                era, reader = self._era, self._open(num_workers, arguments)
            none: tuple[Sequence[Mark], Any] = (), None
            with self._lock:
                require_whole(self._journal, "sync")
            marks, batch = next(reader, none)
            with self._lock:
                self._given.update((mark.shard, mark) for mark in marks)
                commits = self._commits
            if batch is not None or not marks:
                yield batch
            vain = vain + 1 if batch is None and commits == self._commits else 0
            if vain == _VAIN_STEPS:
                _log.warning("batches() gave None %d times, and nothing was committed: call commit() or Elastic.sync()", vain)

    def state_dict(self) -> dict[str, Any]:
        """How far each shard is committed, as plain numbers. It is the same on all members, and of any number of them."""
        with self._lock:
            return {**self._progress.state(), **self._order}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned. Members load the same one, and call `sync` then. What was read ahead is dropped.

        ValueError: the state is of another number of shards, of other names, seed or order, or of something else. RuntimeError: a
        call was cut short and has to be repeated.
        """
        require_state(state_dict, self.state_dict(), type(self).__name__)
        require_order(state_dict, self._order)
        if state_dict["shards"] == len(self._shards) and state_dict["names"] != self._order["names"]:
            raise ValueError("the state is of shards of other names, or in another order; pass those of the run that saved it")
        with self._lock:
            require_whole(self._journal, "sync", "commit_step")
            self._progress.load(state_dict)
            self._drop()

    def seal(self) -> None:
        """Notes that the step under way is made with all records that were given to the program."""
        with self._lock:
            self._sealed = dict(self._given)

    def commit(self, *, timeout: float | None = None) -> bool:
        """Commits the records that were given to the program, on all members, after the last collective of a step.

        Returns True if the shards were dealt out anew. Not needed with Elastic or DiLoCo. `timeout` in seconds is for each
        message. After PCCLTimeoutError or Ctrl-C repeat the call.
        """
        comm = communicator_of(self._comm)
        with self._lock:
            if not (self._owes_sync and self._journal.cut_short == "sync"):
                self.seal()
                self._owes_sync = self.commit_step(comm, timeout)
            if self._owes_sync:
                self.sync(comm, timeout)
            return self._owes_sync

    def commit_step(self, comm: Communicator | None, timeout: float | None = None, *, lag: int = 0) -> bool:
        """Commits what is sealed, or was so many calls before. Returns True if all have to call `sync`.

        RuntimeError, and nothing is committed: `sync` was not called since members have come, or settings differ between members.
        After PCCLTimeoutError or Ctrl-C repeat the call.
        """
        with self._lock:
            if comm is None:
                own = self._told_at_commit(lag)
                return self._take_commit({self._progress.members[0]: own})
            with self._journal.call(comm, "commit_step") as journal:
                own = journal.once(self._told_at_commit, lag)
                rows = tell_all(comm, own, timeout, journal)
                require_same(self, (row[0] for row in rows.values()), comm, timeout, journal)
                return journal.once(self._take_commit, rows)

    def sync(self, comm: Communicator | None = None, timeout: float | None = None, *, keeps_open: bool = True) -> None:
        """Deals out the shards among those who are members now. All call it; newcomers load the state before.

        `keeps_open`: records that were given to the program, and are in no finished step, stay those of this rank; else the step
        was lost, and they are read again. RuntimeError, on all: members have different states or settings. `timeout` is for each
        message. After PCCLTimeoutError or Ctrl-C repeat the call, which goes on with what this member has told the others;
        reading batches before that raises RuntimeError.
        """
        comm = comm or communicator_of(self._comm)
        with self._lock:
            if comm is None:
                self._take_sync(0, {0: self._told_at_sync(0, keeps_open=keeps_open)})
                return
            with self._journal.call(comm, "sync") as journal:
                told = journal.once(lambda: self._told_at_sync(rank_in(comm), keeps_open=keeps_open))
                rows = tell_all(comm, told, timeout, journal)
                require_same(self, (row[1] for row in rows.values()), comm, timeout, journal)
                journal.once(self._take_sync, comm.uuid, rows)

    # ---- what members tell each other; with the lock ----

    def _told_at_commit(self, lag: int) -> list[int]:
        self._require_members()
        self._marks.append(dict(self._sealed))
        upto = self._marks[-1 - lag] if lag < len(self._marks) else {}
        marks = [mark for mark in upto.values() if mark != self._progress.mark(mark.shard)]
        return [self._digest, *(int(number) for mark in marks for number in mark)]

    def _take_commit(self, rows: Mapping[Any, Sequence[int]]) -> bool:
        self._commits += 1
        require_dealt(rows.keys(), self._progress.members)
        anew = self._progress.commit({member: _marks_from(row[1:]) for member, row in rows.items()})
        for kept in (self._given, self._sealed, *self._marks):
            for shard in [one for one, mark in kept.items() if mark == self._progress.mark(one)]:
                del kept[shard]
        return anew

    def _told_at_sync(self, rank: int, *, keeps_open: bool) -> list[int]:
        if not keeps_open:
            self._given = dict(self._sealed)
        return [rank, self._digest, self._progress.digest(), *sorted(self._given)]

    def _take_sync(self, own: Hashable, told: Mapping[Any, Sequence[int]]) -> None:
        if len({row[2] for row in told.values()}) > 1:
            raise RuntimeError(
                "members have different positions in the data: pass the shards to Elastic(...), or load the same state"
            )
        order = sorted(told, key=lambda member: (told[member][0], member))
        self._progress.deal(order, [told[member][3:] for member in order])
        self._place = order.index(own)
        others = set(range(self._progress.count)).difference(self._progress.plans[self._place])
        for kept in (self._given, self._sealed, *self._marks):  # two had read it, where the commit before was refused
            for shard in others.intersection(kept):
                del kept[shard]
        self._restart()

    # ---- inside ----

    def _terms(self) -> Mapping[str, Any]:
        """What all members pass alike."""
        settings = {"number of shards": len(self._shards), "seed": self._order["seed"], "shuffle": self._order["shuffle"]}
        names = {f"name of shard {place}": _name_of(one) for place, one in enumerate(self._shards)}
        return {**settings, "batch_size": self._batch_size, **names}

    def _drop(self) -> None:
        """Forgets what was given to the program and is not committed."""
        self._given, self._sealed = {}, {}
        self._marks.clear()
        self._restart()

    def _restart(self) -> None:
        self._era += 1

    def _require_members(self) -> None:
        require_whole(self._journal, "sync")
        if not self._progress.members:
            members, own = founders(self._comm) or ((0,), 0)
            self._progress.deal(members, [()] * len(members))
            self._place = members.index(own)

    def _open(self, workers: int, arguments: Mapping[str, Any]) -> Iterator[tuple[Sequence[Mark], Any]]:
        """Reads what is left of the shards of this member, from where its program has got to."""
        with self._lock:
            self._require_members()
            marks = [self._given.get(one, self._progress.mark(one)) for one in self._progress.plans[self._place]]
            plan = [(mark.shard, self._shards[mark.shard], mark.records) for mark in marks if not mark.ended]
        part = _Part(plan, self._read, self._batch_size, self._collate)
        if not workers:
            return iter(part)
        return iter(DataLoader(part, batch_size=None, num_workers=workers, collate_fn=_same, **arguments))


def _name_of(shard: Any) -> str:
    """Returns the last part of a path or an address, which is the same on all machines; nothing of other objects."""
    if not isinstance(shard, str | os.PathLike):
        return ""
    return os.path.basename(os.fsdecode(shard).partition("?")[0].rstrip("/"))


def _same(batch: Any) -> Any:
    return batch


def _marks_from(numbers: Sequence[int]) -> list[Mark]:
    triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return [Mark(shard, records, bool(ended)) for shard, records, ended in triples]


publish(globals())
