"""Messages of `pccl.state.decode` that cost their reader most, for tests/bounds/worst_inputs.py and other tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

_PRIME = (1 << 61) - 1
"""Python takes numbers modulo this for their hash."""


def message(tree: Any, raw: bytes = b"", size: int = 0) -> bytes:
    """A message whose JSON is `tree`, as a text or as what JSON writes, with zeros at its end up to `size`."""
    text = (tree if isinstance(tree, str) else json.dumps(tree, separators=(",", ":"))).encode()
    return (struct.pack("<Q", len(text)) + text + bytes(-(8 + len(text)) % 64) + raw).ljust(size, b"\0")


def filled(item: Callable[[int], str], around: str = "[%s]") -> Callable[[int], bytes]:
    """Makes messages of nothing but such items."""

    def make(size: int) -> bytes:
        count = size // (len(item(1000)) + 1) + 1
        return message(around % ",".join(item(number) for number in range(count)))

    return make


def padded(item: Callable[[int], str], around: str = "[%s]") -> Callable[[int], bytes]:
    """Makes messages of as many items as `decode` accepts, if zeros lengthen them."""
    from pccl.state import TreeError, decode

    def make(size: int) -> bytes:
        def of(count: int) -> bytes:
            return message(around % ",".join(item(number) for number in range(count)), size=size)

        def accepted(content: bytes) -> bool:
            try:
                decode(content)
            except TreeError:
                return False
            return len(content) <= size

        least, most = 0, size
        while most - least > max(1, most // 64):
            middle = (least + most) // 2
            least, most = (middle, most) if accepted(of(middle)) else (least, middle)
        return of(least)

    return make


def same_bytes(kind: Callable[[int], Any]) -> Callable[[int], bytes]:
    """Makes messages in which many values have the same bytes."""

    def make(size: int) -> bytes:
        item = json.dumps(kind(size // 2), separators=(",", ":"))
        return message("[" + ",".join([item] * (size // 2 // (len(item) + 1))) + "]", bytes(size // 2))

    return make


ITEMS: dict[str, tuple[Callable[[int], str], str]] = {
    "empty lists": (lambda _: "[]", "[%s]"),
    "lists of one": (lambda i: f"[{i + 300}]", "[%s]"),
    "integers": (lambda i: str(i + 300), "[%s]"),
    "numbers": (lambda _: "0.5", "[%s]"),
    "texts": (lambda i: f'"{i:x}"', "[%s]"),
    "wide texts": (lambda i: f'"\\ud83d\\ude00{i:x}"', "[%s]"),
    "tuples": (lambda _: '{"tuple":[1]}', "[%s]"),
    "sets": (lambda _: '{"set":[1]}', "[%s]"),
    "deques": (lambda _: '{"deque":[]}', "[%s]"),
    "dicts": (lambda _: '{"dict":[[1,2]]}', "[%s]"),
    "counters": (lambda _: '{"counter":[[1,2]]}', "[%s]"),
    "ordered dicts": (lambda _: '{"ordereddict":[[1,2]]}', "[%s]"),
    "uuids": (lambda i: f'{{"uuid":"{i:032x}"}}', "[%s]"),
    "empty tensors": (lambda _: '{"tensor":["uint8",[0],0,0]}', "[%s]"),
    "tensors of many dimensions": (lambda _: f'{{"tensor":["uint8",[{"0," * 63}0],0,0]}}', "[%s]"),
    "empty arrays": (lambda _: '{"array":["|u1",[0],0,0]}', "[%s]"),
    "bytearrays": (lambda i: f'{{"bytearray":[{i},1]}}', "[%s]"),
    "a dict": (lambda i: f"[{i + 300},1]", '{"dict":[%s]}'),
    "an ordered dict": (lambda i: f"[{i + 300},1]", '{"ordereddict":[%s]}'),
    "a counter": (lambda i: f"[{i + 300},1]", '{"counter":[%s]}'),
    "a set": (lambda i: str(i + 300), '{"set":[%s]}'),
    "objects of other kinds": (lambda i: f'{{"{i:x}":1}}', "[%s]"),
}

KEYS: dict[str, Callable[[int], Any]] = {
    "integers": lambda i: i * _PRIME,
    "uuids": lambda i: {"uuid": f"{i * _PRIME:032x}"},
    "complex numbers": lambda i: {"complex": [str(-1000003.0 * i), str(float(i))]},
    "tuples of integers": lambda i: {"tuple": [1, i * _PRIME]},
    "sets of integers": lambda i: {"frozenset": [1, (i + 1) * _PRIME]},
    "sizes": lambda i: {"size": [i % 8 * _PRIME, i // 8 % 4 * _PRIME, i // 32 % 4 * _PRIME, i // 128 % 4 * _PRIME]},
}
"""Different keys of one hash."""


def keys(kind: Callable[[int], Any], around: str = "dict") -> Callable[[int], bytes]:
    """Makes messages with keys of one hash, which zeros lengthen to four times their size."""

    def make(size: int) -> bytes:
        count = size // 4 // len(json.dumps([kind(300), None]))
        items = [kind(number) if around == "set" else [kind(number), None] for number in range(count)]
        return message({around: items}, size=size)

    return make


TREES: dict[str, Callable[[int], bytes]] = {
    "many bytes that are the same": same_bytes(lambda size: {"bytes": [0, size]}),
    "many tensors that are the same": same_bytes(lambda size: {"tensor": ["uint8", [size], 0, size]}),
    "many arrays that are the same": same_bytes(lambda size: {"array": ["|u1", [size], 0, size]}),
    "digits": lambda size: message("1" * size),
    "digits of many integers": filled(lambda _: "1" * 4300),
    "digits of a shape": lambda size: message({"tensor": ["uint8", [1 << 62] * (size // 20), 0, 0]}),
    "nested lists": lambda size: message("[" * (size // 2) + "]" * (size // 2)),
    "nested objects": lambda size: message('{"tuple":[' * (size // 12) + "]}" * (size // 12)),
    "a kind twice": lambda size: message('{"tuple":[],' * (size // 12) + '"tuple":[]' + "}" * (size // 12)),
    "a text of wide letters": lambda size: message('"' + "a" * (size - 20) + '\\ud83d\\ude00"'),
    "quotes": lambda size: message('"' * size),
    **{f"{name} without padding": filled(*one) for name, one in ITEMS.items()},
    **{name: padded(*one) for name, one in ITEMS.items()},
    **{f"a dict with {name} of one hash": keys(kind) for name, kind in KEYS.items()},
    **{f"a set with {name} of one hash": keys(kind, "set") for name, kind in KEYS.items()},
}
"""By name: makes a message of about so many bytes."""


def make_tree(name: str, size: int) -> bytes:
    return TREES[name](size)
