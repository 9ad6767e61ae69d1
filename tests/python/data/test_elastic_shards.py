"""ElasticShards: schedules of losses, joins, failed steps and roll-backs at random, its workers, and its errors."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pccl.data import ElasticShards
from pccl.data._shards import Progress, _marks_from

SCHEDULES, PARTS = 1000, 2


def read(shard: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Its records: its name and their numbers."""
    name, count = shard
    return ((name, number) for number in range(count))


class Member:
    def __init__(self, world: World, name: int) -> None:
        comm: Any = SimpleNamespace(uuid=name, rank=name)
        self.name = name
        self.shards = ElasticShards(world.shards, read, world.batch, seed=world.seed, collate=list, communicator=comm)
        self.reader: Any = None
        self.open: list[Any] = []
        self.done: list[Any] = []

    def next(self) -> bool:
        self.reader = self.reader or self.shards.batches()
        batch = next(self.reader, "end")
        if batch == "end":
            self.reader = None
            return False
        self.open += batch or []
        return True

    def seal(self) -> None:
        self.shards.seal()
        self.done += self.open
        self.open = []


class World:
    """All members, and the account of the test."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seed, self.batch = seed, chance.choice([1, 2, 5])
        self.shards = [(name, chance.choice([0, 1, 3, 10])) for name in range(chance.randint(1, 8))]
        self.committed: list[Any] = []
        self.made = 0
        self.members: list[Member] = []
        for _ in range(chance.randint(1, 4)):
            self.add()
        self.sync()

    def add(self) -> Member:
        self.members.append(Member(self, self.made))
        self.made += 1
        return self.members[-1]

    def sync(self, *, keeps_open: bool = True) -> None:
        told = {one.name: one.shards._told_at_sync(one.name, keeps_open=keeps_open) for one in self.members}
        for one in self.members:
            one.shards._take_sync(one.name, told)
            one.open = one.open if keeps_open else []

    def commit(self, lost: list[Member], lag: int) -> None:
        rows = {one.name: one.shards._told_at_commit(lag) for one in self.members if one not in lost}
        self.members = [one for one in self.members if one not in lost]
        before = {mark.shard: mark.records for mark in map(self.members[0].shards._progress.mark, range(len(self.shards)))}
        answers = {one.shards._take_commit(rows) for one in self.members}
        for one in self.members:
            told = [
                (mark.shard, number)
                for mark in _marks_from(rows[one.name][1:])
                for number in range(before[mark.shard], mark.records)
            ]
            assert sorted(told) == sorted(one.done[: len(told)]), "what was trained is what is committed"
            one.done = one.done[len(told) :]
            self.committed += [(self.members[0].shards.epoch, record) for record in told]
        if answers.pop():
            self.sync()
        assert not answers
        assert len({one.shards._progress.digest() for one in self.members}) == 1

    def load(self, state: dict[str, Any], committed: int) -> None:
        del self.committed[committed:]
        for one in self.members:
            one.shards.load_state_dict(state)
            one.open, one.done = [], []
        self.sync(keeps_open=False)


def play(seed: int) -> list[Any]:
    world, chance = World(seed), random.Random(~seed)
    lag = chance.choice([0, 0, 0, 1])
    saved = world.members[0].shards.state_dict(), 0
    for _ in range(2000):
        had = {one.next() for one in world.members}
        assert len(had) == 1, "members have different numbers of steps"
        if not had.pop():
            if world.members[0].shards.epoch == 1:
                break
            for one in world.members:
                one.shards.set_epoch(1)
            continue
        if chance.random() < 0.05:
            world.sync(keeps_open=False)
            continue
        for one in world.members:
            one.seal()
        lost = [one for one in world.members if chance.random() < 0.06][: len(world.members) - 1]
        world.commit(lost, lag)
        if chance.random() < 0.08:
            world.add().shards.load_state_dict(world.members[0].shards.state_dict())
            world.sync()
        if chance.random() < 0.06:
            saved = world.members[0].shards.state_dict(), len(world.committed)
        elif chance.random() < 0.04:
            world.load(*saved)
    else:
        raise AssertionError("no end")
    records = [record for shard in world.shards for record in read(shard)]
    assert Counter(world.committed) == Counter((epoch, record) for epoch in (0, 1) for record in records)
    return world.committed


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_each_record_of_an_epoch_is_in_one_committed_step(part):
    for seed in range(part, SCHEDULES, PARTS):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error


def test_the_same_contributors_give_the_same_order():
    assert [play(seed) for seed in range(20)] == [play(seed) for seed in range(20)]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_ahead_and_what_they_read_is_not_committed(workers):
    shards = ElasticShards([(name, 5) for name in range(4)], read, 2, collate=list)
    found: list[Any] = []
    for _ in shards.epochs(2):
        for number, batch in enumerate(shards.batches(num_workers=workers)):
            found += batch or []
            shards.commit()
            if number == 1:
                assert shards.remaining == 4
                assert sum(records for _, records, _ in shards.state_dict()["marks"]) == len(found) % 20
    assert Counter(found) == Counter({(name, number): 2 for name in range(4) for number in range(5)})


def test_orders_differ_between_epochs_and_seeds():
    def order(seed: int, epoch: int, shuffle: bool = True) -> list[int]:
        progress = Progress(20, seed, shuffle=shuffle)
        progress.begin(epoch)
        return progress.left

    assert order(1, 0) == order(1, 0)
    assert len({str(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    assert order(1, 1, shuffle=False) == list(range(20))


def test_bad_calls_are_refused():
    with pytest.raises(TypeError):
        ElasticShards(["a"], read, batch_size=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be 1 or more"):
        ElasticShards([(0, 5)], read, 0)
    with pytest.raises(ValueError, match=r"shards must name one shard or more, not \[\]"):
        ElasticShards([], read, 2)
    not_callable: Any = None
    with pytest.raises(TypeError, match=r"read must be a callable .*, not None"):
        ElasticShards([(0, 5)], not_callable, 2)
    shards = ElasticShards([(0, 5), (1, 5)], read, 2, collate=list)
    next(shards.batches())
    shards.commit()
    with pytest.raises(ValueError, match="2 shards of epoch 0 are not committed"):
        shards.set_epoch(1)
    with pytest.raises(ValueError, match="the state is of 2 shards, not 3"):
        ElasticShards([(0, 5)] * 3, read, 2).load_state_dict(shards.state_dict())
    with pytest.raises(ValueError, match="committed up to record 2, and not 1"):
        shards._progress.commit({0: _marks_from([shards.state_dict()["marks"][0][0], 1, 0])})


def test_an_epoch_begins_without_records_of_the_one_before():
    shards = ElasticShards([(0, 5), (1, 5)], read, 2, collate=list)
    next(shards.batches())
    shards.seal()
    shards.set_epoch(1)
    shards.commit()
    assert shards.state_dict()["marks"] == []
    found: list[Any] = []
    for batch in shards.batches():
        found += batch or []
        shards.commit()
    assert sorted(found) == [(name, number) for name in (0, 1) for number in range(5)]


def test_no_step_without_records_ends_a_stream_of_whole_batches():
    shards = ElasticShards([(0, 6), (1, 4)], read, 2, collate=list)
    sizes = []
    for batch in shards.batches():
        sizes.append(len(batch))
        shards.commit()
    assert sizes == [2, 2, 2, 2, 2]


def test_what_a_loop_has_left_without_a_step_is_read_again():
    shards = ElasticShards([(0, 6)], read, 2, collate=list)
    found: list[Any] = []
    for batch in shards.batches():
        if len(found) == 2:
            break
        found += batch
        shards.commit()
    for batch in shards.batches():
        found += batch
        shards.commit()
    assert found == [(0, number) for number in range(6)]


def test_states_of_other_shards_are_refused():
    shards = ElasticShards(["/a/one", "/a/two"], iter, 2)
    ElasticShards(["/b/one", "/b/two"], iter, 2).load_state_dict(shards.state_dict())
    with pytest.raises(ValueError, match="shards of other names, or in another order"):
        ElasticShards(["/a/two", "/a/one"], iter, 2).load_state_dict(shards.state_dict())
    with pytest.raises(ValueError, match="the state has seed=0, not 1"):
        ElasticShards(["/a/one", "/a/two"], iter, 2, seed=1).load_state_dict(shards.state_dict())
    with pytest.raises(ValueError, match="the state is of no ElasticShards: it lacks 'epoch', 'marks', 'names'"):
        shards.load_state_dict({})


def test_steps_without_records_and_commits_are_told(caplog):
    shards = ElasticShards([(0, 3)], read, 2, collate=list)
    batches = shards.batches()
    for _ in range(2010):
        next(batches)
    assert caplog.text.count("gave None 2000 times, and nothing was committed: call commit() or Elastic.sync()") == 1


def test_shards_have_the_same_names_under_different_folders():
    def number(*shards: Any) -> int:
        return ElasticShards(shards, read, 2)._digest

    assert number(Path("/a/one"), "/a/two/") == number(Path("/b/one"), "two")
    assert number("https://a/one?key=1", "two") == number("one", "two") != number("two", "one")
    assert number(object()) == number(object()) != number(object(), object())


def test_members_with_different_states_are_told():
    world = World(3)
    while len(world.members) < 2:
        world.add()
    world.members[1].shards._progress.epoch = 5
    with pytest.raises(RuntimeError, match="different positions"):
        world.sync()
