"""Buffers whose sum tells who is in it. Pure.

Every process of a run has a code, a digit of base 4. Its buffer holds 4 to the power of that digit, times a pattern of odd
numbers that depends on the op and the place. So a sum is (a number in base 4) x (the pattern): a digit 1 is a process that
contributed once, 2 one that contributed twice, and a torn, shifted or stale piece does not fit the pattern. Where an element is
too small for all digits, neighbouring elements carry some each. All partial sums are whole numbers that the type holds exactly
(integers modulo 2^bits), so the sum is the same for every order of additions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CODES = 32
"""Processes that can be told apart."""
PERIOD = 8191
"""Of the pattern: a prime, so that no shift by whole chunks fits."""
LEAST_COUNT = 8
"""Elements that a buffer must have to carry all digits, whatever its type."""

# digits in an element; bits of the pattern's numbers. For floats both together stay within the mantissa.
_LAYOUT = {
    "int64": (32, 62),
    "int32": (16, 30),
    "uint8": (4, 8),
    "float64": (16, 20),
    "float32": (8, 8),
    "float16": (4, 3),
}
DTYPES = tuple(_LAYOUT)


@dataclass(frozen=True)
class Reading:
    """What a result says: who is in it, as a bit per code, and what is wrong with it, if anything."""

    who: int
    fault: str = ""


class Pattern:
    """Buffers of one type."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self._digits, bits = _LAYOUT[dtype]
        self.parts = CODES // self._digits
        rng = random.Random(f"pattern {dtype}")
        odd = [rng.getrandbits(bits - 1) * 2 + 1 for _ in range(PERIOD)]
        self._odd = np.array(odd, np.uint64).astype(self.dtype)

    def numbers(self, count: int, shift: int) -> Array:
        """The odd numbers of an op."""
        return np.resize(np.roll(self._odd, -(shift % PERIOD)), count)

    def fill(self, out: Array, code: int, shift: int) -> Array:
        """Writes what the process with this code contributes."""
        part, digit = code % self.parts, code // self.parts
        out[:] = 0
        weight = self.dtype.type(4**digit)
        np.multiply(self.numbers(out.size, shift)[part :: self.parts], weight, out=out[part :: self.parts])
        return out

    def read(self, result: Array, shift: int, divisor: int = 1, start: int = 0) -> Reading:
        """Who is in a sum, or in an average by `divisor`; of the elements from `start` on, if it is a piece of one."""
        turn = start % self.parts  # the first element of the piece belongs to this part
        numbers = self.numbers(result.size, shift + start)
        places = [(part - turn) % self.parts for part in range(self.parts)]
        weights = [self._weight(result[place], numbers[place], divisor) for place in places]
        who, fault = 0, ""
        for part, weight in enumerate(weights):
            for digit in range(self._digits):
                times = weight >> 2 * digit & 3
                code = digit * self.parts + part
                who |= (times > 0) << code
                if times > 1:
                    fault = f"code {code} is in it {times} times"
        if not fault:
            fault = self._compare(result, places, weights, numbers, divisor)
        return Reading(who, fault)

    def _weight(self, element: Any, number: Any, divisor: int) -> int:
        if self.dtype.kind == "f":
            ratio = float(element) * divisor / float(number)
            return round(ratio) if abs(ratio) < 1 << 64 else 0
        modulus = 1 << 8 * self.dtype.itemsize
        return int(element) * pow(int(number) % modulus, -1, modulus) % modulus

    def _compare(self, result: Array, places: list[int], weights: list[int], numbers: Array, divisor: int) -> str:
        for first, weight in zip(places, weights, strict=True):
            wanted = numbers[first :: self.parts] * self._as_element(weight)
            if divisor != 1:
                wanted = wanted / self.dtype.type(divisor)
            found = result[first :: self.parts]
            if not np.array_equal(found, wanted):
                place = int(np.flatnonzero(found != wanted)[0])
                return (
                    f"element {place * self.parts + first} of {result.size} is {found[place]}, not {wanted[place]}; "
                    f"{np.count_nonzero(found != wanted)} are wrong"
                )
        return ""

    def _as_element(self, weight: int) -> Any:
        if self.dtype.kind == "f":
            return self.dtype.type(weight)
        return np.array(weight, np.uint64).astype(self.dtype)[()]


class Constants:
    """Buffers of one number each, for quantised sums, which are exact for such: 2 to the power of the code.

    They cannot tell a process that is in it twice from the next one; the number of contributors then is wrong, or it is nobody's.
    """

    dtype = np.dtype("float64")

    def fill(self, out: Array, code: int, shift: int) -> Array:
        """Writes what the process with this code contributes; there is no pattern to shift."""
        out[:] = 2.0**code
        return out

    def read(self, result: Array, shift: int, divisor: int = 1, start: int = 0) -> Reading:
        """Who is in a sum, or in a piece of one."""
        value = float(result[0])
        if not (0 < value < 2.0**CODES and value == int(value)):
            return Reading(0, f"{value} is no sum of powers of two")
        wrong = np.count_nonzero(result != value)
        return Reading(int(value), f"{wrong} of {result.size} elements are not {value}" if wrong else "")


Content = Pattern | Constants


def contents() -> dict[str, Content]:
    """What ops carry, by the name of their type; those that are quantised, by "quantized"."""
    return {**{dtype: Pattern(dtype) for dtype in DTYPES}, "quantized": Constants()}


def codes_in(who: int) -> list[int]:
    """The codes of a reading."""
    return [code for code in range(CODES) if who >> code & 1]
