"""Members of a run that read data and are lost, join and go back, in one process: what travels is handed over by the test."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from fake_loaders import FakeLoader

from pccl.data import ElasticSampler


class Member:
    """A process with a sampler and a loader."""

    def __init__(self, world: World, name: int) -> None:
        self.name = name
        comm: Any = SimpleNamespace(uuid=name, rank=name)
        self.sampler = ElasticSampler(
            range(world.size),
            seed=world.seed,
            drop_last=world.drop_last,
            shuffle=world.shuffle,
            communicator=comm,
            global_batch_size=world.global_batch,
        )
        self.ahead = world.ahead
        self.batch = world.batch
        self.loader: FakeLoader | None = None
        self.open: list[int] = []
        """Indices that it has got since its last finished step, without repeated ones."""
        self.done: list[int] = []
        """Those of finished steps that are not committed."""

    def next(self) -> bool:
        if self.loader is None:
            self.loader = FakeLoader(self.sampler, self.batch, self.ahead)
        batch = next(self.loader, None)
        if batch is None:
            self.loader = None
            return False
        real = [index for index, counts in zip(batch, self.sampler.mask(len(batch)).tolist(), strict=True) if counts]
        self.open += real
        return True

    def seal(self) -> None:
        self.sampler.seal()
        self.done += self.open
        self.open = []


class World:
    """All members, and what is committed by the test's own account."""

    def __init__(
        self,
        seed: int,
        *,
        size: int,
        batch: int,
        ahead: int,
        members: int,
        drop_last: bool = False,
        global_batch: int | None = None,
    ) -> None:
        self.global_batch = global_batch
        self.random = random.Random(seed)
        self.seed, self.size, self.batch, self.ahead, self.drop_last = seed, size, batch, ahead, drop_last
        self.shuffle = seed % 2 == 0
        self.names = iter(range(1 << 20))
        self.committed: list[tuple[int, int]] = []
        """Epoch and index, in the order of commits."""
        self.members = [Member(self, next(self.names)) for _ in range(members)]
        self.sync()

    @property
    def any(self) -> Member:
        return self.members[0]

    def sync(self, *, keeps_open: bool = True) -> None:
        standing = {one.name: one.sampler._told_at_sync(one.name, keeps_open=keeps_open) for one in self.members}
        flights = {one.name: one.sampler._told_in_flight(standing) for one in self.members}
        for one in self.members:
            one.sampler._take_sync(one.name, standing, flights)
            if not keeps_open:
                one.open = []
        assert len({one.sampler._ledger.length for one in self.members}) == 1

    def commit(self, lost: list[Member], *, lag: int = 0) -> bool:
        """Commits without some, who are gone then."""
        rows = {one.name: one.sampler._told_at_commit(lag) for one in self.members if one not in lost}
        ledger = self.members[-1].sampler._ledger
        ledger.extend(max(epoch for _, epoch, _ in rows.values()))  # as all do when they hear of it
        entries = {
            name: [ledger.at(place, ledger.taken[place] + number) for number in range(rows[name][0])]
            for place, name in enumerate(ledger.members)
            if name in rows
        }
        self.members = [one for one in self.members if one not in lost]
        answers = {one.sampler._take_commit(rows) for one in self.members}
        assert len(answers) == 1
        order = self.any.sampler._order
        for one in self.members:
            found = [divmod(entry, self.size) for entry in entries[one.name] if entry >= 0]
            told = [(epoch, order(epoch)[place]) for epoch, place in found]
            assert [index for _, index in told] == one.done[: len(told)], "what was trained is what is committed"
            one.done = one.done[len(told) :]
            self.committed += told
        assert len({one.sampler._ledger.digest() for one in self.members}) == 1
        return answers.pop()

    def join(self) -> Member:
        newcomer = Member(self, next(self.names))
        newcomer.sampler.load_state_dict(self.random.choice(self.members).sampler.state_dict())
        self.members.append(newcomer)
        self.sync()
        return newcomer

    def back_to(self, state: dict[str, Any], committed: int) -> None:
        """All go back to a snapshot."""
        del self.committed[committed:]
        for one in self.members:
            one.sampler.load_state_dict(state)
            one.open, one.done = [], []
        self.sync(keeps_open=False)

    def check(self, epochs: int) -> None:
        count = Counter(self.committed)
        assert set(count.values()) <= {1}, "a sample was committed twice"
        if not self.drop_last:
            assert len(count) == epochs * self.size, "a sample is in no committed step"


