"""A sampler whose samples are each in exactly one committed step of an epoch, whoever is lost or joins."""

from __future__ import annotations

import functools
import logging
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

from pccl._exports import publish
from pccl._ops.journal import Journal
from pccl._peer.communicator import Communicator
from pccl.data import _reader
from pccl.data._exchange import (
    TAG,
    digest_of,
    require_dealt,
    require_order,
    require_same,
    require_state,
    require_whole,
    sum_over,
    tell_all,
)
from pccl.data._ledger import Ledger
from pccl.data._members import communicator_of, founders, rank_in

_log = logging.getLogger("pccl.data")

_ORDERS = 3
"""How many epochs have their order in memory."""

_VAIN_PASSES = 3
"""After so many passes without a commit `epochs` warns."""


class MicroBatches:
    """The batches of one step of a rank, to be iterated once; `len` tells how many there are."""

    def __init__(self, next_batch: Callable[[], Any], count: int) -> None:
        self._next, self._count = next_batch, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (self._next() for _ in range(self._count))


class ElasticSampler(DistributedSampler[Any]):
    """Takes the place of `torch.utils.data.DistributedSampler` where members may be lost or join.

        sampler = ElasticSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4)
        run = pccl.distributed.Elastic(model, optimizer, step=0, sampler=sampler)

    Each sample of an epoch is in exactly one committed step. A step is committed by one small all-reduce over the members: the
    samples that they have trained with since the last one are committed, and those of a member that is not among the contributors
    are read again, by the others. `Elastic.sync` and outer steps of DiLoCo commit by themselves; elsewhere call `commit`.

    Undisturbed it gives each rank the indices that DistributedSampler gives. After a change of the members it deals out what is
    neither committed nor read ahead by a survivor. A running iterator of a DataLoader stays valid: it goes on with what its
    workers have read ahead. All members have equally many samples left: the rest is padded by repeated samples (see `mask`),
    or, with `drop_last`, left out.

    `dataset`, `num_replicas`, `rank`, `shuffle`, `seed`, `drop_last`: as of DistributedSampler. `num_replicas` and `rank` count
    only where the process group is not of the backend "pccl". With that backend every rank reads samples of its own; ValueError:
    `num_replicas` says otherwise.
    `communicator`: commits by its collectives; else by those of the process group. `global_batch_size`: see `steps`.
    `comm` of a method: a communicator in place of that one; `timeout` is in seconds. ValueError: a number is out of range.

    Not to be drawn from by two loaders at once; give each loader a sampler of its own.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        communicator: Communicator | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        if not dist.is_initialized() and (communicator is not None or num_replicas is None):
            num_replicas, rank = 1, 0
        if num_replicas is not None and communicator is None:
            self._require_all_ranks(num_replicas)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        if global_batch_size is not None and global_batch_size < 1:
            raise ValueError(f"global_batch_size must be 1 or more samples, not {global_batch_size}")
        self.global_batch_size = global_batch_size
        self._comm = communicator
        self._ledger = Ledger(len(dataset), drop_last=drop_last)
        self._lock = threading.RLock()  # of all below: some loaders draw in a thread of their own
        self._place = 0
        self._drawn = 0
        self._given = 0
        self._sealed = 0
        self._marks: deque[int] = deque(maxlen=8)
        self._reader: _reader.Reader | None = None
        self._pass = 0
        self._pass_start = 0
        self._pass_end = 0
        self._in_pass = False
        self._is_new = True
        self._asked: int | None = None
        self._loops = 0
        self._loop_pass = 0
        self._shift = 0
        self._synced = False
        self._ended = False
        self._is_between = False
        self._joins_end = False
        self._kept: list[int] = []
        self._orders: dict[int, Sequence[int]] = {}
        self._journal = Journal()
        self._owes_sync = False  # a commit has found a loss

    commit_tag = TAG
    """Of the op that `commit_step` begins with."""

    # ---- as DistributedSampler ----

    def __iter__(self) -> Iterator[int]:
        number = self._begin_pass()
        while (index := self._draw(number)) is not None:
            yield index

    def __len__(self) -> int:
        """The number of samples of this rank in the pass under way, or in the next one."""
        with self._lock:
            if self._in_pass:
                return self._pass_end - self._pass_start
            self._note()
            if self._ledger.members:
                left = self._ledger.end(self.epoch, self._given) - self._given
            else:
                left = self._share(len(self._ledger.left))
            return left or self._share(self._ledger.size)

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, on all members. One that has begun already is no change.

        What is left of the epochs before, since a step of theirs was lost, is read first. A newcomer whose program
        has begun to count before it has joined, as frameworks do, goes on from the members' epoch. No change before
        the pass of a loop over `epochs`: loaders of frameworks count passes, and there may be more of these than epochs.
        RuntimeError: the program keeps the generator of a loop that it has left; it closes it before.
        ValueError: epochs are left out.
        """
        if self._loops:
            if epoch > self.epoch and self._pass != self._loop_pass:
                raise RuntimeError(
                    f"set_epoch: a loop over epochs() is at epoch {self.epoch}, and its pass has begun; let it give the next one "
                    "or close() its generator if the program has left it"
                )
            return
        self._asked = epoch
        self._begin_epoch(epoch + self._shift)

    def _begin_epoch(self, epoch: int) -> None:
        with self._lock:
            require_whole(self._journal, "sync")
            ledger = self._ledger
            if epoch > self.epoch:  # the program is between two passes, whatever the loader keeps
                self._note()
                self._reader, self._drawn, self._in_pass = None, self._given, False
                self._is_between = self._joins_end = False
            if epoch > ledger.epoch:
                if self._is_new:
                    ledger.start_at(epoch)
                elif epoch == ledger.epoch + 1:
                    ledger.extend(epoch)
                else:
                    raise ValueError(
                        f"set_epoch: {epoch}, but epoch {ledger.epoch} is under way; {ledger.epoch + 1} is the next one"
                    )
            self.epoch = max(self.epoch, epoch)

    def epochs(self, stop: int) -> Generator[int, None, None]:
        """Gives the epoch of each pass through the loader, until all samples of the epochs before `stop` are committed.

        Samples of a lost step that came too late for a pass are read in the next one. All members call it alike, and each step
        is committed by the end of a pass. What a loader with `drop_last` holds back comes in the next epoch, and is left out of
        the last one. It ends with a warning where samples are left that the program has got and makes no step with, such as the
        last ones of a pass that do not fill a step of accumulated gradients. It warns once after three passes in sequence that
        were left early and in which nothing was committed.
        """
        idle = vain = 0
        self._loops += 1
        try:
            while True:
                before, done = self.remaining, self._is_complete()
                if self.epoch >= stop:
                    return
                if self._ended or done:
                    if self.epoch + 1 < stop:
                        self._begin_epoch(self.epoch + 1)
                    elif done:
                        return
                    elif idle > 1:
                        _log.warning(
                            "%d samples of the last pass are in no step: call optimizer.step() after its last batch", before
                        )
                        return
                self._loop_pass, self._is_between = self._pass, False
                yield self.epoch
                vain = vain + 1 if self.remaining == before else 0
                idle = idle + 1 if vain and self._has_given_nothing() else 0
                if vain == _VAIN_PASSES and not self._ended:
                    _log.warning(
                        "epoch %d was given again, since nothing was committed in %d passes: a break does not end an epoch; call "
                        "commit() or Elastic.sync() after each step",
                        self.epoch,
                        vain,
                    )
        finally:
            self._loops -= 1

    def _is_complete(self) -> bool:
        """Returns whether no member gets more of the epochs that have begun. All know it alike."""
        with self._lock:
            left = len(self._ledger.left)
            if self._joins_end and self._given < self._pass_end:
                return False  # the others have repeated samples to come, and each makes a step with them
            if not self._ended or not left:
                return not left
            held_back = self._reader.held_back if self._reader is not None else 0
            return left == self._ledger.dropped or self._ledger.length - min(self._ledger.taken) <= held_back

    def _has_given_nothing(self) -> bool:
        """Returns whether the pass has ended, and its loader had no batch for the program."""
        with self._lock:
            self._note()
            return self._ended and self._given <= self._pass_start

    def state_dict(self) -> dict[str, Any]:
        """What is not committed, as plain numbers. It is the same on all members, and of any number of them."""
        with self._lock:
            return {**self._ledger.state(), "seed": self.seed, "shuffle": self.shuffle}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads what `state_dict` returned, of any number of members. Members load the same one, and call `sync` then.

        Batches that a loader has read ahead, and not given to the program, stay valid. ValueError: the state is of another
        number of samples, seed or order, or of something else. RuntimeError: samples were handed out before the first `sync`, or
        a call was cut short and has to be repeated.
        """
        own = self.state_dict()
        require_state(state_dict, own, type(self).__name__)
        if self._drawn and not self._synced:
            raise RuntimeError("samples were handed out before this process has joined; call iter(loader) after the first sync")
        require_order(state_dict, own)
        with self._lock:
            require_whole(self._journal, "sync", "commit_step")
            self._note()
            kept = self._in_flight(self._given)
            self._ledger.load(state_dict)
            self._is_new = False
            self._kept = kept
            self._rebase(self._given, len(kept))
            self.epoch = self._ledger.epoch
            if self._asked is not None and not self._synced:
                self._shift = self.epoch - self._asked

    # ---- commits ----

    @property
    def remaining(self) -> int:
        """Samples of the epochs that have begun that are not committed. 0: all of them are in a committed step."""
        with self._lock:
            return len(self._ledger.left)

    def mask(self, count: int) -> torch.Tensor:
        """Returns which of the last `count` samples that the program has got are to be learned from: bool, of shape (count,).

        The others are repeated, to fill up the last batches of a pass, since all members make equally many steps. Call it for
        each batch, with its size, and give the others the weight 0. ValueError: the program has got fewer.
        """
        with self._lock:
            require_whole(self._journal, "sync")
            self._note()
            if not 0 <= count <= self._given:
                raise ValueError(f"mask: {count} samples, but the program has got {self._given}")
            numbers = range(self._given - count, self._given)
            return torch.tensor([self._ledger.at(self._place, number) >= 0 for number in numbers], dtype=torch.bool, device="cpu")

    def micro_batches(self, batch_size: int | None) -> int:
        """Returns how many batches this rank accumulates in the coming step, so that all together read `global_batch_size`.

        Multiply the loss of each batch by `world_size * batch_size / global_batch_size`, since gradients are averaged over ranks.
        Members take turns where the batches do not divide. At the end of an epoch some may have fewer batches, or none; they
        take part in the step with a gradient of zero. ValueError: `global_batch_size` is no multiple of `batch_size`.
        """
        if not self.global_batch_size or not batch_size or batch_size < 1 or self.global_batch_size % batch_size:
            raise ValueError(f"global_batch_size must be a multiple of batch_size={batch_size}, not {self.global_batch_size}")
        with self._lock:
            self._require_members()
            quotient, rest = divmod(self.global_batch_size // batch_size, len(self._ledger.members))
            order = sorted(range(len(self._ledger.members)), key=lambda place: (self._ledger.taken[place], place))
            return quotient + (order.index(self._place) < rest)

    def steps(self, loader: Any) -> Iterator[MicroBatches]:
        """Gives the batches of this rank for each step of a pass through a DataLoader, as `micro_batches` divides them.

        All members make equally many steps. In the last ones of a pass some have fewer batches, or none; they take part with a
        gradient of zero. Each step is committed before the next one (RuntimeError). ValueError: as of `micro_batches`.
        """
        size, drops_last = loader.batch_size, loader.drop_last
        before = self._pass
        batches = iter(loader)

        def next_batch() -> Any:
            nonlocal batches
            for batch in batches:
                return batch
            self._loop_pass = self._pass  # a loader that counts passes calls set_epoch
            batches = iter(loader)  # it had ended when this rank got samples of a lost one
            for batch in batches:
                return batch
            raise RuntimeError(
                "steps: the loader has no batch left for this step; call commit() or Elastic.sync() after each step"
            )

        while True:
            with self._lock:
                turns = self.micro_batches(size)
                end = self._pass_end if self._pass != before else self._next_end(self._given)
                left = [end - taken for taken in self._ledger.taken]
                left = [one // size if drops_last else -(-one // size) for one in left]
            if max(left) <= 0:
                break
            yield MicroBatches(next_batch, max(min(turns, left[self._place]), 0))
        next(batches, None)  # so that the sampler sees the end of the pass

    def seal(self) -> None:
        """Notes that the step under way is made with all samples that were given to the program. Optimizers of an Elastic or of
        a DiLoCo do so by themselves."""
        with self._lock:
            self._note()
            self._sealed = max(self._sealed, self._given)

    def commit(self, samples: int | None = None, *, timeout: float | None = None) -> bool:
        """Commits the samples of a step, on all members, after its last collective. Returns True if a member was lost.

        `samples`: how many this rank has used since the last commit; None: all that were given to the program. Not needed with
        Elastic or DiLoCo. `timeout` in seconds is for each message. After PCCLTimeoutError or Ctrl-C repeat the call, with the
        same `samples`.
        """
        with self._lock:
            comm = communicator_of(self._comm)
            if not (self._owes_sync and self._journal.cut_short == "sync"):
                self._seal(samples)
                self._owes_sync = self.commit_step(comm, timeout)
            if self._owes_sync and comm is not None:
                self.sync(comm, timeout)
            return self._owes_sync

    def _seal(self, samples: int | None) -> None:
        if samples is None:
            self.seal()
            return
        own = self._ledger.taken[self._place] if self._ledger.members else 0
        if not 0 <= samples <= self._drawn - own:
            raise ValueError(f"commit: {samples} samples, but {self._drawn - own} were handed out since the last commit")
        self._sealed = own + samples
        self._given = max(self._given, self._sealed)

    def commit_step(self, comm: Communicator | None, timeout: float | None = None, *, lag: int = 0) -> bool:
        """Commits what is sealed. Returns True if a member was lost; then all have to call `sync`.

        `lag`: commits what was sealed so many calls before, since later samples are in no average yet. RuntimeError, and nothing
        is committed: `sync` was not called since members have come, or settings differ between members. After PCCLTimeoutError
        or Ctrl-C repeat the call.
        """
        with self._lock:
            if comm is None:
                own = self._told_at_commit(lag)
                return self._take_commit(dict.fromkeys(self._ledger.members, own))
            with self._journal.call(comm, "commit_step") as journal:
                own = journal.once(self._told_at_commit, lag)
                members = self._ledger.members
                told = torch.zeros(len(members), len(own), dtype=torch.int64, device="cpu")
                told[self._place] = torch.tensor(own, dtype=torch.int64, device="cpu")
                living, told = journal.step(functools.partial(sum_over, comm, TAG), told, timeout)
                assert living is not None, "a small all-reduce is not divided"
                require_dealt(living, members)
                pairs = zip(members, told.tolist(), strict=True)
                rows = {member: row for member, row in pairs if member in living}
                require_same(self, (settings for _, _, settings in rows.values()), comm, timeout, journal)
                return journal.once(self._take_commit, rows)

    def sync(self, comm: Communicator | None = None, timeout: float | None = None, *, keeps_open: bool = True) -> None:
        """Deals out the rest of the samples among those who are members now. All call it; newcomers load the state before.

        `keeps_open`: samples that were given to the program, and are in no finished step, stay those of this rank; else the step
        was lost, and they are dealt out again. RuntimeError, on all: members have different states or settings. `timeout` is for
        each message. After PCCLTimeoutError or Ctrl-C repeat the call, which goes on with what this member has told the others;
        reading samples before that raises RuntimeError.
        """
        comm = comm or communicator_of(self._comm)
        if comm is None:
            return
        with self._lock, self._journal.call(comm, "sync") as journal:
            told = journal.once(lambda: self._told_at_sync(rank_in(comm), keeps_open=keeps_open))
            standing = tell_all(comm, told, timeout, journal)
            require_same(self, (settings for _, _, _, settings in standing.values()), comm, timeout, journal)
            flights = tell_all(comm, journal.once(self._told_in_flight, standing), timeout, journal)
            journal.once(self._take_sync, comm.uuid, standing, flights)

    # ---- what members tell each other; with the lock ----

    def _told_at_commit(self, lag: int) -> list[int]:
        """How many samples this member commits, its epoch, and a number that tells settings apart."""
        self._require_members()
        taken = self._ledger.taken[self._place]
        self._marks.append(self._sealed)
        upto = self._marks[-1 - lag] if lag < len(self._marks) else taken
        return [max(upto - taken, 0), self.epoch, digest_of(self)]

    def _take_commit(self, rows: Mapping[Any, Sequence[int]]) -> bool:
        self._ledger.extend(max(epoch for _, epoch, _ in rows.values()))
        self._ledger.commit({member: count for member, (count, _, _) in rows.items()})
        return len(rows) < len(self._ledger.members)

    def _told_at_sync(self, rank: int, *, keeps_open: bool) -> list[int]:
        """Its place among the members, its epoch, whether its pass has ended, and a number that tells settings apart."""
        self._note()
        if self._ledger.members:
            taken = self._ledger.taken[self._place]
            kept = self._in_flight(taken)
            dropped = 0 if keeps_open else self._given - self._sealed
            del kept[self._sealed - taken : self._sealed - taken + dropped]
            self._rebase(taken, len(kept))
            self._given -= dropped
            if self._reader is not None:
                self._reader.origin -= dropped
            self._kept = kept
        return [rank, self._ledger.epoch, self._is_between, digest_of(self)]

    def _told_in_flight(self, standing: Mapping[Any, Sequence[int]]) -> list[int]:
        """A number that tells ledgers apart, what this member has in flight, and how much of that its program has got."""
        self._ledger.extend(max(epoch for _, epoch, _, _ in standing.values()))
        return [self._ledger.digest(), self._given, *self._kept]

    def _take_sync(self, own: Hashable, standing: Mapping[Any, Sequence[int]], flights: Mapping[Any, Sequence[int]]) -> None:
        if len({digest for digest, _, *_ in flights.values()}) > 1:
            raise RuntimeError(
                "members have different positions in the data: pass the sampler to Elastic(...) or to the state of DiLoCo, "
                "or load the same state on all members"
            )
        order = sorted(flights, key=lambda member: (standing[member][0], member))
        ended = any(standing[member][2] for member in order)
        given = [flights[member][1] for member in order]
        self._ledger.begin(order, [flights[member][2:] for member in order], given, ended=ended)
        self._enter(own)
        self._synced = True
        if ended:
            self._pass_end = self._ledger.pause
            self._joins_end = not self._in_pass and not self._ended

    # ---- inside; all with the lock ----

    def _terms(self) -> dict[str, Any]:
        """What all members pass alike."""
        settings = {"seed": self.seed, "shuffle": bool(self.shuffle), "drop_last": bool(self._ledger.drop_last)}
        return {"number of samples": self._ledger.size, **settings, "global_batch_size": self.global_batch_size}

    def _share(self, count: int) -> int:
        members = len(self._ledger.members) or self.num_replicas
        if not self._ledger.members and communicator_of(self._comm) is not None and self._comm is None:
            members = int(os.environ.get("WORLD_SIZE", members)) if self._joins() else dist.get_world_size()
        return count // members if self.drop_last else -(-count // members)

    def _joins(self) -> bool:
        from pccl import distributed  # which imports much

        return distributed.is_joining()

    def _require_all_ranks(self, replicas: int) -> None:
        """ValueError: some ranks are to read the same samples, as those of a tensor-parallel group do."""
        if communicator_of(None) is not None and not self._joins() and replicas != dist.get_world_size():
            raise ValueError(
                f"num_replicas={replicas}, but the group has {dist.get_world_size()} ranks, and ElasticSampler gives different "
                "samples to each; leave num_replicas and rank out, or use DistributedSampler where ranks share samples"
            )

    def _require_members(self) -> None:
        """Begins an era with the members that the process group was made with, where no `sync` has done so."""
        require_whole(self._journal, "sync")
        if self._ledger.members:
            return
        members: tuple[Hashable, ...] = tuple(range(self.num_replicas))
        own: Hashable = self.rank
        members, own = founders(self._comm) or (members, own)
        kept, self._kept = self._kept, []
        self._ledger.begin(members, [kept if member == own else [] for member in members])
        self._enter(own)

    def _enter(self, own: UUID | Hashable) -> None:
        self._place = self._ledger.members.index(own)
        self._rebase(-self._ledger.taken[self._place], self._drawn + self._ledger.taken[self._place])
        self._kept = []
        self._pass_end = self._ledger.end(self.epoch, self._given)

    def _note(self) -> None:
        """Asks the loader how much it has given to the program."""
        if self._reader is None:
            self._given = self._drawn
        else:
            self._given = max(self._given, self._reader.given(self._drawn))

    def _in_flight(self, start: int) -> list[int]:
        """What this member has drawn from a place of its sequence on, and is still to train with."""
        if not self._ledger.members:
            return self._kept[start:] if self._kept else []
        stop = self._drawn
        if self._reader is not None and not self._reader.is_alive:
            stop = self._given
        elif self._reader is not None and self._ended:
            stop = max(self._given, self._reader.whole(stop))
        return [self._ledger.at(self._place, number) for number in range(start, stop)]

    def _rebase(self, start: int, drawn: int) -> None:
        """Counts from a place of the sequence on, which becomes the first of the next era's."""
        self._given = max(self._given - start, 0)
        self._sealed = max(self._sealed - start, 0)
        self._marks = deque((max(mark - start, 0) for mark in self._marks), maxlen=self._marks.maxlen)
        self._drawn = drawn
        self._pass_start -= start
        if self._reader is not None:
            self._reader.origin -= start

    def _begin_pass(self) -> int:
        with self._lock:
            self._require_members()
            if self._reader is not None or self._in_pass:
                self._note()
            if not self._ended:
                self._given = self._sealed  # the pass before was left, and its last batches are in no step
            self._drawn = self._given
            self._reader = _reader.find(self._drawn)
            self._pass += 1
            self._pass_start = self._drawn
            self._pass_end = self._next_end(self._drawn)
            if self._pass_end <= self._drawn and self._ledger.size and not self._ledger.left and not self._joins_end:
                _log.warning("epoch %d is complete; call set_epoch(%d) to begin the next one", self.epoch, self.epoch + 1)
            self._is_between = self._joins_end = False
            self._in_pass, self._ended, self._is_new = True, False, False
            return self._pass

    def _next_end(self, cursor: int) -> int:
        """Where a pass ends that begins here."""
        return self._ledger.pause if self._joins_end else self._ledger.end(self.epoch, cursor)

    def _draw(self, number: int) -> int | None:
        with self._lock:
            if number != self._pass:
                raise RuntimeError("another iterator of this sampler has begun; give each loader a sampler of its own")
            self._require_members()
            if self._drawn >= self._pass_end:
                self._in_pass, self._ended, self._is_between = False, True, True
                return None
            at = self._drawn
            self._drawn += 1
            entry = self._ledger.at(self._place, at)
            epoch, place = divmod(entry, self._ledger.size) if entry >= 0 else (self._ledger.epoch_of(at), -1 - entry)
            return self._order(epoch)[place % self._ledger.size]

    def _order(self, epoch: int) -> Sequence[int]:
        """The indices of an epoch in their order, as DistributedSampler has them."""
        if not self.shuffle:
            return range(self._ledger.size)
        if epoch not in self._orders:
            generator = torch.Generator()
            generator.manual_seed(self.seed + epoch)
            if len(self._orders) >= _ORDERS:
                del self._orders[min(self._orders)]
            self._orders[epoch] = array("q", torch.randperm(self._ledger.size, generator=generator, device="cpu").tolist())
        return self._orders[epoch]


publish(globals())
