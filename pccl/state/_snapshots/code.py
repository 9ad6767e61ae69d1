"""The Reed-Solomon code of stripes: which factors a parity row has, and the bytes that it adds up.

Bytes are elements of GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1. The factors are a Cauchy matrix [1] whose rows and
columns are divided by their first elements: the first row and the first column are ones, so that the first row is a plain XOR
and a code with one unit makes copies. Every square part of it can be inverted, hence any units can be computed from as many rows.

[1] J. S. Plank, L. Xu: Optimizing Cauchy Reed-Solomon Codes for Fault-Tolerant Network Storage Applications, 2006.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pccl import _snapshot_kernels

_ffi, _kernels = _snapshot_kernels.ffi, _snapshot_kernels.lib

MEMBERS_MAX = 256
"""Units and rows of one stripe."""


def _powers() -> tuple[list[int], list[int]]:
    exponents, logarithms, value = [0] * 510, [0] * 256, 1
    for power in range(255):
        exponents[power] = exponents[power + 255] = value
        logarithms[value] = power
        value = value << 1 ^ (0x11D if value & 0x80 else 0)
    return exponents, logarithms


_EXP, _LOG = _powers()


def multiply(a: int, b: int) -> int:
    """The product of two elements."""
    return _EXP[_LOG[a] + _LOG[b]] if a and b else 0


def divide(a: int, b: int) -> int:
    """The quotient of two elements; `b` is not 0."""
    return _EXP[_LOG[a] + 255 - _LOG[b]] if a else 0


@functools.lru_cache(maxsize=64)
def factors(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """By parity row, the factor of each unit. ValueError: a stripe has more than MEMBERS_MAX units and rows."""
    if rows + columns > MEMBERS_MAX:
        raise ValueError(f"a code has at most {MEMBERS_MAX} members in a group, not {columns} + {rows}")
    cauchy = [[divide(1, row ^ (rows + column)) for column in range(columns)] for row in range(rows)]
    scaled = [[divide(one, first) for one, first in zip(row, cauchy[0], strict=True)] for row in cauchy]
    return tuple(tuple(divide(one, row[0]) for one in row) for row in scaled)


def inverse(matrix: Sequence[Sequence[int]]) -> list[list[int]]:
    """The inverse of a square matrix by Gauss-Jordan elimination. ZeroDivisionError: it has none."""
    size = len(matrix)
    rows = [[*row, *(int(at == column) for column in range(size))] for at, row in enumerate(matrix)]
    for column in range(size):
        pivot = next((at for at in range(column, size) if rows[at][column]), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix has no inverse")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [divide(one, rows[column][column]) for one in rows[column]]
        for at in range(size):
            if at != column and rows[at][column]:
                factor = rows[at][column]
                rows[at] = [one ^ multiply(factor, other) for one, other in zip(rows[at], rows[column], strict=True)]
    return [row[size:] for row in rows]


@functools.lru_cache(maxsize=256)
def _products(factor: int) -> Any:
    return _ffi.NULL if factor == 1 else _ffi.new("uint8_t[256]", [multiply(factor, byte) for byte in range(256)])


def add(target: torch.Tensor, source: torch.Tensor, factor: int) -> None:
    """Adds `factor` times `source` to `target`: uint8 tensors of equal size, contiguous, on the CPU."""
    if factor:
        into, data = (_ffi.cast("uint8_t *", one.data_ptr()) for one in (target, source))
        _kernels.snapshot_add(into, data, target.numel(), _products(factor))


def rebuild(
    size: int,
    columns: int,
    units: Mapping[int, torch.Tensor],
    parity: Mapping[int, torch.Tensor],
    rows: int,
) -> dict[int, torch.Tensor]:
    """The units of a stripe that are missing, by column.

    `units` has those that are there by column, `parity` rows by number. `rows`: of the whole code.
    LookupError: fewer rows of parity than missing units.
    """
    missing = [column for column in range(columns) if column not in units]
    used = sorted(parity)[: len(missing)]
    if len(used) < len(missing):
        raise LookupError(f"{len(missing)} units are missing, and only {len(used)} rows of parity are there")
    matrix = factors(rows, columns)
    sums = {row: parity[row].clone() for row in used}
    for column in sorted(units):
        for row in used:
            add(sums[row], units[column], matrix[row][column])
    solved = inverse([[matrix[row][column] for column in missing] for row in used])
    found = {}
    for at, column in enumerate(missing):
        found[column] = torch.zeros(size, dtype=torch.uint8, device="cpu")
        for row, factor in zip(used, solved[at], strict=True):
            add(found[column], sums[row], factor)
    return found