def play(seed: int) -> list[tuple[int, int]]:
    """Plays one random schedule of two epochs; returns what was committed, in order."""
    chance = random.Random(~seed)
    world = World(
        seed,
        size=chance.choice([0, 1, 3, 7, 16, 40, 61]),
        batch=chance.choice([1, 2, 3, 5]),
        ahead=chance.choice([0, 0, 1, 3]),
        members=chance.randint(1, 5),
    )
    accumulate, lag, every = chance.choice([1, 1, 2]), chance.choice([0, 0, 0, 1]), chance.choice([1, 1, 1, 3])
    saved = world.any.sampler.state_dict(), 0
    epoch, step = 0, 0
    while True:
        step += 1
        assert step < 2000, "no end"
        had = {tuple(one.next() for _ in range(accumulate)) for one in world.members}
        assert len(had) == 1, "members have different numbers of batches"
        if not any(had.pop()):
            for _ in range(lag + 1):
                if world.commit([]):
                    world.sync()
            if epoch == 1 and not world.any.sampler.remaining:
                break
            if epoch == 0:
                epoch = 1
                for one in world.members:
                    one.sampler.set_epoch(1)
            continue
        happens = chance.random()
        if happens < 0.05:  # the step fails on all, as that of a sharded model
            world.sync(keeps_open=False)
            continue
        for one in world.members:
            one.seal()
        lost = [one for one in world.members if chance.random() < 0.06]
        lost = lost[: len(world.members) - 1]
        if step % every == 0 or lost:
            again = world.commit(lost, lag=lag)
            if again:
                assert lost
                world.sync()
        if chance.random() < 0.08:
            newcomer = world.join()
            if newcomer.sampler._joins_end and all(one.loader is None for one in world.members[:-1]):
                assert not newcomer.next(), "the others have left this pass"
        if chance.random() < 0.06:
            saved = world.any.sampler.state_dict(), len(world.committed)
        elif chance.random() < 0.04:
            world.back_to(*saved)
            epoch = world.any.sampler.epoch
        elif chance.random() < 0.02:  # the power fails: others begin with what was saved
            world.members = [Member(world, next(world.names)) for _ in range(chance.randint(1, 4))]
            world.back_to(*saved)
            epoch = world.any.sampler.epoch
    world.check(2)
    return world.committed


def program(member: Member, epochs: int, accumulate: int, *, drop_last: bool) -> Iterator[int]:
    """Trains as the guide shows it; gives the epoch of each step."""
    for epoch in member.sampler.epochs(epochs):
        member.loader = FakeLoader(member.sampler, member.batch, member.ahead, drop_last=drop_last)
        while member.loader is not None:
            batches = 0
            while batches < accumulate and member.next():
                batches += 1
            if batches:
                yield epoch
            if batches < accumulate:
                break


def play_programs(seed: int) -> None:
    """Plays a schedule in which all members, newcomers too, run the same program: they make their steps together."""
    chance = random.Random(~seed)
    epochs, accumulate, drops = chance.choice([1, 2, 3]), chance.choice([1, 1, 2, 3]), chance.random() < 0.2
    world = World(
        seed,
        size=chance.choice([1, 2, 3, 5, 7, 16, 23, 40]),
        batch=chance.choice([1, 2, 3, 5, 8]),
        ahead=chance.choice([0, 0, 1, 3]),
        members=chance.randint(1, 5),
        drop_last=chance.random() < 0.2,
    )
    programs = {one: program(one, epochs, accumulate, drop_last=drops) for one in world.members}
    kills, joins = chance.choice([0, 0.05, 0.1]), chance.choice([0, 0.1, 0.2])
    for _ in range(1000):
        steps = {next(one, None) for one in programs.values()}
        assert len(steps) == 1, "members are at different places of the program"
        if steps == {None}:
            break
        for one in world.members:
            one.seal()
        lost = [one for one in world.members if chance.random() < kills][: len(world.members) - 1]
        for one in lost:
            del programs[one]
        if world.commit(lost):
            world.sync()
        if chance.random() < joins and len(world.members) < 6:
            newcomer = world.join()
            programs[newcomer] = program(newcomer, epochs, accumulate, drop_last=drops)
    else:
        raise AssertionError("no end")
    if not drops:
        world.check(epochs)


def play_unevenly(seed: int) -> list[tuple[int, int]]:
    """Plays a schedule of two epochs in which members make different numbers of steps between commits, as in DiLoCo by time."""
    chance = random.Random(~seed)
    world = World(
        seed,
        size=chance.choice([1, 5, 24, 60]),
        batch=chance.choice([1, 2, 3]),
        ahead=chance.choice([0, 1, 3]),
        members=chance.randint(1, 4),
    )
    lag = chance.choice([0, 0, 1])
    for step in range(2000):
        for one in world.members:
            for _ in range(chance.randint(0, 3)):
                if one.next():
                    one.seal()
                elif one.sampler.epoch == 0:
                    one.sampler.set_epoch(1)
        lost = [one for one in world.members if chance.random() < 0.05][: len(world.members) - 1]
        if world.commit(lost, lag=lag):
            world.sync()
        if chance.random() < 0.05 and step < 50:
            world.join()
        if world.any.sampler.epoch == 1 and not world.any.sampler.remaining:
            break
    else:
        raise AssertionError("no end")
    world.check(2)
    return world.committed
