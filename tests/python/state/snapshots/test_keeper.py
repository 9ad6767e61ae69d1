"""Snapshots under losses at every message: whatever is lost, the newest complete one can be restored."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import weakref
from typing import Any

import pytest
import torch
from snapshot_world import Dead, FakeComm, World, run

from pccl._core.errors import PeerLostError
from pccl.state._snapshots import keeper as keepers
from pccl.state._snapshots import transfer as transfers
from pccl.state._snapshots.boxes import Box, ShardMap, Slice
from pccl.state._snapshots.config import Snapshots
from pccl.state._snapshots.images import Sum
from pccl.state._snapshots.keeper import Keeper
from pccl.state._snapshots.kept import piece_info
from pccl.state._snapshots.placement import Redundancy
from pccl.state._snapshots.restore import DamagedError, Held, Plan, StateLostError, _exchange, carry_out, choose, plan, verify
from pccl.state._snapshots.snapshot import Contribution, Layout, PieceName, SnapshotError
from pccl.state._snapshots.talk import Talk

ROWS, COLUMNS = 23, 5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that small tensors have several blocks and messages."""
    monkeypatch.setattr("pccl.state._snapshots.images.BLOCK_BYTES", 64)
    monkeypatch.setattr(transfers, "BLOCK_BYTES", 64)
    monkeypatch.setattr(transfers, "CHUNK_BYTES", 128)
    monkeypatch.setattr("pccl.state._snapshots.restore.CHUNK_BYTES", 128)


def state_at(step: int) -> dict[str, torch.Tensor]:
    """The whole state of a step: a part of it is the same in all."""
    matrix = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)
    matrix[step % ROWS] += step
    return {"matrix": matrix, "few": torch.full((2,), float(step), dtype=torch.float64), "step": torch.tensor(float(step))}


