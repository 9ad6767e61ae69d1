"""The behaviours that programs rely on, row by row of the contract's section 4 (14 stands in test_sync.py)."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import signal
import socket
import threading
import time

import numpy as np
import pytest
from peers import PATIENCE, Background, PeerProcess, address_of, admit, form, on_all, processes, team, together, worlds

import pccl
from pccl import (
    Attribute,
    Communicator,
    DataType,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    SharedState,
    TensorInfo,
)
from pccl.lab.ports import free_ports

SUM = ReduceOp.SUM


def raises(result: Result):
    """`with raises(Result.X):` - the block must fail with this code."""

    @contextlib.contextmanager
    def check():
        with pytest.raises(PCCLError) as caught:
            yield caught
        assert caught.value.result is result, caught.value

    return check()


def value_of(comm: Communicator, value: int, count: int = 1000, **options) -> int:
    """Sums `value` over the group; the elements must agree."""
    array = np.full(count, value, np.int64)
    comm.all_reduce(array, array, op=SUM, timeout=PATIENCE, **options)
    assert (array == array[0]).all()
    return int(array[0])


def shared_state(*arrays: np.ndarray) -> SharedState:
    return SharedState([TensorInfo.from_numpy(array, f"t{i}") for i, array in enumerate(arrays)])


# ---- 1, 2: the master's life ----


def test_1_a_master_comes_and_goes_on_one_port():
    [port] = free_ports(1)
    for _ in range(20):
        master = MasterNode(f"127.0.0.1:{port}")
        master.run()
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))
        master.interrupt()
        del master
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_1_a_port_in_use_is_told_at_once():
    with MasterNode("127.0.0.1:0") as master:
        other = MasterNode(address_of(master))
        with raises(Result.INVALID_USAGE):
            other.run()
        with raises(Result.INVALID_USAGE):
            other.interrupt()


def test_2_a_master_may_go_before_its_peers():
    Communicator("127.0.0.1:1")  # dropped, never connected
    master = MasterNode("127.0.0.1:0")
    master.run()
    comm = Communicator(address_of(master))
    comm.connect(1)
    master.interrupt()
    del master
    with raises(Result.MASTER_CONNECTION_FAILED):
        comm.update_topology(timeout=PATIENCE)
    with raises(Result.MASTER_CONNECTION_FAILED):
        comm.are_peers_pending()
    with raises(Result.INVALID_USAGE):
        comm.connect(1)
    for read in (worlds, lambda one: one.rank, lambda one: one.world_size, lambda one: one.global_world_size):
        with raises(Result.MASTER_CONNECTION_FAILED) as caught:  # 1 would look like a run of its own
            read(comm)
        assert "reconnect()" in str(caught.value)
    assert not comm.alive
    assert "dead" in repr(comm)
    del comm


def test_2_ops_end_when_the_master_goes():
    with MasterNode("127.0.0.1:0") as master:
        with Communicator(address_of(master)) as first, Communicator(address_of(master)) as second:
            admit([], first)
            admit([first], second)
            array = np.ones(1_000_000, np.float32)
            handle = first.all_reduce_async(array, array, op=SUM)
            master.interrupt()
            assert handle.wait(timeout=PATIENCE)[:2] == (False, Result.RANK_CONNECTION_LOST.value)
            assert (array == 1).all()


# ---- 3, 4: alone, and before connect ----


def test_3_the_first_peer():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        comm.connect(1)
        assert worlds(comm) == [1, 1, 1, 1]
        assert comm.are_peers_pending() is False
        array = np.ones(3, np.float32)
        with raises(Result.TOO_FEW_PEERS):
            comm.all_reduce(array, array, op=SUM)
        with raises(Result.TOO_FEW_PEERS):
            comm.all_reduce_async(array, array, op=SUM)
        with raises(Result.TOO_FEW_PEERS):
            comm.all_reduce_multiple_with_retry([whole(array, 0)])
        with raises(Result.INVALID_USAGE):
            comm.optimize_topology()
        comm.update_topology()
        assert "accepted" in repr(comm)


def test_3_a_sync_alone():
    with team([0]) as [comm]:
        state = shared_state(np.ones(3, np.float32))
        info = comm.sync_shared_state(state)
        assert (info.tx_bytes, info.rx_bytes, state.revision) == (0, 0, 0)
        state.push_revision()
        comm.sync_shared_state(state)
        assert state.revision == 1


def test_4_before_connect():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        for call in (
            lambda: comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE),
            comm.update_topology,
            comm.are_peers_pending,
            comm.optimize_topology,
            lambda: comm.sync_shared_state(shared_state(np.ones(1))),
            lambda: comm.all_reduce(np.ones(1), np.ones(1), op=SUM),
        ):
            with raises(Result.INVALID_USAGE):
                call()
        comm.connect(1)
        with raises(Result.INVALID_USAGE):
            comm.connect(1)
        assert worlds(comm) == [1, 1, 1, 1]


def test_4_connect_again_after_a_failure(monkeypatch):
    monkeypatch.setattr("pccl._peer.connection.PAUSE_SECONDS", 0.01)
    [port] = free_ports(1)
    with Communicator(f"127.0.0.1:{port}") as comm:
        with pytest.raises(Exception, match="Failed to connect to the master node") as caught:
            comm.connect(2)
        assert isinstance(caught.value, PCCLError)
        assert caught.value.result is Result.MASTER_CONNECTION_FAILED
        with raises(Result.INVALID_USAGE):
            comm.update_topology()
        with MasterNode(f"127.0.0.1:{port}"):
            comm.connect(1)
            assert worlds(comm) == [1, 1, 1, 1]


# ---- 5, 6, 7: newcomers ----


def registered(fresh: Communicator) -> Background:
    """Its connect, once the master knows of it."""
    joining = Background(fresh.connect, 1)
    deadline = time.monotonic() + PATIENCE
    while "registered" not in repr(fresh):
        assert time.monotonic() < deadline, fresh
        time.sleep(0.001)
    return joining


def test_5_one_update_admits_all_that_wait():
    with team([0, 0]) as [first, second], contextlib.ExitStack() as stack:
        fresh = [stack.enter_context(Communicator(str(first._endpoint), group)) for group in (0, 1, 1)]
        joining = [registered(comm) for comm in fresh]
        half = Background(first.update_topology)
        time.sleep(0.2)
        assert half.running()
        assert all(one.running() for one in joining)
        assert worlds(first) == [2, 2, 1, 2]
        second.update_topology(timeout=PATIENCE)
        half.result()
        for one in joining:
            one.result()
        seen = [worlds(comm) for comm in (first, second, *fresh)]
        assert seen == [[5, 3, 2, 3]] * 3 + [[5, 2, 2, 3]] * 2


def test_6_a_newcomers_first_call_is_a_reduce():
    with team([0, 0]) as comms:
        fresh = Communicator(str(comms[0]._endpoint))
        joining = Background(lambda: (fresh.connect(1), value_of(fresh, 4))[1])

        def member(comm, rank):
            form(comm, 3)
            return value_of(comm, 1 << rank)

        assert on_all(comms, member) == [7, 7]
        assert joining.result() == 7
        fresh.close()


def test_7_ops_are_not_disturbed_by_those_that_wait():
    with team([0, 0]) as comms, Communicator(str(comms[0]._endpoint)) as fresh:
        joining = registered(fresh)
        for _ in range(20):
            assert on_all(comms, lambda comm, rank: value_of(comm, 1 << rank, 200_000)) == [3, 3]
        assert joining.running()
        assert on_all(comms, lambda comm, rank: worlds(comm)) == [[2, 2, 1, 2]] * 2
        assert on_all(comms, lambda comm, rank: comm.are_peers_pending()) == [True, True]
        comms[0].close()
        comms[1].close()
        joining.result()
        assert worlds(fresh) == [1, 1, 1, 1]


def test_7_several_that_wait_become_the_next_run():
    with team([0]) as [last], contextlib.ExitStack() as stack:
        fresh = [stack.enter_context(Communicator(str(last._endpoint), group)) for group in (0, 5)]
        joining = [registered(comm) for comm in fresh]
        last.close()
        for one in joining:
            one.result()
        assert [worlds(comm) for comm in fresh] == [[2, 1, 2, 1]] * 2


# ---- 8, 9, 10: votes and ops ----


def whole(array: np.ndarray, tag: int, op: ReduceOp = SUM, options: QuantizationOptions | None = None) -> ReduceOpDescriptor:
    datatype = DataType.from_numpy_dtype(array.dtype)
    descriptor = ReduceDescriptor(
        count=array.size,
        op=op,
        tag=tag,
        operand_descriptor=ReduceOperandDescriptor(datatype),
        quantization_options=options or QuantizationOptions(datatype, QuantizationAlgorithm.NONE),
    )
    return ReduceOpDescriptor.from_numpy(array, array, descriptor)


def test_8_pending_has_one_answer_while_ops_run():
    rounds = 30

    def reduce_in_the_background(comm, rank):
        for _ in range(rounds):
            arrays = [np.full(50_000, 1 << rank, np.int64) for _ in range(4)]
            info = comm.all_reduce_multiple_with_retry([whole(a, tag) for tag, a in enumerate(arrays)], max_in_flight=2)
            assert info.world_size == 2
            assert all((a == 3).all() for a in arrays)

    with team([0, 0]) as comms, Communicator(str(comms[0]._endpoint)) as fresh:
        reducing = [Background(reduce_in_the_background, comm, rank) for rank, comm in enumerate(comms)]
        answers = [on_all(comms, lambda comm, rank: comm.are_peers_pending()) for _ in range(rounds)]
        joining = Background(fresh.connect, 1)
        deadline = time.monotonic() + PATIENCE
        while not all(answers[-1]) and time.monotonic() < deadline:
            answers.append(on_all(comms, lambda comm, rank: comm.are_peers_pending()))
        for one in reducing:
            one.result()
        assert answers[0] == [False, False]
        assert answers[-1] == [True, True]
        assert all(a == b for a, b in answers)
        assert joining.running()
        on_all(comms, lambda comm, rank: comm.update_topology())
        joining.result()


def test_9_unawaited_ops_forbid_votes_and_are_not_harmed():
    with team([0, 0]) as comms:
        arrays = [np.full(300_000, 1 << rank, np.int64) for rank in range(2)]
        handle = comms[0].all_reduce_async(arrays[0], arrays[0], op=SUM, tag=7)
        for call in (
            comms[0].update_topology,
            comms[0].optimize_topology,
            lambda: comms[0].sync_shared_state(shared_state(np.ones(1))),
        ):
            with raises(Result.PENDING_ASYNC_OPS):
                call()
        comms[1].all_reduce(arrays[1], arrays[1], op=SUM, tag=7)
        with raises(Result.PENDING_ASYNC_OPS):
            comms[0].update_topology()  # finished, but not awaited
        success, status, info = handle.wait()
        assert (success, status, info.world_size) == (True, 0, 2)
        assert (info.tx_bytes, info.rx_bytes) == (arrays[0].nbytes, arrays[0].nbytes)
        assert handle.wait() == (success, status, info)
        assert all((array == 3).all() for array in arrays)
        on_all(comms, lambda comm, rank: comm.update_topology())


def test_9_a_live_tag_is_refused_and_goes_on():
    with team([0, 0]) as comms:
        arrays = [np.full(1000, 1 << rank, np.int64) for rank in range(2)]
        handle = comms[0].all_reduce_async(arrays[0], arrays[0], op=SUM, tag=7)
        other = np.ones(5)
        with raises(Result.INVALID_ARGUMENT):
            comms[0].all_reduce_async(other, other, op=SUM, tag=7)
        comms[1].all_reduce(arrays[1], arrays[1], op=SUM, tag=7)
        assert handle.wait()[0]
        assert (arrays[0] == 3).all()


@pytest.mark.parametrize("lanes", [1, 4])
def test_10_dozens_of_ops_in_any_order(lanes):
    ops, rounds = 48, 3
    sizes = [random.Random(1).choice([1, 7, 1000, 70_000]) for _ in range(ops)]

    def body(comm, rank):
        for turn in range(rounds):
            order = random.Random(turn * 10 + rank).sample(range(ops), ops)
            arrays = {tag: np.full(sizes[tag], (1 << rank) + tag, np.int64) for tag in order}
            handles = {tag: comm.all_reduce_async(arrays[tag], arrays[tag], op=SUM, tag=tag) for tag in order}
            for tag in random.Random(rank).sample(range(ops), ops):
                assert handles[tag].wait(timeout=PATIENCE)[0]
                assert (arrays[tag] == 7 + 3 * tag).all()

    with team([0, 0, 0], lanes=lanes) as comms:
        on_all(comms, body)


# ---- 11, 12, 13: losses ----


@pytest.mark.parametrize("count", [100, 2_000_000])
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1])
def test_11_every_tensor_is_reduced_exactly_once(count, delay):
    with processes(3) as peers:
        for peer in peers:
            peer.tell("sums", count, 8)
        time.sleep(delay)
        peers[2].kill()
        survivors = [peer.answer() for peer in peers[:2]]
        assert survivors[0] == survivors[1]
        assert set(survivors[0]) <= {7, 3}
        assert [peer.tell("sum", 10) and peer for peer in peers[:2]]
        if 3 not in survivors[0]:
            assert [peer.answer() for peer in peers[:2]] == ["RANK_CONNECTION_LOST"] * 2
            assert [peer.tell("sum", 10) and peer for peer in peers[:2]]
        assert [peer.answer() for peer in peers[:2]] == [3, 3]


def test_11_a_loss_during_multiple_with_retry():
    with team([0, 0, 0]) as comms:
        arrays = [[np.full(400_000, 1 << rank, np.int64) for _ in range(6)] for rank in range(3)]
        running = [
            Background(comms[rank].all_reduce_multiple_with_retry, [whole(a, tag) for tag, a in enumerate(arrays[rank])])
            for rank in (0, 1)
        ]
        time.sleep(0.05)
        comms[2].close()
        assert [one.result().world_size for one in running] == [2, 2]
        for pair in zip(arrays[0], arrays[1], strict=True):
            assert all((array == 3).all() for array in pair)


def test_12_a_loss_while_no_op_runs():
    with processes(3) as peers:
        peers[2].kill()
        time.sleep(0.2)
        survivors = peers[:2]
        assert [peer.ask("worlds") for peer in survivors] == [[3, 3, 1, 3]] * 2
        for peer in survivors:
            peer.tell("pending")
        assert [peer.answer() for peer in survivors] == [False, False]
        assert [peer.ask("worlds") for peer in survivors] == [[3, 3, 1, 3]] * 2
        for peer in survivors:
            peer.tell("sum", 1000)
        assert [peer.answer() for peer in survivors] == ["RANK_CONNECTION_LOST"] * 2
        assert [peer.ask("worlds") for peer in survivors] == [[2, 2, 1, 2]] * 2
        for peer in survivors:
            peer.tell("sum", 1000)
        assert [peer.answer() for peer in survivors] == [3, 3]


def test_12_in_a_group_of_two():
    with processes(2) as peers:
        peers[1].kill()
        assert peers[0].ask("worlds") == [2, 2, 1, 2]
        assert peers[0].ask("sum", 1000) == "RANK_CONNECTION_LOST"
        assert peers[0].ask("worlds") == [1, 1, 1, 1]
        assert peers[0].ask("sum", 1000) == "TOO_FEW_PEERS"


def test_12_a_loss_in_another_group_does_not_touch_this_one():
    with processes(4, [0, 0, 1, 1]) as peers:
        peers[3].kill()
        for peer in peers[:3]:
            peer.tell("sum", 100_000)
        assert [peer.answer() for peer in peers[:3]] == [3, 3, "RANK_CONNECTION_LOST"]
        assert peers[0].ask("worlds") == [4, 2, 2, 2]
        assert peers[2].ask("worlds") == [3, 1, 2, 2]


def test_12_a_silent_peer_is_lost_after_the_limit():
    with processes(3, heartbeat_limit=0.5) as peers:
        peers[2].signal(signal.SIGSTOP)
        for peer in peers[:2]:
            peer.tell("sum", 500_000)
        assert [peer.answer() for peer in peers[:2]] == ["RANK_CONNECTION_LOST"] * 2
        for peer in peers[:2]:
            peer.tell("sum", 500_000)
        assert [peer.answer() for peer in peers[:2]] == [3, 3]


def test_13_who_leaves_no_longer_counts_in_a_vote():
    with team([0, 0, 0]) as comms:
        waiting = [Background(comm.update_topology) for comm in comms[:2]]
        time.sleep(0.1)
        assert all(one.running() for one in waiting)
        comms[2].close()
        for one in waiting:
            one.result()
        assert [worlds(comm) for comm in comms[:2]] == [[2, 2, 1, 2]] * 2


def test_13_who_dies_no_longer_counts_in_a_vote():
    with processes(3) as peers:
        peers[0].tell("update")
        peers[1].tell("update")
        time.sleep(0.1)
        peers[2].kill()
        assert [peer.answer() for peer in peers[:2]] == [[2, 2, 1, 2]] * 2


# ---- 15: shared state ----


def test_15_after_equal_updates_nothing_moves():
    def body(comm, rank):
        parameters = np.zeros(10_000, np.float32)
        state = shared_state(parameters)
        for step in range(5):
            info = comm.sync_shared_state(state, timeout=PATIENCE)
            assert (info.tx_bytes, info.rx_bytes, state.revision) == (0, 0, step)
            gradient = np.full(parameters.size, rank + 1, np.float32)
            comm.all_reduce(gradient, gradient, op=ReduceOp.AVG, timeout=PATIENCE)
            parameters -= gradient
            state.push_revision()
        return parameters.tobytes()

    with team([0, 0, 0]) as comms:
        assert len(set(on_all(comms, body))) == 1


def test_15_a_sync_waits_on_after_its_timeout():
    with team([0, 0]) as comms:
        states = [shared_state(np.ones(10)) for _ in comms]
        with pytest.raises(pccl.PCCLTimeoutError):
            comms[0].sync_shared_state(states[0], timeout=0.1)
        other = Background(comms[1].sync_shared_state, states[1])
        comms[0].sync_shared_state(states[0], timeout=PATIENCE)
        other.result()
        assert [state.revision for state in states] == [0, 0]


# ---- 16: bytes ----

FLOATS = [DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE]
EXACT = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
NOT_DEFINED = {(DataType.BOOL, ReduceOp.AVG), *itertools.product(FLOATS, [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR])}


def numbers(kind: DataType, rank: int, count: int) -> np.ndarray:
    if kind is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    made = np.random.default_rng(rank).uniform(-50, 50, count)
    if kind is DataType.BOOL:
        return made > 0
    if kind in (DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64):
        made = np.abs(made)
    return made.astype(kind.to_numpy_dtype())


@pytest.mark.parametrize("kind", DataType)
@pytest.mark.parametrize("count", [5, 60_000])
def test_16_all_peers_hold_the_same_bytes(kind, count):
    inputs = [numbers(kind, rank, count) for rank in range(3)]

    def body(comm, rank):
        results = {}
        for op in ReduceOp:
            if (kind, op) in NOT_DEFINED:
                with raises(Result.INVALID_ARGUMENT) as caught:
                    comm.all_reduce(inputs[rank], inputs[rank], op=op, tag=op.value)
                assert f"is not defined for {inputs[rank].dtype.name}" in str(caught.value)
                continue
            out = np.empty_like(inputs[rank])
            info = comm.all_reduce(inputs[rank], out, op=op, tag=op.value)
            assert info.world_size == 3
            within = inputs[rank].copy()
            comm.all_reduce(within, within, op=op, tag=op.value)
            assert within.tobytes() == out.tobytes()
            results[op] = out.tobytes()
        return results

    with team([0, 0, 0]) as comms:
        seen = on_all(comms, body)
    assert seen[0] == seen[1] == seen[2]
    for op, combine in EXACT.items():
        if op in (ReduceOp.MAX, ReduceOp.MIN) or kind not in FLOATS:
            with np.errstate(over="ignore"):
                assert seen[0][op] == combine(combine(inputs[0], inputs[1]), inputs[2]).tobytes(), op


SLOT = 256 * 1024
"""Bytes of a slot of shared memory; inputs from a quarter of it on lie in slots."""


@pytest.mark.parametrize("memory", ["1", "0"], ids=["memory", "tcp"])
@pytest.mark.parametrize("seed", range(3))
def test_16_two_peers_sum_small_tensors_of_any_size(monkeypatch, memory, seed):
    """Sizes around the borders of slots and of the small algorithm, with more operations in flight than there are slots."""
    monkeypatch.setenv("PCCL_SAME_HOST_MEMORY", memory)
    random = np.random.default_rng(seed)
    borders = [SLOT // 4, SLOT, 2 * SLOT, 3 * SLOT, 4 * SLOT]
    near = [border + int(delta) for border in borders for delta in random.integers(-70, 71, 2)]
    sizes = [*borders, *near, *(int(size) for size in random.integers(1, 5 * SLOT, 10))]
    random.shuffle(sizes)
    inputs = [[np.random.default_rng([seed, rank, size]).integers(0, 200, size, np.uint8) for size in sizes] for rank in range(2)]

    def body(comm, rank):
        for begin in range(0, len(sizes), 7):
            chosen = range(begin, min(begin + 7, len(sizes)))
            apart = {i: np.zeros_like(inputs[rank][i]) for i in chosen}
            within = {i: inputs[rank][i].copy() for i in chosen}
            handles = [comm.all_reduce_async(inputs[rank][i], apart[i], op=ReduceOp.SUM, tag=2 * i) for i in chosen]
            handles += [comm.all_reduce_async(within[i], op=ReduceOp.SUM, tag=2 * i + 1) for i in chosen]
            for handle in handles:
                handle.result(timeout=PATIENCE)
            for i in chosen:
                expected = inputs[0][i] + inputs[1][i]  # both wrap
                assert np.array_equal(apart[i], expected), sizes[i]
                assert np.array_equal(within[i], expected), sizes[i]

    with team([0, 0]) as comms:
        on_all(comms, body)


@pytest.mark.parametrize("algorithm", [QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE])
@pytest.mark.parametrize("kind", FLOATS)
def test_16_quantised_too(kind, algorithm):
    codes = [DataType.UINT8, DataType.INT8, DataType.UINT16, DataType.INT16]
    if algorithm is QuantizationAlgorithm.MIN_MAX:
        codes += [DataType.UINT32, DataType.UINT64]
    count = 30_000
    inputs = [numbers(kind, rank, count) for rank in range(3)]
    exact = sum(array.astype(np.float64) for array in inputs)

    def body(comm, rank):
        results = []
        for code in codes:
            out = np.empty_like(inputs[rank])
            comm.all_reduce(inputs[rank], out, op=SUM, tag=code.value, quantization_options=QuantizationOptions(code, algorithm))
            results.append(out)
        return results

    with team([0, 0, 0]) as comms:
        seen = on_all(comms, body)
    # half a step of each input and of the result, and the rounding of the element type
    coarsest = (3 * 100 + 300) / 2 * 1.05
    rounding = {DataType.FLOAT16: 0.2, DataType.BFLOAT16: 1.2}.get(kind, 1e-4)
    for position, code in enumerate(codes):
        first = seen[0][position]
        assert all(first.tobytes() == other[position].tobytes() for other in seen)
        step = coarsest / (2 ** (8 * code.itemsize) - 1)
        assert np.abs(first.astype(np.float64) - exact).max() <= step + rounding, code


def test_16_the_sum_of_a_constant_is_exact_when_quantised():
    def body(comm, rank):
        for count, value in itertools.product((1, 2, 5, 100_000), (-3.25, 0.0, 1e-30, 7.0)):
            array = np.full(count, value, np.float32)
            comm.all_reduce(array, array, op=SUM, quantization_options=QuantizationOptions())
            assert (array == np.float32(value) * 2).all(), (count, value)

    with team([0, 0]) as comms:
        on_all(comms, body)


@pytest.mark.parametrize("op", [SUM, ReduceOp.BAND])
def test_16_only_floats_are_quantised(op):
    def body(comm, rank):
        for array in (np.ones(8, bool), np.ones(8, np.int32)):
            with raises(Result.INVALID_ARGUMENT) as caught:
                comm.all_reduce(array, array, op=op, quantization_options=QuantizationOptions())
            assert f"{array.dtype.name} cannot be quantised to uint8" in str(caught.value)

    with team([0, 0]) as comms:
        on_all(comms, body)


def test_16_any_byte_but_0_is_true():
    bytes_of = [np.array(row * 500, np.uint8) for row in ([0, 1, 2, 128, 255], [0, 2, 1, 0, 255])]

    def body(comm, rank):
        results = []
        for op in (SUM, ReduceOp.PROD, ReduceOp.BXOR):
            for count in (5, 2500):
                array = bytes_of[rank][:count].view(bool).copy()
                comm.all_reduce(array, array, op=op)
                results.append(array.view(np.uint8)[-5:].tolist())
        return results

    with team([0, 0]) as comms:
        for seen in on_all(comms, body):
            assert seen == [[0, 1, 1, 1, 1]] * 2 + [[0, 1, 1, 0, 1]] * 2 + [[0, 0, 0, 1, 0]] * 2


def test_16_shared_state_of_bools():
    arrays = [np.array([True, False, True]), np.zeros(3, bool)]

    def body(comm, rank):
        state = shared_state(arrays[rank])
        strategy = pccl.SharedStateSyncStrategy.SEND_ONLY if rank == 0 else pccl.SharedStateSyncStrategy.RECEIVE_ONLY
        comm.sync_shared_state(state, strategy, timeout=PATIENCE)

    with team([0, 0]) as comms:
        on_all(comms, body)
    assert arrays[1].tolist() == [True, False, True]


# ---- 17, 18, 19, 20 ----


def test_17_groups():
    with team([0, 0, 1, 1]) as comms:
        assert [worlds(comm) for comm in comms] == [[4, 2, 2, 2]] * 4
        both = on_all(comms[:2], lambda comm, rank: value_of(comm, 1 << rank, tag=5))
        assert both == [3, 3]  # without the other group
        assert on_all(comms[2:], lambda comm, rank: value_of(comm, 4 << rank, tag=5)) == [12, 12]
        assert on_all(comms, lambda comm, rank: value_of(comm, 1 << rank)) == [3, 3, 12, 12]


def test_18_the_master_serves_a_later_run():
    with MasterNode("127.0.0.1:0") as master:
        for _ in range(3):
            peers = [PeerProcess(address_of(master), value=1 << rank) for rank in range(2)]
            for peer in peers:
                peer.tell("join", 2)
            assert [peer.answer() for peer in peers] == [2, 2]
            for peer in peers:
                peer.tell("sum", 10)
            assert [peer.answer() for peer in peers] == [3, 3]
            for peer in peers:
                peer.kill()
        with Communicator(address_of(master)) as comm:
            comm.connect(1)
            assert worlds(comm) == [1, 1, 1, 1]


def test_18_threads_and_processes_in_one_run():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        comm.connect(1)
        peer = PeerProcess(address_of(master), value=2)
        try:
            peer.tell("join", 2)
            form(comm, 2)
            assert peer.answer() == 2
            peer.tell("sum", 1000)
            assert value_of(comm, 1) == 3
            assert peer.answer() == 3
        finally:
            peer.kill()


@pytest.mark.parametrize("heartbeat_limit", [None, 1.0])
def test_18_a_peer_that_comes_back_harms_nobody(heartbeat_limit):
    with MasterNode("127.0.0.1:0", heartbeat_limit=heartbeat_limit) as master:
        with Communicator(address_of(master)) as first, Communicator(address_of(master)) as second:
            admit([], first)
            admit([first], second)
            for turn in range(3):
                peer = PeerProcess(address_of(master), value=4)
                peer.tell("join", 3)
                on_all([first, second], lambda comm, rank: form(comm, 3))
                assert peer.answer() == 3
                peer.kill()
                errors = (
                    [Background(value_of, comm, 1 << rank).error().result for rank, comm in enumerate([first, second])]
                    if turn == 0
                    else on_all([first, second], lambda comm, rank: lost(comm))
                )
                assert errors == [Result.RANK_CONNECTION_LOST] * 2
                assert on_all([first, second], lambda comm, rank: value_of(comm, 1 << rank)) == [3, 3]


def lost(comm: Communicator) -> Result:
    with pytest.raises(PCCLError) as caught:
        value_of(comm, 1)
    return caught.value.result


def test_19_quantised_out_of_place_into_a_shared_tensor():
    def body(comm, rank):
        send, shared = np.full(70_001, rank + 1.0, np.float32), np.zeros(70_001, np.float32)
        state = shared_state(shared)
        before = send.copy()
        comm.all_reduce(send, shared, op=ReduceOp.AVG, quantization_options=QuantizationOptions())
        assert (send == before).all()
        assert (shared == 1.5).all()
        return state.revision

    with team([0, 0]) as comms:
        on_all(comms, body)


def test_20_entries_of_every_kind():
    memory = np.zeros(4096 + 16, np.uint8)
    entries = [np.ones((), np.float64), np.ones(1, np.int16), *(np.ones(3, np.float32) for _ in range(300))]
    entries += [memory[offset : offset + 1024].view(np.float16) for offset in (1, 3, 1030)]
    with contextlib.suppress(AssertionError):  # without ml_dtypes numpy has no bfloat16
        entries += [np.ones(2, DataType.BFLOAT16.to_numpy_dtype())]
    with team([0]) as [comm]:
        state = shared_state(*entries)
        assert comm.sync_shared_state(state).rx_bytes == 0


# ---- 3.3: ours in addition ----


def test_timeouts_and_waiting_on():
    with team([0, 0]) as comms:
        first, second = comms
        for name, call in (("update_topology", first.update_topology), ("are_peers_pending", first.are_peers_pending)):
            begin = time.monotonic()
            with pytest.raises(pccl.PCCLTimeoutError, match=name):
                call(timeout=0.2)
            assert time.monotonic() - begin >= 0.2
            other = Background(getattr(second, call.__name__))
            time.sleep(0.1)
            call(timeout=PATIENCE)  # the same vote: the other one needs no second
            other.result()

        arrays = [np.full(100, 1 << rank, np.int64) for rank in range(2)]
        with pytest.raises(pccl.PCCLTimeoutError):
            first.all_reduce(arrays[0], arrays[0], op=SUM, timeout=0.1)
        with raises(Result.INVALID_ARGUMENT):  # another call of the live tag
            first.all_reduce(arrays[0], arrays[0], op=ReduceOp.MAX)
        second_op = Background(lambda: second.all_reduce(arrays[1], arrays[1], op=SUM))
        first.all_reduce(arrays[0], arrays[0], op=SUM, timeout=PATIENCE)
        second_op.result()
        assert all((array == 3).all() for array in arrays)

        handle = first.all_reduce_async(arrays[0], arrays[0], op=SUM)
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.05)
        second_op = Background(lambda: second.all_reduce(arrays[1], arrays[1], op=SUM))
        assert handle.wait(timeout=PATIENCE)[0]
        second_op.result()

        descriptors = [[whole(array, tag) for tag, array in enumerate([arrays[rank]])] for rank in range(2)]
        with pytest.raises(pccl.PCCLTimeoutError):
            first.all_reduce_multiple_with_retry(descriptors[0], timeout=0.05)
        other = Background(second.all_reduce_multiple_with_retry, descriptors[1])
        assert first.all_reduce_multiple_with_retry(descriptors[0], timeout=PATIENCE).world_size == 2
        other.result()
        assert all((array == 12).all() for array in arrays)


def test_a_newcomers_wait_ends_at_its_timeout_and_goes_on():
    with team([0]) as [comm], Communicator(str(comm._endpoint)) as fresh:
        with pytest.raises(pccl.PCCLTimeoutError) as caught:
            fresh.connect(timeout=0.3)
        assert "until all members call update_topology" in caught.value.detail
        joining = Background(fresh.connect)
        form(comm, 2)
        joining.result()
        assert worlds(fresh) == worlds(comm) == [2, 2, 1, 2]


def test_a_timeout_tells_of_a_master_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with Communicator(f"127.0.0.1:{silent.getsockname()[1]}") as comm:
            with pytest.raises(pccl.PCCLTimeoutError, match="no master has answered yet"):
                comm.connect(timeout=0.2)


WAITS = [("update", []), ("pending", []), ("sum", [1000]), ("sum", [1_000_000])]


@pytest.mark.parametrize(("method", "arguments"), WAITS)
def test_ctrl_c_works_in_every_wait_and_the_call_can_be_repeated(method, arguments):
    with processes(2) as peers:
        peers[0].tell(method, *arguments).await_begin(method)
        time.sleep(0.2)  # most often it waits by now
        peers[0].signal(signal.SIGINT)
        assert peers[0].answer() == "KeyboardInterrupt"
        if method != "sum":  # a repeated reduce needs the same tensor, which this process no longer has
            peers[1].tell(method, *arguments)
            time.sleep(0.1)
            peers[0].tell(method, *arguments)
            assert peers[0].answer() == peers[1].answer()


def test_ctrl_c_in_connect():
    with MasterNode("127.0.0.1:0") as master, Communicator(address_of(master)) as comm:
        comm.connect(1)
        peer = PeerProcess(address_of(master))
        try:
            peer.tell("connect", 5)
            while not comm.are_peers_pending():
                time.sleep(0.02)
            peer.signal(signal.SIGINT)
            assert peer.answer() == "KeyboardInterrupt"
            peer.tell("connect", 5)
            form(comm, 2)
            assert peer.answer() is None
        finally:
            peer.kill()


def test_a_live_op_keeps_its_tensors_without_its_handle():
    class Watched(np.ndarray):
        pass

    died = threading.Event()

    def launch(comm):
        array = np.full(100_000, 1, np.int64).view(Watched)
        import weakref

        weakref.finalize(array, died.set)
        return comm.all_reduce_async(array, array, op=SUM)

    with team([0, 0]) as [first, second]:
        handle = launch(first)
        del handle
        gc.collect()
        time.sleep(0.3)
        assert not died.is_set()
        assert value_of(second, 2, 100_000) == 3
        assert died.wait(PATIENCE)
        together(first.update_topology, second.update_topology)  # nothing is left un-awaited


def test_closing_ends_calls_in_other_threads():
    with team([0, 0]) as [first, second]:
        array = np.ones(1_000_000, np.float32)
        handle = first.all_reduce_async(array, array, op=SUM, tag=1)
        waiting = [Background(handle.wait), Background(first.are_peers_pending)]
        time.sleep(0.2)
        first.close()
        assert waiting[0].result()[:2] == (False, Result.RANK_CONNECTION_LOST.value)
        assert waiting[1].error().result in (Result.INVALID_USAGE, Result.MASTER_CONNECTION_FAILED)
        first.close()
        with raises(Result.INVALID_USAGE):
            first.update_topology()
        assert "closed" in repr(first)
        second.update_topology(timeout=PATIENCE)
        assert worlds(second) == [1, 1, 1, 1]


@pytest.mark.parametrize("host", ["two-addresses", "[::1]"])
def test_names_and_ipv6(host, monkeypatch):
    def answer(name, port, **_):
        assert name == "two-addresses"
        found = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        return [(family, socket.SOCK_STREAM, 6, "", (text, port)) for family, text in found]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with MasterNode("[::1]:0") as master:  # behind the second address of the name
        comms = [Communicator(f"{host}:{master.port}") for _ in range(2)]
        admit([], comms[0])
        admit(comms[:1], comms[1])
        assert on_all(comms, lambda comm, rank: value_of(comm, 1 << rank, 100_000)) == [3, 3]
        for comm in comms:
            comm.close()
