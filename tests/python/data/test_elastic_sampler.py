"""ElasticSampler in one process: as DistributedSampler, under loaders that read ahead, and its state."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fake_loaders import FakeLoader
from sampler_world import World
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from pccl.data import ElasticSampler

SIZE = 23


def data(size: int = SIZE) -> Any:
    return list(range(size))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5, 10, SIZE])
@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_undisturbed_it_gives_what_distributed_sampler_gives(members, size, drop_last, shuffle):
    if size < members and (drop_last or size == 0):
        pytest.skip("DistributedSampler fails, or repeats what is left out")
    for rank in range(members):
        arguments = (data(size), members, rank, shuffle, 7, drop_last)
        own = ElasticSampler(*arguments)
        other: DistributedSampler[int] = DistributedSampler(*arguments)
        assert isinstance(own, DistributedSampler)
        for epoch in (3, 4):
            own.set_epoch(epoch)
            other.set_epoch(epoch)
            assert len(own) == len(other)
            assert list(own) == list(other)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_what_a_loader_has_read_ahead_is_not_committed(workers, drop_last):
    sampler = ElasticSampler(data(), 2, 0)
    loader: Any = DataLoader(data(), batch_size=5, sampler=sampler, num_workers=workers, drop_last=drop_last)
    left, sizes = SIZE, []
    for batch in loader:
        sampler.commit()
        left = max(left - 2 * len(batch), 0)
        assert sampler.remaining == left
        sizes.append(len(batch))
    assert sizes == ([5, 5] if drop_last else [5, 5, 2])
    sampler.set_epoch(1)
    again = [index for batch in loader for index in batch.tolist()]
    assert len(again) == (10 if drop_last else 12)  # two did not fill a batch, and come first
    sampler.commit()
    assert sampler.remaining == (7 if drop_last else 0)


def test_persistent_workers_and_loops_that_are_left():
    sampler = ElasticSampler(data(20), 1, 0, shuffle=False)
    loader: Any = DataLoader(data(20), batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for number, batch in enumerate(loader):
        if number == 1:  # this batch is in no step
            break
        assert batch.tolist() == [0, 1, 2, 3]
        sampler.commit()
    assert [batch.tolist()[0] for batch in loader] == [4, 8, 12, 16]
    sampler.commit()
    assert sampler.remaining == 0


def test_samples_can_be_counted_by_the_program():
    sampler = ElasticSampler(data(10), 1, 0)
    drawn = iter(sampler)
    for _ in range(6):
        next(drawn)
    sampler.commit(samples=4)
    assert sampler.remaining == 6
    with pytest.raises(ValueError, match="3 samples, but 2 were handed out"):
        sampler.commit(samples=3)


def test_a_batch_sampler_of_unknown_size_needs_a_count():
    class Pairs(list):  # type: ignore[type-arg]
        pass

    class Own(BatchSampler):
        def __init__(self, sampler: ElasticSampler) -> None:
            self.drawn = sampler

        def __iter__(self):
            drawn = iter(self.drawn)
            yield [next(drawn)]
            yield [next(drawn), next(drawn)]

        def __len__(self) -> int:
            return 2

    sampler = ElasticSampler(data(10), 1, 0)
    found = iter(DataLoader(data(10), batch_sampler=Own(sampler), num_workers=1))
    next(found)
    with pytest.raises(RuntimeError, match=r"commit\(samples=...\)"):
        sampler.commit()
    sampler.commit(samples=1)
    assert sampler.remaining == 9


def test_a_state_goes_to_any_number_of_members():
    sampler = ElasticSampler(data(), 2, 0)
    loader: Any = DataLoader(data(), batch_size=3, sampler=sampler)
    before = []
    for batch in loader:
        before += batch.tolist()
        sampler.commit()
        if sampler.remaining < 12:
            break
    after = []
    for rank in range(3):
        resumed = ElasticSampler(data(), 3, rank)
        resumed.load_state_dict(sampler.state_dict())
        after += list(resumed)
    other = ElasticSampler(data(), 2, 1)
    before += list(other)[: len(before)]
    assert sorted(before + after[: SIZE - len(before)]) == sorted({*before, *after}) == data()


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("shuffle", False)])
def test_states_of_other_orders_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        ElasticSampler(data(), 1, 0).load_state_dict(ElasticSampler(data(), 1, 0, **{name: value}).state_dict())


def test_samples_drawn_before_joining_are_refused():
    sampler = ElasticSampler(data(), 1, 0)
    next(iter(sampler))
    with pytest.raises(RuntimeError, match="after the first sync"):
        sampler.load_state_dict(sampler.state_dict())


def test_epochs_come_one_after_another():
    sampler = ElasticSampler(data(), 1, 0)
    sampler.set_epoch(5)  # a run that is resumed by other means
    assert sampler.state_dict()["epoch"] == 5
    next(iter(sampler))
    sampler.set_epoch(5)
    sampler.set_epoch(2)
    with pytest.raises(ValueError, match="epoch 5 is under way; 6 is the next one"):
        sampler.set_epoch(7)


def test_a_program_goes_on_counting_after_it_has_joined():
    members = ElasticSampler(data(), 1, 0)
    members.set_epoch(3)
    newcomer = ElasticSampler(data(), 1, 0)
    newcomer.set_epoch(0)  # as a framework does before its first step
    newcomer.load_state_dict(members.state_dict())
    assert newcomer.epoch == 3
    newcomer.set_epoch(1)
    assert newcomer.epoch == 4


def test_two_loaders_cannot_share_a_sampler():
    sampler = ElasticSampler(data(), 1, 0)
    first = iter(sampler)
    next(first)
    next(iter(sampler))
    with pytest.raises(RuntimeError, match="another iterator"):
        next(first)


def test_an_epoch_that_is_over_is_named_in_the_log(caplog):
    sampler = ElasticSampler(data(), 1, 0)
    list(sampler)
    sampler.commit()
    assert list(sampler) == []
    assert "epoch 0 is complete; call set_epoch(1)" in caplog.text


def test_repeated_samples_are_told():
    sampler = ElasticSampler(data(5), 2, 1)
    for batch, counts in zip(DataLoader(data(5), batch_size=2, sampler=sampler), ([True, True], [False]), strict=True):
        assert sampler.mask(len(batch)).tolist() == counts
        sampler.commit()
    with pytest.raises(ValueError, match="4 samples, but the program has got 3"):
        sampler.mask(4)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_the_global_batch_stays_the_same(members):
    world = World(0, size=240, batch=4, ahead=0, members=members, global_batch=32)
    for _ in range(6):
        makes = [one.sampler.micro_batches(4) for one in world.members]
        assert sum(makes) == 8
        assert max(makes) - min(makes) <= 1
        for one, count in zip(world.members, makes, strict=True):
            assert all(one.next() for _ in range(count))
            one.seal()
        world.commit([])
    assert len(world.committed) == 6 * 32
    with pytest.raises(ValueError, match="multiple of batch_size=5"):
        world.any.sampler.micro_batches(5)
    with pytest.raises(ValueError, match="multiple of batch_size=None"):
        next(world.any.sampler.steps(DataLoader(data(10), batch_size=None)))


class Loader:
    """A DataLoader that reads ahead."""

    def __init__(self, sampler: ElasticSampler, ahead: int, *, drop_last: bool) -> None:
        self.sampler, self.ahead, self.batch_size, self.drop_last = sampler, ahead, 4, drop_last

    def __iter__(self) -> FakeLoader:
        return FakeLoader(self.sampler, 4, self.ahead, drop_last=self.drop_last)


@pytest.mark.parametrize("seed", range(60))
def test_steps_read_a_pass_with_losses_and_newcomers(seed):
    chance = random.Random(seed)
    members, ahead, drop_last = chance.randint(1, 5), chance.randint(0, 4), chance.random() < 0.3
    size = chance.randint(60, 200)
    world = World(seed, size=size, batch=4, ahead=ahead, members=members, drop_last=drop_last, global_batch=24)
    passes: dict[int, Any] = {}
    sizes: list[int] = []

    def make(one: Any) -> int:
        """The samples of its next step; -1 at the end of its pass."""
        if one.name not in passes:
            passes[one.name] = one.sampler.steps(Loader(one.sampler, ahead, drop_last=drop_last))
        step = next(passes[one.name], None)
        if step is None:
            return -1
        for batch in step:
            one.open += [index for index, real in zip(batch, one.sampler.mask(len(batch)).tolist(), strict=True) if real]
        one.seal()
        return 4 * len(step)

    while True:
        made = [make(one) for one in world.members]
        if -1 in made:
            assert set(made) == {-1}
            break
        assert len(sizes) < 40, "the pass ends"
        lost = [chance.choice(world.members)] if len(world.members) > 1 and chance.random() < 0.2 else []
        sizes.append(sum(made))
        if world.commit(lost):
            world.sync()
        if chance.random() < 0.2:
            world.join()
    assert set(sizes[:2]) == {24}
    assert max(sizes) == 24
    left = len(world.any.sampler._ledger.left)
    assert len(set(world.committed)) == len(world.committed) == size - left


def test_loaders_that_count_passes_begin_no_epoch_in_a_loop_over_epochs():
    """As accelerate's do, with more passes than epochs after a loss."""
    world = World(0, size=40, batch=4, ahead=9, members=2)
    loops = {one.name: one.sampler.epochs(1) for one in world.members}
    for number in range(2):
        for one in world.members:
            assert next(loops[one.name], None) == 0
            one.sampler.set_epoch(number)
        while False not in [one.next() for one in world.members]:
            for one in world.members:
                one.seal()
            if world.commit(world.members[1:] if len(world.committed) >= 24 else []):
                world.sync()
        world.members = world.members[:1]
    assert next(loops[world.any.name], None) is None
    assert world.any.sampler.epoch == 0
    world.check(1)
    world.any.sampler.set_epoch(1)
    assert world.any.sampler.remaining == 40


