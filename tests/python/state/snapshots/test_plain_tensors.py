"""Snapshots of plain tensors: members with tensors of their own, and parts of whole ones."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import numpy as np
import pytest
import torch
from snapshot_world import Dead, FakeComm, World, run

from pccl import PCCLTimeoutError, PeerLostError, Result, UsageError
from pccl.state import Snapshots, StateLostError
from pccl.state._local.tree import decode, encode
from pccl.state._snapshots import tensors
from pccl.state._snapshots.boxes import own_name
from pccl.state._snapshots.images import Memory
from pccl.state._snapshots.snapshot import Contribution, PieceName
from pccl.state._snapshots.talk import Talk
from pccl.state._snapshots.vault import Vault, vault_of, whole_slice

CONFIG = Snapshots(copies=1, holder=False)


class Comm(FakeComm):
    """What is asked of a Communicator."""

    def __init__(self, world: World, own: int) -> None:
        super().__init__(world, own)
        self.uuid, self._endpoints, self._peer_group = self.own, ("test",), 0
        self._vaults: dict[str, Any] = {}

    def update_topology(self, timeout: float | None = None) -> None:
        """Those who live are known at once."""


@pytest.fixture(autouse=True)
def _members_are_known(monkeypatch):
    def living(comm: Comm, numbers: torch.Tensor, timeout: float | None) -> tuple[UUID, ...]:
        found = tuple(one for one in comm.world.ids if one not in comm.world.dead)
        numbers *= len(found)
        return found

    monkeypatch.setattr(tensors, "_living", living)


def on_all(comms: list[Comm], call: Any) -> list[Any]:
    """What `call(number, comm)` returns or raises on each."""
    return run([lambda number=number, comm=comm: call(number, comm) for number, comm in enumerate(comms)])


def begin(members: int) -> tuple[World, list[Comm]]:
    world = World(members)
    return world, [Comm(world, own) for own in range(members)]


def kill(world: World, *victims: int) -> None:
    with world.lock:
        for victim in victims:
            world.kill(world.ids[victim])


def take(comm: Comm, state: Any, step: int, **more: Any) -> bool:
    given = {"snapshots": CONFIG, "shards": None, "part": None, "timeout": None, **more}
    tensors.snapshot(comm, state, step=step, **given)
    return tensors.wait(comm)


def get(comm: Comm, state: Any, **more: Any) -> Any:
    return tensors.restore(comm, state, **{"snapshots": CONFIG, "shards": None, "part": None, "timeout": None, **more})


def take_all(comms: list[Comm], states: list[Any], step: int, more: list[dict[str, Any]] | None = None) -> None:
    options = more or [{}] * len(comms)
    assert on_all(comms, lambda number, comm: take(comm, states[number], step, **options[number])) == [True] * len(comms)


def own_state(number: int) -> dict[str, Any]:
    return {"few": torch.full((number + 1,), float(number)), "array": np.arange(5) + number}


def empty(number: int) -> dict[str, Any]:
    return {name: value * 0 - 1 for name, value in own_state(number).items()}


def test_each_survivor_gets_its_own_part_and_then_one_of_them_that_of_a_lost_member():
    world, comms = begin(3)
    names = ["a", "b", "c"]
    for step in (4, 5):
        take_all(comms, list(map(own_state, range(3))), step, [{"part": name} for name in names])
    kill(world, 1)
    states = {number: empty(number) for number in (0, 1, 2)}

    def again(_: int, comm: Comm) -> Any:
        number = comm.world.ids.index(comm.own)
        found = get(comm, states[number], part=names[number])
        get(comm, states[1] if number == 2 else {}, part="b")
        return found

    ends = on_all([comms[0], comms[2]], again)
    assert [end.step for end in ends] == [5, 5]
    assert ends[0].parts["b"] == {"few": ("float32", (2,)), "array": ("int64", (5,))}
    for number, state in states.items():
        assert all((state[name] == value).all() for name, value in own_state(number).items())
    fresh = on_all([comms[0], comms[2]], lambda _, comm: take(comm, {"x": torch.ones(2)}, 1))
    assert fresh == [True, True]  # of another era, so that it counts as newer than step 5
    assert [end.step for end in on_all([comms[0], comms[2]], lambda _, comm: get(comm, {}))] == [1, 1]


def rows(number: int, members: int, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    whole = torch.arange(35.0).reshape(7, 5) + step
    part = whole.tensor_split(members)[number]
    begin = sum(len(one) for one in whole.tensor_split(members)[:number])
    return {"w": part.clone()}, {"w": ((7, 5), (begin, 0))}


def test_parts_of_whole_tensors_are_divided_anew():
    world, comms = begin(4)
    for step in (1, 2):
        states = [rows(number, 4, step) for number in range(4)]
        take_all(comms, [one[0] for one in states], step, [{"shards": one[1]} for one in states])
    kill(world, 2)
    targets = [rows(number, 3, 0) for number in range(3)]
    left = [comms[0], comms[1], comms[3]]
    ends = on_all(left, lambda number, comm: get(comm, targets[number][0], shards=targets[number][1]))
    assert [end.step for end in ends] == [2] * 3
    assert [end.parts for end in ends] == [{}] * 3
    assert all(torch.equal(targets[number][0]["w"], rows(number, 3, 2)[0]["w"]) for number in range(3))


def test_more_losses_than_copies_are_an_error_on_all_alike_and_change_nothing():
    world, comms = begin(4)
    assert all(on_all(comms, lambda number, comm: take(comm, own_state(number), 1)))
    kill(world, 0, 1)
    states = [empty(2), empty(3)]
    ends = on_all(comms[2:], lambda number, comm: get(comm, states[number]))
    assert [type(end) for end in ends] == [StateLostError] * 2
    assert str(ends[0]) == str(ends[1])
    assert "step 1 the parts of ranks 0" in str(ends[0])
    assert all((state["few"] == -1).all() for state in states)


def test_no_snapshot_is_no_error():
    _, comms = begin(2)
    assert on_all(comms, lambda number, comm: get(comm, own_state(number))) == [None, None]


@pytest.mark.parametrize(
    ("state", "more", "text"),
    [
        ({"x": [1.0]}, {}, "must be a torch tensor or a NumPy array, not list"),
        ({"x": torch.ones(2)}, {"shards": {}}, "tensor x must be in both"),
        ({"x": torch.ones(2)}, {"shards": {"x": ((3,), (2,))}}, r"shape \(2,\) at \(2,\) is not inside the shape \(3,\)"),
        ({"x": torch.ones(2)}, {"part": "a\0b"}, "NUL"),
    ],
)
def test_what_one_member_cannot_keep_fails_the_snapshot_on_all(state, more, text):
    _, comms = begin(2)
    calls = [lambda: take(comms[0], {"x": torch.ones(2)}, 1), lambda: take(comms[1], state, 1, **more)]
    ends = run(calls)
    assert ends[0] is False
    assert isinstance(ends[1], (TypeError, ValueError))
    with pytest.raises(type(ends[1]), match=text):
        raise ends[1]
    assert on_all(comms, lambda number, comm: take(comm, own_state(number), 2)) == [True, True]


def test_targets_that_do_not_fit_are_an_error_on_all_alike():
    _, comms = begin(2)
    assert all(on_all(comms, lambda number, comm: take(comm, own_state(number), 1, part=str(number))))
    for state, part, text in (
        ({"few": torch.zeros(9), "array": np.zeros(5, np.int64)}, "1", "few of part 1 is float32 of shape (2,) in the snapshot"),
        ({"other": torch.zeros(9)}, "1", "has no tensor other of part 1, which member 1 asks for"),
        (empty(1), "2", "its parts are 0, 1"),
        ({"few": "text"}, "1", "must be a torch tensor"),
    ):
        first = empty(0)
        ends = run([partial(get, comms[0], first, part="0"), partial(get, comms[1], state, part=part)])
        assert all(isinstance(end, (ValueError, TypeError)) and text in str(end) for end in ends), ends
        assert (first["few"] == -1).all()


def test_two_members_with_one_part_are_told_so(caplog):
    _, comms = begin(2)
    assert on_all(comms, lambda number, comm: take(comm, own_state(number), 1, part="same")) == [False, False]
    assert "members 0 and 1 both call their part 'same'" in caplog.text


def test_a_part_that_is_damaged_is_not_restored():
    world, comms = begin(3)
    for step in (1, 2):
        take_all(comms, list(map(own_state, range(3))), step)
    kill(world, 1)
    for comm in comms:
        for snapshot in comm._vaults["tensors"].keeper.kept.snapshots:
            for name, memory in snapshot.pieces.items():
                if name.kind == "image":
                    memory.bytes[3] ^= 1
    ends = on_all([comms[0], comms[2]], lambda number, comm: get(comm, empty(2 * number)))
    assert [type(end) for end in ends] == [StateLostError] * 2


def test_other_snapshots_than_before_are_refused():
    _, (comm,) = begin(1)
    assert take(comm, own_state(0), 1)
    with pytest.raises(ValueError, match="has snapshots already"):
        get(comm, {}, snapshots=Snapshots(copies=2))
    assert SimpleNamespace(**get(comm, {}, snapshots=None)._asdict()).step == 1


def test_a_death_at_any_message_of_a_restore_is_taken_into_account():
    config = Snapshots(copies=2, holder=False)
    launch = 0
    while True:
        launch += 1
        world, comms = begin(4)
        take_all(comms, [rows(number, 4, 5)[0] for number in range(4)], 5, options_of(4, snapshots=config))
        kill(world, 0)
        world.dies_at = {world.ids[2]: world.launched[world.ids[2]] + launch}
        ends = on_all(comms[1:], partial(restored, config))
        if world.ids[2] not in world.dead:
            assert ends == [5] * 3
            break
        assert isinstance(ends[1], Dead)
        assert [ends[0], ends[2]] == [5, 5], (launch, ends)
    assert launch > 10


def options_of(members: int, **more: Any) -> list[dict[str, Any]]:
    return [{"shards": rows(number, members, 0)[1], **more} for number in range(members)]


def restored(config: Snapshots, _: int, comm: Comm) -> int:
    """The step of the matrix, which each member restores as a whole."""
    target, shards = rows(0, 1, 0)
    found = get(comm, target, shards=shards, snapshots=config)
    assert torch.equal(target["w"], rows(0, 1, 5)[0]["w"])
    return int(found.step)


def test_before_the_first_snapshot_there_is_nothing_to_wait_for_or_to_drop():
    _, comms = begin(2)
    assert tensors.wait(comms[0]) is False
    tensors.drop(comms[0], None)
    config = Snapshots(copies=1, holder=False, every=7)
    assert on_all(comms, lambda number, comm: take(comm, own_state(number), 1, snapshots=config)) == [True, True]


def test_other_snapshots_on_one_member_than_before_fail_on_all():
    _, comms = begin(2)
    assert on_all(comms, lambda number, comm: take(comm, own_state(number), 1)) == [True, True]
    other = [CONFIG, Snapshots(copies=1, holder=False, every=9)]
    ends = on_all(comms, lambda number, comm: take(comm, own_state(number), 2, snapshots=other[number]))
    assert ends[0] is False
    assert "has snapshots already" in str(ends[1])
    ends = on_all(comms, lambda number, comm: get(comm, own_state(number), snapshots=other[number]))
    assert ["has snapshots already" in str(end) for end in ends] == [True, True]


def test_peer_groups_of_one_master_have_names_of_their_own():
    _, comms = begin(2)
    comms[1]._peer_group = 1
    names = [vault_of(comm, CONFIG, "tensors").keeper.kept._name for comm in comms]
    assert names[0] != names[1]


@pytest.fixture
def meets(monkeypatch):
    """Lets each of two threads make and drop a vault only when the other one is at it as well, or waits for this one."""

    def meet(barrier: threading.Barrier) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)

    class Meeting(Vault):
        makes, drops = threading.Barrier(2), threading.Barrier(2)

        def __init__(self, *arguments: Any) -> None:
            meet(self.makes)
            super().__init__(*arguments)

        def drop(self) -> None:
            meet(self.drops)
            super().drop()

    monkeypatch.setattr("pccl.state._snapshots.vault.Vault", Meeting)


@pytest.mark.usefixtures("meets")
def test_threads_whose_first_calls_meet_get_one_vault():
    _, (comm,) = begin(1)
    ends = run([lambda: vault_of(comm, CONFIG, "tensors")] * 2)
    assert ends == [comm._vaults["tensors"]] * 2


@pytest.mark.usefixtures("meets")
def test_two_first_calls_that_drop_all_snapshots_meet():
    _, (comm,) = begin(1)
    assert run([lambda: tensors.drop(comm, CONFIG)] * 2) == [None, None]
    assert not comm._vaults


@pytest.mark.parametrize("first", [0, 1])
def test_a_restore_and_a_snapshot_in_another_thread_exclude_each_other_in_whatever_order_members_begin_them(first):
    _, comms = begin(2)
    vaults = [vault_of(comm, CONFIG, "checkpoint") for comm in comms]
    members = tuple(comms[0].world.ids)

    def save(number: int, step: int) -> None:
        state = {own_name(str(number), "x"): torch.full((9,), float(step))}
        shards = {name: whole_slice(tensor) for name, tensor in state.items()}
        vaults[number].take(Contribution(step, state, shards, b"", members, number))

    def load(number: int) -> int:
        opened = vaults[number].open(members, number)
        assert opened is not None
        return opened.step

    assert on_all(comms, lambda number, comm: save(number, 1)) == [None, None]
    begun = threading.Barrier(2)

    def later(work: Any, *arguments: Any) -> Any:
        begun.wait()
        return work(*arguments)

    def at_once(work: Any, *arguments: Any) -> Any:
        thread = threading.Timer(0.05, begun.wait)  # the call itself is under way then
        thread.start()
        return work(*arguments)

    works = [
        partial(at_once, load, first),
        partial(later, save, first, 2),
        partial(save, 1 - first, 2),
        partial(load, 1 - first),
    ]
    ends = run(works)
    assert (ends[1], ends[2]) == (None, None), ends
    assert ends[0] == ends[3], ends
    assert on_all(comms, lambda number, comm: load(number)) == [2, 2]


def test_a_vault_waits_for_a_snapshot_whose_start_was_interrupted(monkeypatch):
    world, comms = begin(2)
    vaults = [vault_of(comm, CONFIG, "tensors") for comm in comms]
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    tensor = {own_name("0", "x"): torch.ones(9)}
    shards = {name: whole_slice(one) for name, one in tensor.items()}
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            vaults[0].begin(Contribution(1, tensor, shards, b"", tuple(world.ids), 0))
    with pytest.raises(PCCLTimeoutError, match="a snapshot is under way"):
        vaults[0].settle(0)
    vaults[1].begin(Contribution(1, {}, {}, b"", tuple(world.ids), 1))
    assert [vault.settle() for vault in vaults] == [True, True]


def test_what_was_opened_before_a_snapshot_is_not_restored_after_it():
    _, comms = begin(2)
    take_all(comms, list(map(own_state, range(2))), 1)
    members = tuple(comms[0].world.ids)
    vaults = [comm._vaults["tensors"] for comm in comms]
    opened = on_all(comms, lambda number, comm: vaults[number].open(members, number))
    take_all(comms, list(map(own_state, range(2))), 2)
    ends = on_all(comms, lambda number, comm: opened[number].fill({}, {}))
    assert [str(end) for end in ends] == ["restore: another snapshot was taken since this one was opened; call it again"] * 2


def test_a_snapshot_ends_only_when_it_is_complete_though_another_thread_has_begun_to_restore(monkeypatch):
    _, comms = begin(2)
    vaults = [vault_of(comm, CONFIG, "checkpoint") for comm in comms]
    members = tuple(comms[0].world.ids)
    begun, ended, joined = threading.Event(), threading.Event(), threading.Event()
    take = vaults[0].keeper.take

    def slowly(*given: Any) -> Any:
        job = take(*given)
        begun.set()
        time.sleep(0.2)  # until the other thread is in `open`
        return job

    monkeypatch.setattr(vaults[0].keeper, "take", slowly)

    def save(number: int) -> bool:
        tensors = {own_name(str(number), "x"): torch.full((9,), 1.0)}
        if number == 1:
            begun.wait()
            early = ended.wait(0.5)
            joined.set()
        vaults[number].take(
            Contribution(1, tensors, {name: whole_slice(one) for name, one in tensors.items()}, b"", members, number)
        )
        if number == 0:
            ended.set()
            early = not joined.is_set()
        return early

    def load(number: int) -> int:
        (begun if number == 0 else joined).wait()
        opened = vaults[number].open(members, number)
        return -1 if opened is None else opened.step

    ends = run([partial(save, 0), partial(save, 1), partial(load, 0), partial(load, 1)])
    assert ends[:2] == [False, False], ends
    assert ends[2] == ends[3], ends
    assert on_all(comms, lambda number, comm: vaults[number].open(members, number).step) == [1, 1]


def test_a_tensor_that_differs_where_it_should_be_the_same_is_named_with_its_members(caplog):
    world, comms = begin(4)

    def state(number: int, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        part, shards = rows(number, 4, step)
        whole = {name: torch.full((2, 3), float(step)) for name in ("a", "b", "c")}
        return {**part, **whole}, {**shards, **dict.fromkeys(whole, ((2, 3), (0, 0)))}

    def at(step: int, spoil: Any = None) -> list[Any]:
        states = [state(number, step) for number in range(4)]
        if spoil is not None:
            spoil(states)
        return on_all(comms, lambda number, comm: take(comm, states[number][0], step, shards=states[number][1]))

    def differ(states: list[Any]) -> None:
        states[2][0]["b"][1, 2] += 1
        states[3][0]["c"][0, 0] += 1

    assert at(1) == at(2) == [True] * 4
    caplog.clear()
    assert at(3, differ) == [False] * 4
    text = "tensor b has another content at member 2 than at member 0"
    assert [text in record.message for record in caplog.records if "no snapshot of step 3" in record.message] == [True] * 4
    kill(world, 0)
    targets = [{name: one * 0 - 1 for name, one in rows(number, 3, 0)[0].items()} for number in range(3)]
    ends = on_all(
        comms[1:],
        lambda number, comm: get(
            comm,
            {**targets[number], **{name: torch.zeros(2, 3) for name in ("a", "b", "c")}},
            shards={**rows(number, 3, 0)[1], **dict.fromkeys(("a", "b", "c"), ((2, 3), (0, 0)))},
        ),
    )
    assert [end.step for end in ends] == [2] * 3


def test_a_piece_of_another_size_than_told_is_done_without(monkeypatch):
    _, comms = begin(3)
    states = [rows(number, 3, 1) for number in range(3)]
    take_all(comms, [state for state, _ in states], 1, [{"shards": shards} for _, shards in states])
    (kept,) = comms[1]._vaults["tensors"].keeper.kept.snapshots
    name = PieceName("image", 1)
    kept.pieces[name] = Memory.new(kept.pieces[name].nbytes // 2)
    ends = on_all(comms, lambda number, comm: get(comm, states[number][0], shards=states[number][1]))
    assert [end.step for end in ends] == [1] * 3
    assert all(torch.equal(states[number][0]["w"], rows(number, 3, 1)[0]["w"]) for number in range(3))


# ---- a member that lies ----

LIAR = 1
JUNK: list[Any] = [None, True, -1, 1 << 70, 1 << 50, 1e300, "x", "\ud800", [], {}, [[1]], torch.float32, UUID(int=5)]
NUMBERS = [-1, 1 << 62, (1 << 63) - 1, -(1 << 63)]


def with_junk(tree: Any, at: list[int], junk: Any) -> Any:
    """A copy of the tree with junk in place of the node of this number."""
    at[0] -= 1
    if at[0] == -1:
        return junk
    if isinstance(tree, dict):
        return {key: with_junk(one, at, junk) for key, one in tree.items()}
    return type(tree)(with_junk(one, at, junk) for one in tree) if isinstance(tree, (list, tuple)) else tree


def nodes(tree: Any) -> int:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return 1 + sum(map(nodes, children))


@pytest.mark.parametrize("seed", range(4))
def test_what_a_member_tells_wrongly_is_the_same_clear_error_on_all_others(monkeypatch, seed):
    rng = random.Random(seed)
    lies: dict[str, int] = {}
    told = {name: getattr(Talk, name) for name in ("gather", "gather_bytes", "broadcast")}

    def lie(name: str, spoil: Any) -> None:
        def telling(talk: Talk, *arguments: Any) -> Any:
            if talk.members[talk.own].int == LIAR + 1 and name in lies:
                lies[name] -= 1
                if lies[name] < 0:
                    del lies[name]
                    arguments = spoil(*arguments)
            return told[name](talk, *arguments)

        monkeypatch.setattr(Talk, name, telling)

    def spoiled_numbers(numbers: Any) -> Any:
        found = list(numbers)
        found[rng.randrange(len(found))] = rng.choice(NUMBERS)
        return (found,)

    def spoiled_tree(content: bytes) -> Any:
        tree = decode(content)
        return (bytes(encode(with_junk(tree, [rng.randrange(nodes(tree))], rng.choice(JUNK)))),)

    def spoiled_bytes(root: int, content: bytes | None) -> Any:
        return root, None if content is None else bytes(rng.randrange(256) for _ in content)

    lie("gather", spoiled_numbers)
    lie("gather_bytes", spoiled_tree)
    lie("broadcast", spoiled_bytes)
    names: set[bool] = set()
    for round_ in range(60):
        _, comms = begin(3)
        take_all(comms, [rows(number, 3, 1)[0] for number in range(3)], 1, [{"shards": rows(n, 3, 1)[1]} for n in range(3)])
        kind = rng.choice(list(told))
        lies[kind] = rng.randrange({"gather": 9, "gather_bytes": 3, "broadcast": 2}[kind])
        targets = [{"w": one["w"] * 0 - 1} for one in (rows(number, 3, 1)[0] for number in range(3))]

        def work(number: int, comm: Comm, targets: Any = targets, again: bool = bool(round_ % 3)) -> Any:
            if not again:
                parts, shards = rows(number, 3, 2)
                take(comm, parts, 2, shards=shards)
            found = get(comm, targets[number], shards=rows(number, 3, 1)[1])
            return found.step

        ends = on_all(comms, work)
        lies.clear()
        honest = [ends[0], ends[2]]
        assert type(honest[0]) is type(honest[1]), honest
        if isinstance(honest[0], int):
            assert honest[0] == honest[1]
            for number, target in enumerate(targets):
                assert torch.equal(target["w"], rows(number, 3, honest[0])[0]["w"])
            continue
        assert all(isinstance(end, (ValueError, RuntimeError)) for end in honest), honest
        assert str(honest[0]) == str(honest[1])
        names.add(f"member {LIAR}" in str(honest[0]))
    assert True in names


@pytest.fixture
def met(monkeypatch) -> list[int]:
    """The places of members in the order in which they ask who lives."""
    found: list[int] = []
    known = tensors._living

    def living(comm: Comm, numbers: torch.Tensor, timeout: float | None) -> tuple[UUID, ...]:
        found.append(comm.world.ids.index(comm.own))
        return known(comm, numbers, timeout)

    monkeypatch.setattr(tensors, "_living", living)
    return found


def test_a_snapshot_that_ctrl_c_cuts_short_before_it_begins_is_repeated(met, monkeypatch):
    _, comms = begin(2)
    vault = vault_of(comms[0], CONFIG, tensors._TOPIC)
    with monkeypatch.context() as patched:
        patched.setattr(vault, "begin", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            take(comms[0], own_state(0), 3)
    with pytest.raises(UsageError, match="snapshot of step 3 was cut short"):
        take(comms[0], own_state(0), 4)
    take_all(comms, [own_state(0), own_state(1)], 3)
    assert sorted(met) == [0, 1]


def test_a_snapshot_that_ctrl_c_cuts_short_while_it_copies_is_taken_once(met, monkeypatch):
    _, comms = begin(2)
    vault = vault_of(comms[0], CONFIG, tensors._TOPIC)
    begun = vault.begin
    jobs = []
    wait = Mock(side_effect=[KeyboardInterrupt, None, None])

    def begin_and_interrupt(given: Contribution) -> Any:
        jobs.append(begun(given))
        return SimpleNamespace(copied=Mock(wait=wait), problem=None)

    monkeypatch.setattr(vault, "begin", begin_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        take(comms[0], own_state(0), 3)
    take_all(comms, [own_state(0), own_state(1)], 3)
    assert len(jobs) == 1
    assert sorted(met) == [0, 1]
    take_all(comms, [own_state(0), own_state(1)], 4)
    assert len(jobs) == 2


def test_a_restore_goes_on_with_the_vote_that_was_cut_short(met, monkeypatch):
    _, comms = begin(1)
    vault = vault_of(comms[0], CONFIG, tensors._TOPIC)
    lost = PeerLostError(Result.RANK_CONNECTION_LOST, "gather")
    late = PCCLTimeoutError(Result.TIMED_OUT, "update_topology")
    monkeypatch.setattr(vault, "open", Mock(side_effect=[lost, None]))
    vote = Mock(side_effect=[late, late, None])
    monkeypatch.setattr(comms[0], "update_topology", vote)
    for _ in range(2):
        with pytest.raises(PCCLTimeoutError):
            get(comms[0], {})
        assert met == [0]
    assert get(comms[0], {}) is None
    assert (met, vote.call_count) == ([0, 0], 3)
