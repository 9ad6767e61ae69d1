"""Shared state between several peers: contract 6 and the rows of contract 4 that are about it."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from peers import PATIENCE, Background, address_of, admit, on_all, team
from states import ENFORCE, RECEIVE, SEND, Held, filled, same, sync_all, voted

import pccl
from pccl import Communicator, MasterNode, PCCLError, Result, SharedState, SharedStateSyncStrategy, TensorInfo


def test_a_sync_beside_another_call_that_begins():
    class Name:
        """Equals no name, and lets another thread begin a call when it is compared."""

        def __eq__(self, other: object) -> bool:
            comm._unfinished[object()] = call
            return False

        __hash__ = object.__hash__

    with team([0]) as (comm,):
        call: Any = None
        comm._unfinished[(Name(),)] = call
        assert Held(filled(1, 10)).sync(comm).rx_bytes == 0


def test_14_a_late_joiner_receives_contents_and_revision():
    with MasterNode("127.0.0.1:0") as master, contextlib.ExitStack() as stack:
        comms: list[Communicator] = []
        for _ in range(2):
            comms.append(stack.enter_context(Communicator(address_of(master))))
            admit(comms[:-1], comms[-1])
        held = [Held(filled(1, 10, 100_000, 1)) for _ in comms]
        assert [info.rx_bytes for info in sync_all(comms, held)] == [0, 0]
        for _ in range(3):
            for one in held:
                one.shared.push_revision()
                one.arrays[0] += 1
            assert [info.rx_bytes + info.tx_bytes for info in sync_all(comms, held)] == [0, 0]  # row 15
        comms.append(stack.enter_context(Communicator(address_of(master))))
        admit(comms[:-1], comms[-1])
        held.append(Held(filled(2, 10, 100_000, 1)))
        for one in held[:2]:
            one.shared.push_revision()
        infos = sync_all(comms, held)
        size = sum(array.nbytes for array in held[0].arrays)
        assert [info.rx_bytes for info in infos] == [0, 0, size]
        assert sum(info.tx_bytes for info in infos) == size
        assert [one.shared.revision for one in held] == [4, 4, 4]
        assert same(held)
        assert len({one.shared.hash() for one in held}) == 1
        for one in held:
            one.shared.push_revision()
        assert [info.rx_bytes for info in sync_all(comms, held)] == [0, 0, 0]


def test_one_of_many_entries_differs():
    with team([0, 0]) as comms:
        held = [Held(filled(1, *[17] * 300)) for _ in comms]
        held[1].arrays[123] += 1
        before = [array.ctypes.data for array in held[1].arrays]
        infos = sync_all(comms, held)
        assert [(info.tx_bytes, info.rx_bytes) for info in infos] == [(136, 0), (0, 136)]
        assert infos[1].leaves == 1
        assert infos[1].donors == 1
        assert same(held)
        assert before == [array.ctypes.data for array in held[1].arrays]


def test_entries_that_differ_in_part_move_in_part():
    with team([0, 0]) as comms:
        held = [Held(filled(1, 4 << 20)) for _ in comms]
        for leaf in (0, 7, 100):
            held[1].arrays[0][leaf * 32768] += 1
        infos = sync_all(comms, held)
        assert infos[1].rx_bytes == 3 << 18
        assert infos[1].leaves == 3
        assert same(held)


def test_two_of_three_agree_and_the_odd_one_receives():
    with team([0, 0, 0]) as comms:
        held = [Held(filled(seed, 1000)) for seed in (9, 1, 1)]
        assert [info.rx_bytes for info in sync_all(comms, held)] == [8000, 0, 0]
        assert same(held)


def test_20_any_alignment_any_size_any_dtype():
    dtypes = ["u1", "i1", "i2", "u2", "u4", "i4", "u8", "i8", "f2", ml_dtypes.bfloat16, "f4", "f8"]

    def arrays(seed: int) -> list[np.ndarray[Any, Any]]:
        generator = np.random.default_rng(seed)
        made = [generator.integers(0, 100, size=1).astype(dtype) for dtype in dtypes]
        made.append(np.array(generator.standard_normal()))  # 0-dim
        made.append(np.zeros(0))
        for shift in range(1, 16):
            raw = np.empty(300_000 + shift, np.uint8)
            made.append(raw[shift:])
            made[-1][:] = generator.integers(0, 256, 300_000, np.uint8)
        made += [generator.standard_normal(3) for _ in range(300)]
        return made

    with team([0, 0]) as comms:
        held = [Held(arrays(seed)) for seed in (1, 2)]
        infos = sync_all(comms, held)
        assert infos[0].tx_bytes == infos[1].rx_bytes > 15 * 300_000
        assert same(held)


def test_torch_tensors_of_no_size_and_bfloat16():
    with team([0, 0]) as comms:
        tensors = [[torch.full((3, 5), value, dtype=torch.bfloat16), torch.zeros(0), torch.tensor(value)] for value in (1.0, 2.0)]
        states = [SharedState([TensorInfo.from_torch(t, str(at)) for at, t in enumerate(one)]) for one in tensors]
        on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank], timeout=PATIENCE))
        assert torch.equal(tensors[1][0], tensors[0][0])
        assert tensors[1][2].item() == 1.0


def test_many_entries():
    with team([0, 0]) as comms:
        held = [Held(filled(seed, *[1] * 20_000)) for seed in (1, 2)]
        infos = sync_all(comms, held)
        assert infos[1].rx_bytes == 160_000
        assert same(held)


@pytest.mark.parametrize("same_host", ["0", "1"])
def test_an_entry_beyond_4_gib(monkeypatch: pytest.MonkeyPatch, same_host: str):
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", same_host)
    size = (4 << 30) + (300 << 10) + 5
    places = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, size - 1]
    with team([0, 0]) as comms:
        held = [Held([np.zeros(size, np.uint8), np.zeros(3)]) for _ in comms]  # of pages that are not there until written to
        for at, place in enumerate(places):
            held[0].arrays[0][place] = 1 + at
        infos = sync_all(comms, held)
        leaf = 256 << 10
        leaves = {place // leaf for place in places}
        moved = sum(min(leaf, size - number * leaf) for number in leaves)
        assert [(info.tx_bytes, info.rx_bytes, info.leaves) for info in infos] == [(moved, 0, 0), (0, moved, len(leaves))]
        assert [held[1].arrays[0][place] for place in places] == [1, 2, 3, 4, 5, 6]
        for number in leaves:
            part = slice(number * leaf, (number + 1) * leaf)
            assert np.array_equal(held[1].arrays[0][part], held[0].arrays[0][part])


@pytest.mark.parametrize(
    ("seeds", "strategies", "received"),
    [
        ((1, 2, 2), (SEND, RECEIVE, RECEIVE), [0, 8000, 8000]),
        ((1, 1, 2), (SEND, RECEIVE, RECEIVE), [0, 0, 8000]),
        ((1, 1, 1), (SEND, SEND, SEND), [0, 0, 0]),
        ((1, 1, 2), (SEND, SEND, SEND), [0, 0, Result.INVALID_USAGE]),
        ((1, 2, 1), (RECEIVE, RECEIVE, RECEIVE), [Result.NO_SHARED_STATE_AVAILABLE] * 3),
        ((1, 2, 2), (ENFORCE, RECEIVE, SEND), [0, Result.INVALID_USAGE, Result.INVALID_USAGE]),
    ],
)
def test_strategies(seeds: tuple[int, ...], strategies: tuple[SharedStateSyncStrategy, ...], received: list[Any]):
    with team([0, 0, 0]) as comms:
        held = [Held(filled(seed, 1000)) for seed in seeds]
        before = [one.arrays[0].copy() for one in held]
        got = [getattr(info, "rx_bytes", info) for info in sync_all(comms, held, strategies)]
        assert got == received
        for one, old, what in zip(held, before, got, strict=True):
            assert np.array_equal(one.arrays[0], held[0].arrays[0] if isinstance(what, int) else old)


def test_a_receiver_that_has_the_content_never_sends():
    with team([0, 0, 0]) as comms:
        held = [Held(filled(seed, 500_000)) for seed in (1, 1, 2)]
        infos = sync_all(comms, held, (SEND, RECEIVE, RECEIVE))
        assert [info.tx_bytes for info in infos] == [4_000_000, 0, 0]
        assert same(held)


def test_a_different_mask_is_expelled_and_the_others_go_on():
    with team([0, 0, 0]) as comms:
        held = [Held(filled(1, 10)), Held(filled(1, 10)), Held(filled(1, 10), names=["other"])]
        infos = sync_all(comms, held)
        assert infos[2] == Result.INVALID_USAGE
        assert [info.rx_bytes for info in infos[:2]] == [0, 0]
        with pytest.raises(PCCLError) as caught:
            comms[2].update_topology(timeout=PATIENCE)
        assert caught.value.result == Result.MASTER_CONNECTION_FAILED
        for one in held[:2]:
            one.shared.push_revision()
        assert [info.rx_bytes for info in sync_all(comms[:2], held[:2])] == [0, 0]


@pytest.mark.parametrize("apart", [False, True])
def test_entries_that_share_memory_on_the_receiver_alone(apart: bool):
    """What comes for one of them would replace the other: that is no success, unless both are to be equal."""
    with team([0, 0]) as comms:
        (first, other), (tied, last) = filled(1, 200_000, 7), filled(2, 200_000, 7)
        held = [Held([first, first + apart, other], revision=1), Held([tied, tied, last])]
        ends = sync_all(comms, held)
        if apart:
            assert ends[1] is Result.INVALID_USAGE
        else:
            assert same(held)


def test_groups_do_not_touch_each_other():
    with team([0, 0, 1, 1]) as comms:
        held = [Held(filled(seed, 1000), revision) for seed, revision in ((1, 0), (2, 0), (3, 7), (4, 7))]
        assert [info.rx_bytes for info in sync_all(comms, held)] == [0, 8000, 0, 8000]
        assert [one.shared.revision for one in held] == [0, 0, 7, 7]
        assert same(held[:2])
        assert same(held[2:])
        assert not same(held)


def test_an_entry_that_may_differ_is_never_sent():
    with team([0, 0]) as comms:
        arrays = [filled(seed, 100, 100) for seed in (1, 2)]
        states = [
            SharedState([TensorInfo.from_numpy(a, "a", allow_content_inequality=True), TensorInfo.from_numpy(b, "b")])
            for a, b in arrays
        ]
        own = arrays[1][0].copy()
        infos = on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank], timeout=PATIENCE))
        assert infos[1].rx_bytes == 800
        assert np.array_equal(arrays[1][0], own)
        assert np.array_equal(arrays[1][1], arrays[0][1])
        assert states[0].hash() == states[1].hash()


def test_a_sync_that_was_cut_short_goes_on():
    with team([0, 0]) as comms:
        held = [Held(filled(seed, 1000)) for seed in (1, 2)]
        with pytest.raises(pccl.PCCLTimeoutError):
            comms[0].sync_shared_state(held[0].shared, timeout=0.15)
        with pytest.raises(PCCLError) as caught:
            comms[0].update_topology(timeout=0.1)
        assert caught.value.result == Result.INVALID_USAGE
        second = Background(held[1].sync, comms[1])
        assert second.result().rx_bytes == 8000  # the first takes part, though nobody waits there
        assert held[0].sync(comms[0]).tx_bytes == 8000
        assert same(held)


def test_a_sync_that_was_cut_short_goes_on_only_as_it_was():
    """With another revision, other names, or an array that is read-only now, it would be another sync."""
    with team([0, 0]) as comms:
        held = [Held(filled(1, 1000)) for _ in range(2)]
        with pytest.raises(pccl.PCCLTimeoutError):
            comms[0].sync_shared_state(held[0].shared, timeout=0.15)
        held[0].shared.push_revision()
        with pytest.raises(pccl.UsageError, match="another revision"):
            comms[0].sync_shared_state(held[0].shared, timeout=PATIENCE)
        held[0].shared.revision = 0
        assert Held(held[0].arrays, names=["another name"]).sync(comms[0]) == Result.INVALID_USAGE
        held[0].arrays[0].flags.writeable = False
        assert Held(held[0].arrays).sync(comms[0]) == Result.INVALID_USAGE
        second = Background(held[1].sync, comms[1])
        assert held[0].sync(comms[0]).tx_bytes == second.result().tx_bytes == 0


def test_progress():
    with team([0, 0]) as comms:
        held = [Held(filled(seed, 1000)) for seed in (1, 2)]
        seen: list[pccl.SyncProgress] = []
        first = Background(lambda: comms[0].sync_shared_state(held[0].shared, progress=seen.append, timeout=PATIENCE))
        deadline = time.monotonic() + PATIENCE
        while not seen or seen[-1].hashing:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        held[1].sync(comms[1])
        first.result()
        assert seen[0].received == 0


def test_a_donor_of_wrong_bytes_is_found_and_replaced():
    with team([0, 0, 0]) as comms:
        held = [Held(filled(seed, 2_000_000)) for seed in (1, 1, 2)]
        waiting = [voted(held[rank], comms[rank]) for rank in (0, 1)]
        held[0].arrays[0][:] = 7.0  # what it sends is no longer what it voted for
        info = held[2].sync(comms[2])
        assert info.rx_bytes == 16_000_000
        assert all(one.result().rx_bytes == 0 for one in waiting)
        assert np.array_equal(held[2].arrays[0], held[1].arrays[0])


def failed_transfer(comms: list[Communicator], second: list[np.ndarray] | None = None) -> list[Held]:
    """Two states: the second one is half overwritten with the first."""
    held = [Held(filled(1, 2_000_000)), Held(second or filled(2, 2_000_000))]
    good = held[0].arrays[0].copy()
    waiting = voted(held[0], comms[0])
    held[0].arrays[0][1_000_000:] = 7.0
    assert held[1].sync(comms[1]) == Result.NO_SHARED_STATE_AVAILABLE
    assert waiting.result() == Result.NO_SHARED_STATE_AVAILABLE
    held[0].arrays[0][:] = good
    return held


def test_a_transfer_that_failed_is_repaired_by_the_next_sync():
    with team([0, 0]) as comms:
        held = failed_transfer(comms)
        good = held[0].arrays[0].copy()
        # Half of it is overwritten: it must not win, not even as the longest-standing one with a later revision.
        held[1].shared.revision = 1
        infos = sync_all(comms, held)
        assert infos[0].rx_bytes == 0
        assert infos[1].rx_bytes > 0
        assert [one.shared.revision for one in held] == [0, 0]
        assert np.array_equal(held[1].arrays[0], good)


class Placed:
    """What has the memory of an array, as an allocator does that gives it to the next one when this object is gone."""

    def __init__(self, at: np.ndarray) -> None:
        self.__array_interface__ = at.__array_interface__


def test_a_state_in_memory_that_was_freed_is_given_to_others():
    memory, content = filled(2, 2_000_000)[0], filled(3, 2_000_000)[0]
    with team([0, 0]) as comms:
        held = failed_transfer(comms, [np.asarray(Placed(memory))])
        own = held[0]
        del held  # and its memory
        memory[:] = content
        fresh = Held([np.asarray(Placed(memory))], revision=1)
        infos = sync_all(comms, [own, fresh])
        assert [info.rx_bytes > 0 for info in infos] == [True, False]
        assert np.array_equal(own.arrays[0], content)


@pytest.mark.parametrize("way", ["load_state_dict", "mark_restored"])
def test_a_state_that_the_program_restored_is_given_to_others(way: str):
    with team([0, 0]) as comms:
        held = failed_transfer(comms)
        restored = filled(3, 2_000_000)
        if way == "mark_restored":
            held[1].arrays[0][:] = restored[0]
            held[1].shared.mark_restored()
            held[1].shared.revision = 1
        else:
            held[1].shared.load_state_dict({"revision": 1, "tensors": {"entry 0": restored[0]}})
        infos = sync_all(comms, held)
        assert [info.rx_bytes > 0 for info in infos] == [True, False]
        assert all(np.array_equal(one.arrays[0], restored[0]) for one in held)


# ---- modules ----


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: SharedState) -> None:
    x = torch.full((4, 8), float(state.extra["step"]))
    optimizer.zero_grad()
    torch.nn.functional.dropout(model(x), 0.5).square().mean().backward()
    optimizer.step()
    state.extra["step"] += 1
    state.push_revision()


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop", "NAdam", "Adadelta"])
def test_a_joiner_continues_exactly(kind: str):
    def make(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        arguments = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **arguments)
        return model, optimizer, SharedState.from_module(model, optimizer, {"step": 0, "best": 1.5})

    with team([0, 0]) as comms:
        first, second = make(1), make(2)
        torch.manual_seed(7)
        for _ in range(3):
            train(*first)
        first[1].param_groups[0]["lr"] = 0.005
        random_then = torch.get_rng_state()
        states = [first[2], second[2]]
        # One generator serves both threads here, so it is equal; the rest must come.
        infos = on_all(comms, lambda comm, rank: comm.sync_shared_state(states[rank], timeout=PATIENCE))
        assert infos[1].rx_bytes > 0
        assert second[2].extra["step"] == 3
        assert second[2].revision == 3
        assert second[1].param_groups[0]["lr"] == 0.005
        for one in (first, second):
            torch.set_rng_state(random_then)
            for _ in range(2):
                train(*one)
        assert first[2].hash() == second[2].hash()
        assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters(), strict=True))


def test_making_the_optimizer_state_changes_nothing():
    results = []
    for share in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if share:
            SharedState.from_module(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)


def test_a_replaced_tensor_is_refused():
    with team([0]) as comms:
        model = torch.nn.Linear(4, 4)
        state = SharedState.from_module(model)
        comms[0].sync_shared_state(state, timeout=PATIENCE)
        model.weight = torch.nn.Parameter(torch.zeros(4, 4))
        with pytest.raises(pccl.UsageError) as caught:
            comms[0].sync_shared_state(state, timeout=PATIENCE)
        assert caught.value.result == Result.INVALID_ARGUMENT
        assert "parameter/weight" in caught.value.detail
        assert "in place" in caught.value.detail
        tensor = torch.zeros(4)
        state = SharedState([TensorInfo.from_torch(tensor, "t")])
        tensor.data = torch.ones(4)
        with pytest.raises(pccl.UsageError):
            state.hash()


def test_an_array_marked_read_only_is_never_written():
    """Its memory could be written, and its owner does not want it: it takes part until it would have to receive."""
    memory = filled(1, 1000, 1000)
    views = [array.view() for array in memory]
    views[1].flags.writeable = False
    with team([0, 0, 0]) as comms:
        held = [Held(filled(1, 1000, 1000), names=["first", "second"]) for _ in range(2)]
        marked = Held(views, names=["first", "second"])
        assert [info.rx_bytes for info in sync_all(comms, [*held, marked])] == [0, 0, 0]
        for one in [*held, marked]:
            one.shared.push_revision()
        for one in held:
            one.arrays[0][5] += 1
        assert [info.rx_bytes for info in sync_all(comms, [*held, marked])] == [0, 0, 8000]  # the entry that may be written
        for one in [*held, marked]:
            one.shared.push_revision()
        for one in held:
            one.arrays[1][5] += 1
        before = memory[1].copy()
        running = Background(lambda: comms[2].sync_shared_state(marked.shared, timeout=PATIENCE))
        assert [info.rx_bytes for info in sync_all(comms[:2], held)] == [0, 0]
        with pytest.raises(PCCLError) as caught:
            running.result()
        assert caught.value.result is Result.INVALID_USAGE
        assert "read-only" in caught.value.detail
        assert '"second"' in caught.value.detail
        assert np.array_equal(memory[1], before)


def test_read_only_memory_that_would_have_to_receive(tmp_path):
    """Its peer is expelled instead of dying by a signal; as long as it is equal to the others it takes part."""
    path = tmp_path / "weights"
    filled(1, 100_000)[0].tofile(path)
    with team([0, 0, 0]) as comms:
        held = [Held([np.memmap(path, np.float64, "r")]) if at == 2 else Held(filled(1, 100_000)) for at in range(3)]
        assert [info.rx_bytes for info in sync_all(comms, held)] == [0, 0, 0]
        for one in held:
            one.shared.push_revision()
        for one in held[:2]:
            one.arrays[0][5] += 1
        outcomes = sync_all(comms, held)
        assert [info.rx_bytes for info in outcomes[:2]] == [0, 0]
        assert outcomes[2] is Result.INVALID_USAGE
        assert comms[0].get_attribute(pccl.Attribute.LOCAL_WORLD_SIZE) == 3  # until it learns of the loss
        assert [info.rx_bytes for info in sync_all(comms[:2], held[:2])] == [0, 0]