def test_a_kept_generator_of_a_loop_that_was_left():
    sampler = ElasticSampler(data(10), 1, 0)
    loop = sampler.epochs(3)
    for epoch in loop:
        sampler.set_epoch(epoch)  # as a loader does
        assert len(list(sampler)) == 10
        sampler.commit(samples=10)
        sampler.set_epoch(0)  # has begun
        break
    with pytest.raises(RuntimeError, match=r"at epoch 0, and its pass has begun; .* close\(\) its generator"):
        sampler.set_epoch(1)
    assert sampler.remaining == 0
    loop.close()
    sampler.set_epoch(1)
    assert sampler.remaining == 10


def test_samples_that_make_no_step_end_the_last_pass(caplog):
    sampler = ElasticSampler(data(10), 1, 0)
    loader: Any = DataLoader(data(10), batch_size=2, sampler=sampler)
    given = []
    for _ in sampler.epochs(2):
        for number, batch in enumerate(loader):
            given += batch.tolist()
            if number % 3 == 2:
                sampler.commit()
    assert len(given) == 20
    assert sampler.remaining in (2, 4)
    assert "samples of the last pass are in no step: call optimizer.step() after its last batch" in caplog.text


@pytest.mark.parametrize(("sampler_drops", "loader_drops", "missing"), [(True, False, 1), (False, True, 3), (True, True, 1)])
def test_a_loop_ends_where_the_rest_is_to_be_dropped(caplog, sampler_drops, loader_drops, missing):
    sampler = ElasticSampler(data(11), 2, 0, drop_last=sampler_drops)
    loader: Any = DataLoader(data(11), batch_size=5, sampler=sampler, drop_last=loader_drops)
    epochs = []
    for epoch in sampler.epochs(2):
        epochs.append(epoch)
        for _ in loader:
            sampler.commit()
    assert epochs == [0, 1]
    assert sampler.remaining == missing
    assert not caplog.records
    assert list(sampler.epochs(1)) == []


