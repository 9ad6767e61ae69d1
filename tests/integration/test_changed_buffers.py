"""Tensors that a program writes to, frees or replaces while an operation on them is in flight."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from performers import PATIENCE
from test_timeouts import run

import pccl
from pccl import Communicator

torch = pytest.importorskip("torch")

SIZES = [5, 20_000, 3_000_000]
"""Elements: small (in one frame), small (in several), large."""


# ---- programs with one thread that writes ----


def outcomes(world: int, call: Callable[[Communicator], tuple[np.ndarray, np.ndarray, pccl.Handle[Any]]]) -> list[bytes]:
    """What each member has that reports success, where all of them write to their tensors until the end."""
    results: list[bytes] = []

    def member(comm: Communicator) -> None:
        read, written, handle = call(comm)
        while not handle.done():
            read[:] = 1000 + comm.rank
            written[:] = 1000 + comm.rank
        handle.result(timeout=PATIENCE)
        results.append(written.tobytes())

    run(*[member] * world)
    return results


def of_all_reduce(comm: Communicator, size: int, **options: Any) -> Any:
    data = np.full(size, comm.rank + 1, np.float32)
    return data, data, comm.all_reduce_async(data, **options)


def of_apart(comm: Communicator, size: int) -> Any:
    data, result = np.full(size, comm.rank + 1, np.float32), np.zeros(size, np.float32)
    return data, result, comm.all_reduce_async(data, result)


def of_broadcast(comm: Communicator, size: int) -> Any:
    data = np.full(size, comm.rank + 1, np.float32)
    return data, data, comm.broadcast_async(data, root=1)


def of_all_gather(comm: Communicator, size: int) -> Any:
    data, result = np.full(size, comm.rank + 1, np.float32), np.zeros(size * comm.world_size, np.float32)
    return data, result, comm.all_gather_async(data, result)


QUANTISED = {
    "min_max": pccl.QuantizationOptions(),
    "int4": pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.BLOCK_INT4),
}
CALLS: dict[str, Callable[[Communicator, int], Any]] = {
    "all_reduce": of_all_reduce,
    "retry": lambda comm, size: of_all_reduce(comm, size, retry=True),
    **{
        name: lambda comm, size, options=options: of_all_reduce(comm, size, quantization_options=options)
        for name, options in QUANTISED.items()
    },
    "apart": of_apart,
    "broadcast": of_broadcast,
    "all_gather": of_all_gather,
}


def expected(kind: str, world: int, size: int) -> np.ndarray:
    if kind == "broadcast":
        return np.full(size, 2, np.float32)
    if kind == "all_gather":
        return np.repeat(np.arange(1, world + 1, dtype=np.float32), size)
    return np.full(size, world * (world + 1) // 2, np.float32)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", CALLS)
def test_all_members_have_the_result_of_the_values_at_launch(kind, size, world):
    results = outcomes(world, lambda comm: CALLS[kind](comm, size))
    assert len(results) == world
    assert set(results) == {expected(kind, world, size).tobytes()}


# ---- memory that is freed or replaced ----


def resize(tensor: Any) -> None:
    tensor.untyped_storage().resize_(0)


def replace(tensor: Any) -> None:
    tensor.set_(torch.zeros(10))


def replace_data(tensor: Any) -> None:
    tensor.data = torch.zeros(10)


ASYNC: dict[str, Callable[[Communicator, Any], pccl.Handle[Any]]] = {
    "all_reduce": lambda comm, tensor: comm.all_reduce_async(tensor),
    "retry": lambda comm, tensor: comm.all_reduce_async(tensor, retry=True),
    "broadcast": lambda comm, tensor: comm.broadcast_async(tensor, root=1),
    "gather": lambda comm, tensor: comm.all_gather_async(torch.ones(len(tensor) // 2), tensor),
}


@pytest.mark.parametrize("harm", [resize, replace, replace_data])
@pytest.mark.parametrize("size", [6, 4_000_000])
@pytest.mark.parametrize("kind", ASYNC)
def test_memory_that_is_lost_is_an_error_of_this_member_alone(kind, size, harm):
    """Neither reads nor writes what the program has freed. The others succeed."""
    harmed = threading.Event()

    def program(comm: Communicator) -> None:
        tensor = torch.ones(size)
        if comm.rank == 0:
            handle = ASYNC[kind](comm, tensor)
            harm(tensor)
            harmed.set()
            with pytest.raises(pccl.UsageError, match=r"freed, resized or replaced.*\(INVALID_USAGE\)"):
                handle.result(timeout=PATIENCE)
        else:
            assert harmed.wait(PATIENCE)
            ASYNC[kind](comm, tensor).result(timeout=PATIENCE)
            assert tensor[-1] == (2 if kind in ("all_reduce", "retry") else 1)

    run(program, program)


def descriptor(tensor: Any, tag: int) -> pccl.ReduceOpDescriptor:
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT)
    none = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.NONE)
    described = pccl.ReduceDescriptor(tensor.numel(), pccl.ReduceOp.SUM, tag, operand, none)
    return pccl.ReduceOpDescriptor.from_torch(tensor, tensor, described)


@pytest.mark.parametrize("harm", [resize, replace_data])
def test_memory_that_is_lost_between_two_calls_of_several_reduces(harm):
    """The other results of this member are there, and those of the others."""
    harmed = threading.Event()

    def program(comm: Communicator) -> None:
        tensors = [torch.ones(1_000_000), torch.ones(5)]
        several = [descriptor(tensor, tag) for tag, tensor in enumerate(tensors)]
        if comm.rank == 0:
            with pytest.raises(pccl.PCCLTimeoutError):
                comm.all_reduce_multiple_with_retry(several, timeout=0.01)
            harm(tensors[0])
            harmed.set()
            with pytest.raises(pccl.UsageError, match="freed, resized or replaced"):
                comm.all_reduce_multiple_with_retry(several, timeout=PATIENCE)
        else:
            assert harmed.wait(PATIENCE)
            comm.all_reduce_multiple_with_retry(several, timeout=PATIENCE)
            assert (tensors[0] == 2).all()
        assert (tensors[1] == 2).all()

    run(program, program)


class CutShortError(Exception):
    pass


WAITS: dict[str, Callable[[Communicator, Any], object]] = {
    "all_reduce": lambda comm, tensor: comm.all_reduce(tensor),
    "broadcast": lambda comm, tensor: comm.broadcast(tensor, root=1),
    "several": lambda comm, tensor: comm.all_reduce_multiple_with_retry([descriptor(tensor, 1)]),
}


@pytest.mark.parametrize("kind", WAITS)
def test_memory_that_is_replaced_after_a_call_was_cut_short(kind):
    """The operation goes on and writes to it, so it is held until then."""
    replaced = threading.Event()

    def cut_short(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(1))  # large calls after a first one take another way
        tensor = torch.ones(1_000_000)
        memory = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
        here = ctypes.c_ulong(threading.get_ident())
        raises = ctypes.pythonapi.PyThreadState_SetAsyncExc
        threading.Timer(0.05, raises, (here, ctypes.py_object(CutShortError))).start()
        with pytest.raises(CutShortError):
            WAITS[kind](comm, tensor)
        tensor.data = torch.zeros(1)
        assert not memory.expired()
        replaced.set()

    def other(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(1))
        tensor = torch.ones(1_000_000)
        assert replaced.wait(PATIENCE)
        WAITS[kind](comm, tensor)
        assert tensor[-1] == (1 if kind == "broadcast" else 2)

    run(cut_short, other)


@pytest.mark.parametrize("apart", [False, True])
def test_elements_that_are_smaller_than_those_of_the_tensor(apart):
    """What is not reduced stays as it was, also where the operation has memory of its own."""

    def program(comm: Communicator) -> None:
        data = np.full(2_000, 7, np.float32)
        data.view(np.float16)[:2_000] = 1
        result = np.full(2_000, 9, np.float32) if apart else data
        comm.all_reduce_async(data, result, operand_descriptor=pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT16)).result(
            PATIENCE
        )
        assert (result.view(np.float16)[:2_000] == 2).all()
        assert (result[1_000:] == (9 if apart else 7)).all()

    run(program, program)


@pytest.mark.parametrize("size", [6, 1_000_000])
def test_an_input_that_is_freed_after_the_launch(size):
    def program(comm: Communicator) -> None:
        tensor, result = torch.ones(size), torch.zeros(size)
        handle = comm.all_reduce_async(tensor, result)
        resize(tensor)
        handle.result(timeout=PATIENCE)
        assert (result == 2).all()

    run(program, program)


WRITES: dict[str, Callable[[Communicator, Any], Any]] = {
    "all_reduce": lambda comm, tensor: comm.all_reduce(tensor),
    "all_reduce_async": lambda comm, tensor: comm.all_reduce_async(tensor),
    "broadcast": lambda comm, tensor: comm.broadcast(tensor, root=1 - comm.rank),
    "recv": lambda comm, tensor: comm.recv(tensor, 1 - comm.rank),
}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("kind", WRITES)
def test_memory_that_is_mapped_read_only_is_refused(kind):
    def program(comm: Communicator) -> None:
        with mmap.mmap(-1, 4096, prot=mmap.PROT_READ) as mapped:
            tensor = torch.frombuffer(mapped, dtype=torch.float32)
            with pytest.raises(ValueError, match="read-only memory"):
                WRITES[kind](comm, tensor)
            del tensor

    run(program, program)


def test_a_tensor_and_an_array_are_refused_after_other_reduces_too():
    """Calls after the first one are checked in another place."""

    def program(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(4))
        with pytest.raises(ValueError, match="Tensor and ndarray"):
            comm.all_reduce(torch.ones(4), np.ones(4, np.float32))

    run(program, program)


@pytest.mark.parametrize("offset", [0, 1])
def test_tensors_that_overlap_are_refused_as_ever(offset):
    def program(comm: Communicator) -> None:
        memory = np.zeros(30, np.float32)
        with pytest.raises(pccl.UsageError, match="overlap"):
            comm.all_reduce_async(memory[:20], memory[offset + 5 :][:20])
        with pytest.raises(pccl.UsageError, match="overlap"):
            comm.all_gather(memory[offset + 3 :][:10], memory[:20], timeout=PATIENCE)
        place = 10 * comm.rank
        memory[:] = comm.rank + 1
        comm.all_gather_async(memory[place : place + 10], memory[:20]).result(timeout=PATIENCE)
        assert memory[:20].tolist() == [1.0] * 10 + [2.0] * 10

    run(program, program)


# ---- random programs ----

PROGRAMS = int(os.environ.get("TEST_PROGRAMS", "20"))
STEPS = 6
MEMBERS = 3
REDUCES = ("all_reduce", "retry", "min_max", "int4")
KINDS = (*REDUCES, "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
DIVIDED = ("scatter", "reduce_scatter", "all_to_all")


class Step:
    """One collective. Member m gives part p the value `values[m] + 10 * p`."""

    def __init__(self, seed: int, number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        self.number = number
        self.kind = rng.choice(KINDS)
        self.size = rng.choice([1, 50, 5_000, 60_000, 300_000])
        self.root = rng.randrange(MEMBERS)
        self.apart = rng.random() < 0.5
        self.values = [rng.randint(1, 9) for _ in range(MEMBERS)]

    def __repr__(self) -> str:
        return f"step {self.number}: {self.kind} of {self.size}, root {self.root}, {'apart' if self.apart else 'in place'}"

    def given(self, member: int) -> np.ndarray:
        parts = MEMBERS if self.kind in DIVIDED else 1
        return np.repeat(np.float32([self.values[member] + 10 * part for part in range(parts)]), self.size)

    def has_result(self, member: int) -> bool:
        return self.kind not in ("reduce", "gather") or member == self.root

    def expected(self, member: int) -> np.ndarray:
        whole = sum(self.values)
        results = {
            "broadcast": [self.values[self.root]],
            "all_gather": self.values,
            "gather": self.values,
            "scatter": [self.values[self.root] + 10 * member],
            "reduce_scatter": [whole + 10 * MEMBERS * member],
            "all_to_all": [value + 10 * member for value in self.values],
        }
        return np.repeat(np.float32(results.get(self.kind, [whole])), self.size)

    def buffers(self, member: int) -> tuple[np.ndarray, np.ndarray]:
        send = self.given(member)
        reduces = self.kind in (*REDUCES, "reduce")
        if self.kind == "broadcast" or (reduces and not self.apart):
            return send, send
        return send, np.zeros(len(self.expected(member)), np.float32)

    def call(self, comm: Communicator, send: np.ndarray, recv: np.ndarray, timeout: float | None) -> Any:
        """A handle, without `timeout`."""
        options: dict[str, Any] = {"tag": self.number} | ({} if timeout is None else {"timeout": timeout})
        name = "all_reduce" if self.kind in REDUCES else self.kind
        function = getattr(comm, name if timeout is not None else f"{name}_async")
        if self.kind == "retry":
            options["retry"] = True
        if self.kind in QUANTISED:
            options["quantization_options"] = QUANTISED[self.kind]
        if self.kind in ("broadcast", "reduce", "gather", "scatter"):
            options["root"] = self.root
        if self.kind == "broadcast":
            return function(send, **options)
        if self.kind == "scatter" and comm.rank != self.root:
            return function(None, recv, **options)
        return function(send, recv if self.has_result(comm.rank) else None, **options)


def attempt(comm: Communicator, rng: random.Random, step: Step) -> bytes | str:
    """Makes the call of a step with random timeouts, cancellations and writes to its buffers."""
    send, recv = step.buffers(comm.rank)

    def scribble() -> None:
        for buffer in (send, recv):
            buffer[rng.randrange(len(buffer)) :] += 100

    if rng.random() < 0.5:
        handle = step.call(comm, send, recv, None)
        for _ in range(rng.randrange(4)):
            scribble()
            with contextlib.suppress(pccl.PCCLTimeoutError):
                handle.result(timeout=rng.choice([0.0, 0.001, 0.01]))
                break
        else:
            if rng.random() < 0.2:
                handle.cancel(timeout=PATIENCE)
            handle.result(timeout=PATIENCE)
        return recv.tobytes()
    while True:
        try:
            step.call(comm, send, recv, rng.choice([0.0, 0.001, 0.02, PATIENCE]))
            return recv.tobytes()
        except pccl.PCCLTimeoutError:
            chance = rng.random()
            if chance < 0.2:
                return "cancelled" if comm.cancel(step.number, timeout=PATIENCE) else recv.tobytes()
            if chance < 0.5:
                send[rng.randrange(len(send)) :] += 100
        except pccl.UsageError as error:
            if "input changed" not in str(error):
                raise
            send[:] = step.given(comm.rank)


def play(seed: int) -> None:
    steps = [Step(seed, number) for number in range(STEPS)]
    outcomes: dict[tuple[int, int], bytes | str] = {}

    def member(comm: Communicator) -> None:
        rng = random.Random(seed * 10 + comm.rank)
        for step in steps:
            try:
                outcomes[step.number, comm.rank] = attempt(comm, rng, step)
            except pccl.OperationCancelledError:
                outcomes[step.number, comm.rank] = "cancelled"

    run(*[member] * MEMBERS)
    for step in steps:
        text = f"{step!r}; replay with play({seed})"
        ends = [outcomes[step.number, rank] for rank in range(MEMBERS)]
        if "cancelled" in ends:
            assert set(ends) == {"cancelled"}, text
        elif step.kind == "int4":
            assert len(set(ends)) == 1, text
        else:
            for rank in range(MEMBERS):
                if step.has_result(rank):
                    assert ends[rank] == step.expected(rank).tobytes(), f"{text}, member {rank}"


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed):
    play(seed)