def divided(member: int, members: int) -> ShardMap:
    """Rows of the matrix, in chunks as FSDP has them; `few` has fewer rows than there are members; `step` is whole on all."""

    def rows(name: str, dtype: str, size: int, whole: tuple[int, ...]) -> Slice:
        chunk = -(-whole[0] // members)
        begin = min(whole[0], member * chunk)
        count = min(whole[0] - begin, chunk)
        return Slice(dtype, size, whole, Box((begin, *(0 for _ in whole[1:])), (count, *whole[1:])))

    return {
        "matrix": rows("matrix", "float32", 4, (ROWS, COLUMNS)),
        "few": rows("few", "float64", 8, (2,)),
        "step": Slice("float32", 4, (), Box((), ())),
    }


def local(step: int, shards: ShardMap) -> dict[str, torch.Tensor]:
    state = state_at(step)
    return {name: state[name][part.box.inside(Box((0,) * len(part.whole), part.whole))].clone() for name, part in shards.items()}


class Member:
    """A training process that takes snapshots."""

    def __init__(self, world: World, own: int, config: Snapshots) -> None:
        self.own, self.world = own, world
        self.comm: Any = FakeComm(world, own)
        self.keeper = Keeper(self.comm, config, "test")
        self.complete = -1

    def train(self, steps: int) -> None:
        for step in range(steps):
            shards = divided(self.own, len(self.world.ids))
            tensors = local(step, shards)
            self.keeper.take(Contribution(step, tensors, shards, b"values of %d" % self.own, self.world.ids, self.own))
            self.keeper.fence()
            for tensor in tensors.values():
                tensor.zero_()  # the optimizer is at it
            complete = self.keeper.settle()
            if complete:
                self.complete = step
            if self.world.ids[self.own] in self.world.dead:
                raise Dead
            if not complete:
                return

    def restore(self, living: list[int]) -> tuple[int, dict[str, torch.Tensor]]:
        """The step that is restored among those who live, and the own part of the state."""
        talk = Talk(self.comm, [self.world.ids[one] for one in living], living.index(self.own), "restore", None)
        held = [Held.of(piece_info(one, name)) for one in self.keeper.kept.snapshots for name in one.pieces]
        pieces = {(one.id, name): memory.bytes for one in self.keeper.kept.snapshots for name, memory in one.pieces.items()}
        self.world.told[self.own] = held
        talk.gather([0])
        all_held = [self.world.told[one] for one in living]
        layouts = {one.layout.id: one.layout for member in living for one in self.world.members[member].keeper.kept.snapshots}
        source = choose(all_held, layouts)
        shards = divided(living.index(self.own), len(living))
        targets = {name: torch.full(part.box.shape, -1, dtype=getattr(torch, part.dtype)) for name, part in shards.items()}
        maps = [divided(rank, len(living)) for rank in range(len(living))]
        work = plan(source, maps)
        carry_out(work, source, talk, lambda name: pieces[source.id, name], targets, shards)
        verify(source, talk, targets, maps)
        return source.order[1], targets


def training(members: int, config: Snapshots, steps: int, dies_at: dict[int, int]) -> World:
    world = World(members)
    world.dies_at = {world.ids[member]: launch for member, launch in dies_at.items()}
    world.members = [Member(world, own, config) for own in range(members)]
    ends = run([lambda member=member: member.train(steps) for member in world.members])
    for own, end in enumerate(ends):
        assert isinstance(end, Dead) if world.ids[own] in world.dead else end is None, end
    return world


def check_restored(world: World) -> int:
    """The survivors restore one step, the newest that any of them knows to be complete or a newer one, exactly."""
    living = [own for own, id_ in enumerate(world.ids) if id_ not in world.dead]
    assert not [one for one, _ in world.open if one not in world.dead]
    world.dies_at = {}
    ends: list[Any] = run([lambda own=own: world.members[own].restore(living) for own in living])
    failed = [end for end in ends if isinstance(end, BaseException)]
    if failed:
        raise failed[0]
    steps = {step for step, _ in ends}
    assert len(steps) == 1
    (step,) = steps
    assert step >= max(world.members[own].complete for own in living)
    for rank, (_, targets) in enumerate(ends):
        expected = local(step, divided(rank, len(living)))
        assert all(torch.equal(targets[name], expected[name]) for name in expected)
    return step


CONFIGS = [
    (3, Snapshots(copies=1, holder=False)),
    (4, Snapshots(code=(3, 1), holder=False)),
    (4, Snapshots(copies=2, holder=False)),
]


def launches(members: int, config: Snapshots, steps: int) -> list[int]:
    world = training(members, config, steps, {})
    return [world.launched[id_] for id_ in world.ids]


@pytest.mark.parametrize(("members", "config"), CONFIGS)
def test_nothing_is_lost_without_a_loss(members, config):
    assert check_restored(training(members, config, 3, {})) == 2


@pytest.mark.long
@pytest.mark.parametrize(("members", "config"), CONFIGS)
def test_a_death_at_any_message_loses_nothing_complete(members, config):
    before = launches(members, config, 1)
    counts = launches(members, config, 3)
    for victim in range(members):
        for launch in range(before[victim] + 1, counts[victim] + 1):
            world = training(members, config, 3, {victim: launch})
            assert world.dead == {world.ids[victim]}
            check_restored(world)


def test_a_thread_that_the_system_refuses_to_a_restore_leaves_nobody_waiting(monkeypatch):
    class FakeTalk:
        own, abandoned = 0, False

        def abandon(self) -> None:
            self.abandoned = True

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    talk: Any = FakeTalk()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        _exchange(Plan([], [], []), talk, lambda name: torch.empty(0))
    assert talk.abandoned


def test_two_deaths_at_any_two_messages_are_survived_by_two_copies():
    config = Snapshots(copies=2, holder=False)
    before, counts = launches(4, config, 1), launches(4, config, 2)
    for first, second in itertools.product(range(before[0] + 1, counts[0] + 1, 5), range(before[2] + 1, counts[2] + 1, 5)):
        check_restored(training(4, config, 2, {0: first, 2: second}))


def test_more_losses_than_the_code_bears_are_told_to_all_alike():
    world = training(4, Snapshots(code=(3, 1), holder=False), 2, {})
    with world.lock:
        world.kill(world.ids[0])
        world.kill(world.ids[1])
    with pytest.raises(StateLostError, match=r"snapshot of step 1 the parts of ranks 0, 1 of 4 are gone"):
        check_restored(world)


def test_damage_is_found():
    world = training(3, Snapshots(copies=1, holder=False), 2, {})
    with world.lock:
        world.kill(world.ids[1])
    for member in world.members:
        for snapshot in member.keeper.kept.snapshots:
            for name, memory in snapshot.pieces.items():
                if name.kind == "parity":
                    memory.bytes[5] ^= 1
    with pytest.raises(DamagedError, match="step 1"):
        check_restored(world)


def test_only_blocks_that_have_changed_are_sent():
    world = training(3, Snapshots(copies=1, holder=False), 3, {})
    for member in world.members:
        assert 0 < member.keeper.report.sent_bytes < member.keeper.report.state_bytes


def test_a_second_keeper_of_a_topic_is_refused_until_the_first_is_closed():
    world = World(1)
    comm: Any = FakeComm(world, 0)
    first = Keeper(comm, Snapshots(holder=False), "test")
    Keeper(comm, Snapshots(holder=False), "test", topic="another")
    with pytest.raises(ValueError, match="another Elastic already: give all models to one Elastic"):
        Keeper(comm, Snapshots(holder=False), "test")
    first.close()
    Keeper(comm, Snapshots(holder=False), "test")


def test_only_one_of_two_keepers_that_meet_gets_the_topic(monkeypatch):
    world = World(1)
    comm: Any = FakeComm(world, 0)
    second = threading.Barrier(2)

    class Topics(weakref.WeakValueDictionary):
        def get(self, topic, default=None):
            found = super().get(topic, default)
            with contextlib.suppress(threading.BrokenBarrierError):
                second.wait(0.2)  # for another thread that has not found it either
            return found

    monkeypatch.setitem(keepers._keepers, comm, Topics())
    ends = run([lambda: Keeper(comm, Snapshots(holder=False), "test")] * 2)
    assert sorted(type(end).__name__ for end in ends) == ["Keeper", "ValueError"]


def test_a_communicator_that_is_only_collected_releases_its_keeper():
    world = World(1)
    ends: list[object] = []

    class Comm(FakeComm):
        keeper: Keeper

        def __del__(self):
            try:
                ends.append(self.keeper.release())
            except BaseException as error:
                ends.append(error)

    comm: Any = Comm(world, 0)
    comm.keeper = Keeper(comm, Snapshots(holder=False), "test")  # a cycle: the collector clears weak references first
    del comm
    gc.collect()
    assert ends == [None]


def test_members_at_different_steps_are_told_so():
    world = World(2)
    shards = [divided(own, 2) for own in range(2)]
    members = [Member(world, own, Snapshots(holder=False)) for own in range(2)]

    def take(own: int) -> str:
        members[own].keeper.take(Contribution(own, local(0, shards[own]), shards[own], b"", world.ids, own))
        assert not members[own].keeper.settle()
        return members[own].keeper.report.why

    assert all(
        "members are at different steps: 0 at member 0, 1 at member 1" in str(end)
        for end in run([lambda: take(0), lambda: take(1)])
    )


def test_memory_that_is_missing_at_one_member_fails_the_snapshot_on_all_and_keeps_the_one_before(monkeypatch):
    world = training(3, Snapshots(copies=1, holder=False), 1, {})
    full = world.members[1].keeper

    def refuse(nbytes: int) -> None:
        raise MemoryError("no memory")

    for short in ("image", "parity"):
        monkeypatch.setattr(full.kept, "memory", refuse)
        if short == "parity":
            monkeypatch.setattr(full, "_copy", lambda job: Keeper._copy(world.members[0].keeper, job))

        def take(own: int) -> bool:
            shards = divided(own, 3)
            world.members[own].keeper.take(Contribution(7, local(7, shards), shards, b"", world.ids, own))
            return world.members[own].keeper.settle()

        assert run([lambda own=own: take(own) for own in range(3)]) == [False] * 3
        assert "no memory" in full.report.why
        assert "member 1" in world.members[0].keeper.report.why
    with world.lock:
        world.kill(world.ids[0])  # whose part of step 7 nobody else has
    assert check_restored(world) == 0


@pytest.fixture
def interrupt_start(monkeypatch):
    """Lets the exception of a signal end the start of one thread of this name; returns the threads that it ended."""
    start = threading.Thread.start
    interrupted: list[threading.Thread] = []
    first = threading.Lock()

    def install(name: str = "pccl snapshot", *, runs: bool) -> list[threading.Thread]:
        def begin(thread: threading.Thread) -> None:
            is_meant = thread.name == name and first.acquire(blocking=False)
            if runs or not is_meant:
                start(thread)
            if is_meant:
                interrupted.append(thread)
                raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", begin)
        return interrupted

    return install


def given_alone(world: World) -> Contribution:
    shards = divided(0, 1)
    return Contribution(0, local(0, shards), shards, b"", world.ids, 0)


def test_a_snapshot_whose_start_is_interrupted_is_waited_for(monkeypatch, interrupt_start):
    world = World(1)
    keeper = Member(world, 0, Snapshots(holder=False)).keeper
    copy, order = keeper._copy, []

    def copy_late(job):
        threading.Event().wait(0.1)  # in which a fence that knows of no snapshot returns
        order.append("copied")
        return copy(job)

    monkeypatch.setattr(keeper, "_copy", copy_late)
    interrupted = interrupt_start(runs=True)
    with pytest.raises(KeyboardInterrupt):
        keeper.take(given_alone(world))
    keeper.fence()
    order.append("fenced")
    assert order == ["copied", "fenced"]
    assert keeper.settle()
    interrupted[0].join()


def test_a_snapshot_that_never_began_is_dropped_and_ends_the_wait_of_the_others(interrupt_start):
    world = World(1)
    keeper = Member(world, 0, Snapshots(holder=False)).keeper
    interrupted = interrupt_start(runs=False)
    with pytest.raises(KeyboardInterrupt):
        keeper.take(given_alone(world))
    keeper.fence()
    assert not keeper.settle()
    assert world.dead == set(world.ids)
    interrupted[0].run()  # as if it was on its way
    assert not keeper.settle()
    assert not keeper.kept.snapshots


@pytest.mark.parametrize("runs", [True, False])
def test_a_restore_whose_receiver_is_interrupted_at_its_start_ends_the_wait_of_the_others(interrupt_start, runs):
    world = training(2, Snapshots(copies=1, holder=False), 2, {})
    interrupt_start("pccl restore", runs=runs)
    ends = run([lambda own=own: world.members[own].restore([0, 1]) for own in range(2)])
    assert sorted(type(end).__name__ for end in ends) == ["KeyboardInterrupt", "PeerLostError"]


# ---- mutants ----


def _dropped_early(monkeypatch):
    take = Keeper._take

    def early(self, job, begun):
        for older in self.kept.snapshots:
            self.kept.forget(older)
        take(self, job, begun)

    monkeypatch.setattr(Keeper, "_take", early)


def _shown_before_it_is_whole(monkeypatch):
    transfer = transfers.Transfer
    receive = transfer._receive_all

    def shown(self):
        stripes = self._layout.placement.stripes
        for number, stripe in enumerate(stripes):
            for row, member in enumerate(stripe.parity):
                if member == self._job.own:
                    memory = self._new_memory(self._layout.unit(number))
                    self._snapshot.pieces[PieceName("parity", number, row)] = memory
                    for sender, _ in stripe.data:
                        self._snapshot.sums.setdefault(sender, Sum(0, 0))
        receive(self)

    monkeypatch.setattr(transfer, "_receive_all", shown)


def _base_is_not_agreed(monkeypatch):
    agree = Keeper._agree

    def own_base(self, job, base, problem):
        layout, number, _ = agree(self, job, base, problem)
        return layout, number, base if job.own else None

    monkeypatch.setattr(Keeper, "_agree", own_base)


@pytest.mark.parametrize("mutate", [_dropped_early, _shown_before_it_is_whole, _base_is_not_agreed])
def test_mutants_are_caught(monkeypatch, mutate):
    mutate(monkeypatch)
    caught = []
    config = Snapshots(copies=1, holder=False)
    for launch in range(8, 40):
        try:
            world = training(3, config, 3, {1: launch})
            check_restored(world)
        except (AssertionError, StateLostError, DamagedError, PeerLostError, SnapshotError) as error:
            caught.append(type(error))
            break
    assert caught


@pytest.mark.parametrize("redundancy", [Redundancy(2, 2), Redundancy(3, 1), Redundancy(1, 1)])
def test_units_have_each_byte_of_an_image_once_whatever_the_sizes_of_others(redundancy):
    rows = [51, 51, 51, 48, 1, 300, 7]
    for members in range(2, len(rows) + 1):
        starts = itertools.accumulate(rows[:members], initial=0)
        whole = sum(rows[:members]), 97
        maps = [{"w": Slice("float32", 4, whole, Box((at, 0), (size, 97)))} for at, size in zip(starts, rows, strict=False)]
        layout = Layout([str(member) for member in range(members)], maps[:members], redundancy)
        ranges: dict[int, list[tuple[int, int]]] = {member: [] for member in range(members)}
        for number, stripe in enumerate(layout.placement.stripes):
            for column, (member, _) in enumerate(stripe.data):
                begin, end = layout.range_of(number, column)
                assert end - begin <= layout.unit(number)
                ranges[member].append((begin, end))
        for member, found in ranges.items():
            ends = [0, *(end for _, end in sorted(found))]
            assert [begin for begin, _ in sorted(found)] == ends[:-1]
            assert ends[-1] == layout.sizes[member]