def test_a_loop_that_leaves_every_pass_early_is_told_once(caplog):
    sampler = ElasticSampler(data(10), 1, 0)
    loader: Any = DataLoader(data(10), batch_size=2, sampler=sampler)
    loop = sampler.epochs(2)
    for _ in range(8):
        assert next(loop) == 0
        next(iter(loader))
    assert caplog.text.count("epoch 0 was given again, since nothing was committed in 3 passes: a break does not end") == 1
    while (epoch := next(loop, None)) is not None:
        for _ in loader:
            sampler.commit()
            break
    assert epoch is None
    assert sampler.remaining == 0
    assert caplog.text.count("was given again") == 1


def test_steps_that_are_not_committed_are_told():
    sampler = ElasticSampler(data(10), 1, 0, global_batch_size=4)
    loader: Any = DataLoader(data(10), batch_size=2, sampler=sampler)
    with pytest.raises(RuntimeError, match=r"steps: the loader has no batch left for this step; call commit\(\)"):
        _ = [list(batches) for batches in sampler.steps(loader)]


def test_members_with_different_states_are_told():
    world = World(0, size=10, batch=2, ahead=0, members=2)
    world.members[1].sampler._ledger.extend(1)
    world.members[1].sampler._ledger._left.remove((0, 3))
    with pytest.raises(RuntimeError, match="different positions"):
        world.sync()
