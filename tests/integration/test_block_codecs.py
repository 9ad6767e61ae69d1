"""Quantisation in blocks: the bits of an all-reduce against a reference in NumPy, and what members have to agree on."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from peers import PATIENCE, on_all, team

from pccl import (
    DataType,
    ErrorFeedback,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
)
from pccl._core.errors import Result

INT8, INT4, E3M0 = QuantizationAlgorithm.BLOCK_INT8, QuantizationAlgorithm.BLOCK_INT4, QuantizationAlgorithm.BLOCK_E3M0
ALGORITHMS = [INT8, INT4, E3M0]
F32 = np.float32


def random_numbers(seed: int, first: int, count: int) -> np.ndarray:
    """The 32-bit numbers of stochastic rounding for these elements, as csrc/compute/block.c has them."""
    mask = (1 << 64) - 1

    def mixed(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    key = mixed(mixed((seed + 0x9E3779B97F4A7C15) & mask) + (first >> 32) & mask)
    x = (np.arange(first, first + count, dtype=np.uint64) + (key & 0xFFFFFFFF)).astype(np.uint32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x21F0AAAD)
    x ^= np.uint32(key >> 32)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x735A2D97)
    return x ^ x >> np.uint32(15)


def quantised_block(x: np.ndarray, algorithm: QuantizationAlgorithm, random: np.ndarray | None) -> np.ndarray:
    """What a block of float32 comes back as."""
    largest = np.abs(x).max()
    if not np.isfinite(largest):
        return np.full_like(x, np.nan)
    most = {INT8: 127, INT4: 7, E3M0: 1}[algorithm]
    scale = largest / F32(most)
    if scale == 0:
        return np.zeros_like(x)
    y = x * (F32(1) / scale)
    if algorithm is not E3M0:
        if random is None:
            codes = np.rint(y)
        else:
            codes = np.floor(y + ((random >> np.uint32(16)).astype(F32) + F32(0.5)) * F32(2**-16))
        return np.clip(codes, -most, most).astype(F32) * scale + F32(0)
    y = np.abs(y)
    powers = np.array([0] + [2.0**e for e in range(-6, 1)], F32)
    below = np.searchsorted(powers, y, side="right") - 1
    lower, upper = powers[below], powers[np.minimum(below + 1, 7)]
    if random is None:
        up = y >= (lower + upper) / 2
    else:
        digits = ((y.view(np.uint32) & np.uint32(0x7FFFFF)) + (random >> np.uint32(9))) >> np.uint32(23)
        up = np.where(below == 0, (random >> np.uint32(8)).astype(F32) * F32(2**-30) < y, digits > 0)
    return np.copysign(np.where(up, upper, lower) * scale, x) + F32(0)


def quantised(x: np.ndarray, options: QuantizationOptions, first: int, *, result: bool = False) -> np.ndarray:
    out = np.empty_like(x)
    for at in range(0, len(x), options.block):
        block = x[at : at + options.block]
        random = None
        if options.stochastic_seed is not None:
            seed = options.stochastic_seed ^ ((1 << 64) - 1 if result else 0)
            random = random_numbers(seed, first + at, len(block))
        out[at : at + options.block] = quantised_block(block, options.algorithm, random)
    return out


def reduced(inputs: list[np.ndarray], options: list[QuantizationOptions], op: ReduceOp) -> np.ndarray:
    """Each owner sums its shard in order, its own input as it is and the others' quantised, and quantises the sum."""
    members, count = len(inputs), len(inputs[0])
    size = math.ceil(math.ceil(count / members) / 16) * 16
    result = np.empty(count, F32)
    for owner in range(members):
        shard = slice(min(size * owner, count), min(size * (owner + 1), count))
        parts = [x[shard] if rank == owner else quantised(x[shard], options[rank], shard.start) for rank, x in enumerate(inputs)]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        if op is ReduceOp.AVG:
            total /= F32(members)
        result[shard] = quantised(total, options[owner], shard.start, result=True)
    return result


def numbers(rank: int, count: int) -> np.ndarray:
    random = np.random.default_rng(rank)
    return (random.standard_normal(count) * 2.0 ** random.integers(-20, 20, count)).astype(F32)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bits_of_the_reference(algorithm, stochastic):
    # (count, block, op): pieces of one frame and more, shards that end in the midst of a block
    shapes = [(1, 256, ReduceOp.SUM), (333, 32, ReduceOp.AVG), (70_001, 256, ReduceOp.SUM), (400_000, 4096, ReduceOp.AVG)]

    def body(comm, rank):
        results = []
        for count, block, op in shapes:
            out = np.empty(count, F32)
            comm.all_reduce(numbers(rank, count), out, op=op, quantization_options=options(block, rank), timeout=PATIENCE)
            results.append(out)
        return results, comm.uuid

    def options(block, rank):
        return QuantizationOptions(algorithm=algorithm, block=block, stochastic_seed=rank + 7 if stochastic else None)

    with team([0, 0, 0]) as comms:
        seen = on_all(comms, body)
        order = [next(rank for rank, (_, uuid) in enumerate(seen) if uuid == member) for member in comms[0].members]
    for number, (count, block, op) in enumerate(shapes):
        expected = reduced([numbers(rank, count) for rank in order], [options(block, rank) for rank in order], op)
        for results, _ in seen:
            np.testing.assert_array_equal(results[number].view(np.uint32), expected.view(np.uint32))


