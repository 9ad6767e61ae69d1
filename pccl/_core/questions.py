"""What is asked of masters from outside of their runs, and their answers (docs/protocol.md).

The library carries both as bytes. Answers are read here, where their lengths are checked: whoever answers may be no master.
"""

from __future__ import annotations

import struct
from typing import Any

from pccl._core.errors import ConnectError, PCCLError, Result
from pccl._core.library import _C, _ffi

STATUS, RUNS, REMOVE, STACKS = _C.pccl_ext_asks_status, _C.pccl_ext_asks_runs, _C.pccl_ext_removes, _C.pccl_ext_asks_stacks

ANSWER_BYTES = 16 * 1024
"""The longest answer: the stacks of a member."""

RUNS_MOST = 65
"""Runs that a master tells of."""

BY_BYTES = 95
"""The longest text that says who asks for a removal, and what for."""


def ask(
    kind: int, name: str, address: Any, run: str, keys: Any, limit_ms: int, *, body: bytes = b"", insecure: bool = False
) -> bytes:
    """Asks one question, and returns the body of the answer. PCCLError of the call `name`: as `pccl_ext_ask` says.

    `address`: a `ccoip_socket_address_t *`; `keys`: bytes, or NULL for those of the environment.
    """
    kept = _ffi.new("char[]", run.encode()), _ffi.from_buffer(body), keys if keys == _ffi.NULL else _ffi.new("char[]", keys)
    question = _ffi.new("struct pccl_ext_question *", (address, kept[0], kept[2], insecure, kind, kept[1], len(body)))
    out, length = _ffi.new("uint8_t[]", ANSWER_BYTES), _ffi.new("size_t *")
    PCCLError.check(_C.pccl_ext_ask(question, limit_ms, out, ANSWER_BYTES, length), name)
    return bytes(_ffi.buffer(out, length[0]))


class Reader:
    """Reads an answer field by field. ConnectError: it is not as long as it says, or has what no master sends."""

    def __init__(self, body: bytes, name: str) -> None:
        self._body, self._name, self._at = body, name, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """The next fields, little-endian, as `struct` describes them."""
        size = struct.calcsize(f"<{layout}")
        self.require(len(self._body) - self._at >= size)
        self._at += size
        return struct.unpack_from(f"<{layout}", self._body, self._at - size)

    def text(self, most: int) -> str:
        """A name: its length in a byte, and so many printable characters of ASCII."""
        (length,) = self.take("B")
        self.require(length <= most)
        (chars,) = self.take(f"{length}s")
        self.require(all(0x20 < one < 0x7F for one in chars))
        return str(chars.decode())

    def end(self) -> None:
        """Nothing follows."""
        self.require(self._at == len(self._body))

    def require(self, good: bool) -> None:
        """ConnectError unless `good`."""
        if not good:
            text = "no master answers: what came from there is no answer of this version of pccl"
            raise ConnectError(Result.MASTER_CONNECTION_FAILED, self._name, text)


def read_status(body: bytes, name: str) -> tuple[bool, bool, int]:
    """Whether it has a run, or members that resume it; whether members left the last one; how many ms ago that ended."""
    reader = Reader(body, name)
    activity, completed, ended_ms = reader.take("BBQ")
    reader.require(activity <= 2 and completed <= 1)
    reader.end()
    return activity != 0, completed == 1, ended_ms


def read_runs(body: bytes, name: str) -> dict[str, int]:
    """The number of peers of each run by its name."""
    reader = Reader(body, name)
    (count,) = reader.take("I")
    reader.require(count <= RUNS_MOST)
    runs: dict[str, int] = {}
    for _ in range(count):
        run = reader.text(64)
        (runs[run],) = reader.take("I")
    reader.end()
    return runs


def write_remove(member: bytes, at_update: bool, by: str) -> bytes:
    """The body of a REMOVE. Of a longer `by` the first BY_BYTES go."""
    shown = "".join(one if one.isprintable() else "?" for one in by).encode("utf-8", "replace")[:BY_BYTES]
    said = shown.decode("utf-8", "ignore").encode()
    return member + struct.pack("<BB", at_update, len(said)) + said
