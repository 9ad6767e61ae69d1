"""The code against arithmetic by polynomials, and every loss that it bears."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pccl.state._snapshots import code
from pccl.state._snapshots.code import add, divide, factors, inverse, multiply, rebuild

BYTES = st.integers(0, 255)


def product(a: int, b: int) -> int:
    """By schoolbook multiplication and division by the polynomial."""
    found = 0
    for bit in range(8):
        if b >> bit & 1:
            found ^= a << bit
    for bit in range(14, 7, -1):
        if found >> bit & 1:
            found ^= 0x11D << bit - 8
    return found


@given(BYTES, BYTES)
def test_products_are_those_of_polynomials(a, b):
    assert multiply(a, b) == product(a, b)
    if b:
        assert multiply(divide(a, b), b) == a


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (2, 4), (3, 3), (4, 2)])
def test_every_square_part_can_be_inverted(rows, columns):
    matrix = factors(rows, columns)
    assert all(one == 1 for one in matrix[0])
    assert all(row[0] == 1 for row in matrix)
    for size in range(1, min(rows, columns) + 1):
        for some in itertools.combinations(range(rows), size):
            for others in itertools.combinations(range(columns), size):
                part = [[matrix[row][column] for column in others] for row in some]
                back = inverse(part)
                for i in range(size):
                    for j in range(size):
                        total = 0
                        for k in range(size):
                            total ^= multiply(part[i][k], back[k][j])
                        assert total == (i == j)


def test_a_matrix_without_inverse_is_refused():
    with pytest.raises(ZeroDivisionError):
        inverse([[1, 1], [1, 1]])


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_units_come_back_from_as_many_rows(columns, rows, blocks, random):
    size = 64 * blocks
    units = [torch.tensor(random.choices(range(256), k=size), dtype=torch.uint8) for _ in range(columns)]
    parity = []
    for row in range(rows):
        parity.append(torch.zeros(size, dtype=torch.uint8))
        for column in range(columns):
            add(parity[row], units[column], factors(rows, columns)[row][column])
    missing = random.sample(range(columns), random.randint(0, min(rows, columns)))
    there = {column: unit for column, unit in enumerate(units) if column not in missing}
    kept = random.sample(range(rows), random.randint(len(missing), rows))
    found = rebuild(size, columns, there, {row: parity[row] for row in kept}, rows)
    assert found.keys() == set(missing)
    assert all(torch.equal(found[column], units[column]) for column in missing)
    if missing:
        with pytest.raises(LookupError, match=f"{len(missing)} units are missing, and only {len(missing) - 1} rows"):
            rebuild(size, columns, there, dict.fromkeys(range(len(missing) - 1), parity[0]), rows)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 64, 4096 + 47])
def test_kernels_have_the_bytes_of_the_definition_at_any_address(size):
    source, start = (torch.randint(0, 256, (size + 1,), dtype=torch.uint8)[1:] for _ in range(2))
    for factor in (0, 1, 2, 91, 255):
        expected = torch.tensor(
            [one ^ multiply(factor, other) for one, other in zip(start.tolist(), source.tolist(), strict=True)], dtype=torch.uint8
        )
        target = start.clone()
        add(target, source, factor)
        assert torch.equal(target, expected)
        if factor > 1:
            plain = start.clone()
            pointers = [code._ffi.cast("uint8_t *", one.data_ptr()) for one in (plain, source)]
            code._kernels.snapshot_add_bytes(*pointers, size, code._products(factor))
            assert torch.equal(plain, expected)


def test_codes_of_too_many_members_are_refused():
    with pytest.raises(ValueError, match="at most 256 members"):
        factors(2, 255)