def test_each_of_several_reduces_has_options_of_its_own():
    count, operand = 20_001, ReduceOperandDescriptor(DataType.FLOAT)

    def options(rank):
        return [
            QuantizationOptions(algorithm=INT8),
            QuantizationOptions(algorithm=INT4, block=32),
            QuantizationOptions(algorithm=E3M0, block=4096, stochastic_seed=rank + 7),
        ]

    def body(comm, rank):
        results = [np.empty(count, F32) for _ in options(rank)]
        comm.all_reduce_multiple_with_retry(
            [
                ReduceOpDescriptor.from_numpy(
                    numbers(rank + 10 * tag, count), result, ReduceDescriptor(count, ReduceOp.SUM, tag, operand, quantization)
                )
                for tag, (result, quantization) in enumerate(zip(results, options(rank), strict=True))
            ],
            timeout=PATIENCE,
        )
        return results, comm.uuid

    with team([0, 0]) as comms:
        seen = on_all(comms, body)
        order = [next(rank for rank, (_, uuid) in enumerate(seen) if uuid == member) for member in comms[0].members]
    for tag in range(3):
        inputs = [numbers(rank + 10 * tag, count) for rank in order]
        expected = reduced(inputs, [options(rank)[tag] for rank in order], ReduceOp.SUM)
        for results, _ in seen:
            np.testing.assert_array_equal(results[tag].view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_that_are_not_finite_spoil_their_block_alone(algorithm):
    def body(comm, rank):
        array = np.full(40_000, rank + 1, F32)
        if rank == 0:
            array[[300, 30_000]] = [np.inf, np.nan]
        comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=QuantizationOptions(algorithm=algorithm), timeout=PATIENCE)
        return array

    with team([0, 0]) as comms:
        first, second = on_all(comms, body)
    assert first.tobytes() == second.tobytes()
    spoilt = np.isnan(first)
    assert spoilt[300]
    assert spoilt[30_000]
    assert spoilt.sum() <= 2 * 256
    np.testing.assert_allclose(first[~spoilt], 3, rtol=1e-5 if algorithm is not E3M0 else 0.34)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_elements_of_16_bits(dtype):
    torch = pytest.importorskip("torch")

    def body(comm, rank):
        tensor = torch.from_numpy(numbers(rank, 10_000) * 1e-4).to(getattr(torch, dtype))
        options = QuantizationOptions(algorithm=INT8, block=64)
        exact = tensor.to(torch.float64)
        comm.all_reduce(tensor, op=ReduceOp.SUM, quantization_options=options, timeout=PATIENCE)
        return exact, tensor

    with team([0, 0]) as comms:
        (a, got), (b, other) = on_all(comms, body)
    assert torch.equal(got, other)
    error = (got.to(torch.float64) - a - b).abs()
    assert error.max() <= 3 * (a.abs().max() + b.abs().max()) / 127


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        ({"algorithm": INT4, "block": 64}, {"algorithm": INT4}, "int4 in blocks of 64"),
        ({"algorithm": INT4}, {"algorithm": E3M0}, "E3M0 in blocks of 256"),
        ({"algorithm": INT8}, {}, "int8 in blocks of 256"),
    ],
)
def test_members_that_disagree_get_a_mismatch(mine, theirs, text):
    def body(comm, rank):
        array = np.full(1000, rank, F32)
        options = QuantizationOptions(**[mine, theirs][rank])
        with pytest.raises(PCCLError) as caught:
            comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=options, timeout=PATIENCE)
        assert (array == rank).all()
        return caught.value

    with team([0, 0]) as comms:
        for error in on_all(comms, body):
            assert error.result is Result.INVALID_ARGUMENT
            assert text in str(error)


def test_arguments_that_do_not_fit_are_refused():
    options = QuantizationOptions(algorithm=INT4)

    def body(comm, rank):
        for array in (np.ones(8, np.float64), np.ones(8, np.int32)):
            with pytest.raises(PCCLError, match=f"{array.dtype.name} cannot be quantised in blocks; use float32"):
                comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=options)

    with team([0, 0]) as comms:
        on_all(comms, body)


# ---- error feedback ----


