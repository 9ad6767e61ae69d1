"""JSON of other processes: its size, depth and memory are bounded before it is parsed."""

from __future__ import annotations

import json
from typing import Any

LEVELS = 64
"""The deepest nesting of a text that `read_json` parses."""

_STRING, _ITEM, _LIST, _OBJECT, _PAIR = 64, 48, 96, 64, 128
"""Bytes of memory that Python needs at most, while it parses, for each string, comma, list, object and colon."""

_LETTER = 6
"""Bytes of memory for each byte of a string: its text, its parts and their sum, in which one letter may widen all others."""

_BLOCK = 1 << 12
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def weigh(text: bytes, most: int, levels: int) -> int:
    """Returns how much memory the value of a JSON text takes at most, in bytes. Takes linear time, and parses nothing.

    ValueError: it takes more than `most`, or is nested more than `levels` deep.
    """
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    weight = _STRING * (plain.count(b'"') // 2)
    outside, inside = [], 0  # strings
    for begin in range(0, len(plain), _BLOCK):
        parts = plain[begin : begin + _BLOCK].split(b'"')
        outside.append(b"".join(parts[inside::2]))
        inside = (inside + len(parts) - 1) % 2
    plain = b"".join(outside)
    weight += _LETTER * (len(text) - len(plain))
    weight += _ITEM * plain.count(b",") + _LIST * plain.count(b"[") + _OBJECT * plain.count(b"{") + _PAIR * plain.count(b":")
    if weight > most:
        raise ValueError(f"its {len(text)} bytes would take {weight} bytes of memory, and {most} are permitted")
    brackets = plain.translate(None, _NO_BRACKETS)
    while brackets and levels > 0:
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        levels -= 1
    if brackets:
        raise ValueError("it is nested too deep, or its brackets do not match")
    return weight


def read_json(text: bytes, most: int) -> Any:
    """Parses JSON. ValueError: `text` has more than `most` bytes, is nested more than LEVELS deep, or is malformed.

    So are NaN and infinity, which browsers do not read.
    """
    if len(text) > most:
        raise ValueError(f"it has {len(text)} bytes, and {most} are permitted")
    if text.count(b"[") + text.count(b"{") > LEVELS:
        weigh(text, 1 << 62, LEVELS)
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")