def conserved(applied: np.ndarray, residuals: list[np.ndarray], given: np.ndarray) -> float:
    """How much of what was given is in neither, relative to it."""
    found = applied + sum(residual.astype(np.float64) for residual in residuals)
    return float(np.linalg.norm(found - given) / np.linalg.norm(given))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_taken_away_comes_back(algorithm, op, in_place):
    members, count, rounds = 3, 100_003, 6

    def body(comm, rank):
        feedback = ErrorFeedback(np.empty(count, F32))
        options = QuantizationOptions(algorithm=algorithm, stochastic_seed=rank if rank else None)
        applied = np.zeros(count)
        for step in range(rounds):
            mine = numbers(rank + 10 * step, count)
            result = mine.copy()
            before, left = feedback.residual, feedback.residual.copy()
            send = result if in_place else mine
            comm.all_reduce(send, result, op=op, quantization_options=options, residual=feedback, timeout=PATIENCE)
            np.testing.assert_array_equal(before, left)  # only read
            applied += result.astype(np.float64) * (members if op is ReduceOp.AVG else 1)
        return applied, feedback.residual

    with team([0] * members) as comms:
        seen = on_all(comms, body)
    given = sum(numbers(rank + 10 * step, count).astype(np.float64) for rank in range(members) for step in range(rounds))
    assert all((applied == seen[0][0]).all() for applied, _ in seen)
    assert conserved(seen[0][0], [residual for _, residual in seen], given) < 1e-6
    assert conserved(seen[0][0], [], given) > 1e-4  # it is the residuals that make it right


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_rounding_of_16_bits_comes_back_too(dtype):
    torch = pytest.importorskip("torch")

    def tensor_of(rank):
        return torch.from_numpy(numbers(rank, 5000) * 1e-4).to(getattr(torch, dtype))

    def body(comm, rank):
        tensor = tensor_of(rank)
        feedback = ErrorFeedback(tensor)
        assert feedback.residual.dtype is torch.float32
        options = QuantizationOptions(algorithm=INT8)
        comm.all_reduce(tensor, op=ReduceOp.SUM, quantization_options=options, residual=feedback, timeout=PATIENCE)
        return tensor.double().numpy(), feedback.residual.numpy()

    with team([0, 0]) as comms:
        seen = on_all(comms, body)
    given = tensor_of(0).double().numpy() + tensor_of(1).double().numpy()
    assert conserved(seen[0][0], [residual for _, residual in seen], given) < 1e-6


def test_what_is_not_finite_leaves_nothing():
    def body(comm, rank):
        array = np.ones(1000, F32)
        array[rank * 700] = np.nan
        feedback = ErrorFeedback(array)
        options = QuantizationOptions(algorithm=INT4)
        comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=options, residual=feedback, timeout=PATIENCE)
        return feedback.residual

    with team([0, 0]) as comms:
        assert all(np.isfinite(residual).all() for residual in on_all(comms, body))


def test_after_an_error_the_residual_is_as_before():
    """Members that disagree, in the midst of rounds that succeed; and an op that is launched and awaited by itself."""

    def body(comm, rank):
        feedback = ErrorFeedback(np.empty(70_000, F32))
        options = QuantizationOptions(algorithm=INT4)
        other = QuantizationOptions(algorithm=INT4, block=[32, 64][rank])
        for step in range(3):
            mine = numbers(rank + step, 70_000)
            before, bits = feedback.residual, feedback.residual.tobytes()
            with pytest.raises(PCCLError):
                comm.all_reduce(mine, op=ReduceOp.SUM, quantization_options=other, residual=feedback, timeout=PATIENCE)
            assert feedback.residual is before
            assert before.tobytes() == bits
            handle = comm.all_reduce_async(mine, op=ReduceOp.SUM, quantization_options=options, residual=feedback)
            handle.result(timeout=PATIENCE)
            after = feedback.residual
            assert after is not before
            handle.result()
            assert feedback.residual is after

    with team([0, 0]) as comms:
        on_all(comms, body)


def test_a_residual_has_to_fit():
    blocks = QuantizationOptions(algorithm=INT4)

    def body(comm, rank):
        array = np.ones(100, F32)
        feedback = ErrorFeedback(array)
        for options in (None, QuantizationOptions()):
            with pytest.raises(ValueError, match=r"residual needs quantization_options with a BLOCK_\* algorithm"):
                comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=options, residual=feedback)
        with pytest.raises(ValueError, match="residual has 100 elements and the tensors 99"):
            comm.all_reduce(array[1:].copy(), op=ReduceOp.SUM, quantization_options=blocks, residual=feedback)
        with pytest.raises(PCCLError, match="max has no error feedback: only sum and avg have"):
            comm.all_reduce(array, op=ReduceOp.MAX, quantization_options=blocks, residual=feedback)
        with pytest.raises(PCCLError, match="the residuals overlap"):
            comm.all_reduce(feedback.residual, op=ReduceOp.SUM, quantization_options=blocks, residual=feedback)
        with pytest.raises(TypeError, match="residual must be an ErrorFeedback"):
            comm.all_reduce(array, op=ReduceOp.SUM, quantization_options=blocks, residual=array)
        if rank == 0:
            handle = comm.all_reduce_async(array, op=ReduceOp.SUM, quantization_options=blocks, residual=feedback)
            with pytest.raises(ValueError, match="belongs to the operation with tag 0, which is in flight"):
                comm.all_reduce(array.copy(), op=ReduceOp.SUM, tag=1, quantization_options=blocks, residual=feedback)
        met.wait()
        if rank == 1:
            handle = comm.all_reduce_async(array, op=ReduceOp.SUM, quantization_options=blocks, residual=feedback)
        handle.result(timeout=PATIENCE)

    met = threading.Barrier(2, timeout=PATIENCE)
    with team([0, 0]) as comms:
        on_all(comms, body)
