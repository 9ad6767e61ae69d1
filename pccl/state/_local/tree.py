"""Plain trees as bytes, without pickle: decoding runs no code of whoever sent them.

A message is the length of a JSON text (8 bytes, little-endian), the text, and raw bytes. JSON's numbers, strings, true, false,
null and lists stand for themselves. Anything else is an object with one key, its kind: {"dict": [[key, value], ...]}. Tensors,
arrays and bytes are places in the raw bytes, one behind the other. Zeros at the end lengthen a message whose values take more
than MEMORY times its size, so that a reader who refuses such messages refuses none of `encode`.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import operator
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import torch

from pccl._exports import publish
from pccl._host.bounded import weigh

LIMIT_BYTES = 1 << 34
"""The largest message that a peer accepts."""

DEPTH = 100
"""The deepest nesting of a tree."""

MEMORY = 6
"""The most bytes of memory for each byte of a message, beside copies of the message itself."""

FREE_BYTES = 1 << 16
"""Memory that the values of each message may take, however short it is."""

ALIKE = 16
"""Keys of one hash that a set or dict may have: a search among them takes time in proportion."""

COMPARED = 16
"""Comparisons of keys that each byte of a message may cost. Keys of one hash that have such keys themselves multiply them."""

_TEXT = 64
"""Letters of a number, a data type, a device or an identity, at most."""

DIMENSIONS = 64
"""Of a tensor or array, at most."""

DIGITS = sys.int_info.default_max_str_digits
"""Of an integer, at most: Python takes quadratic time to read one."""

_ALIGN = 64
_HEAD = struct.Struct("<Q")
_LEVELS = 3 * (DEPTH + 1)
"""Of JSON: a dict has an object, a list and a list for each pair."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_NUMPY_KINDS = "biufc"


class TreeError(ValueError):
    """A value that cannot be sent, or bytes that are no tree. The text names the place in the tree."""


_to_trees: dict[type, tuple[str, Callable[[Any], Any]]] = {}
_from_trees: dict[str, Callable[[Any], Any]] = {}
"""What `allow` has added, by class and by name."""


def allow(
    kind: type, to_tree: Callable[[Any], Any] | None = None, from_tree: Callable[[Any], Any] | None = None, *, name: str = ""
) -> None:
    """Lets objects of the class `kind` travel between peers. Call it in all of them, before the state is shared.

    `to_tree(object)` returns a plain tree, by default its `__dict__`. `from_tree(tree)` makes an object from one; by default the
    object is made without a call of `__init__`, and the tree becomes its `__dict__`. `name` tells the class to the other peers,
    by default its module and qualified name. Only `from_tree` runs on what another peer has sent: it must not trust the tree.
    TypeError: `kind` is no class. The default `from_tree` raises TreeError for a tree that is no dict.
    """
    if not isinstance(kind, type):
        raise TypeError(f"allow: kind must be a class, not {kind!r}")
    name = name or f"{kind.__module__}.{kind.__qualname__}"

    def make(tree: Any) -> Any:
        if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
            raise TreeError(f"{name} needs a dict with string keys")
        made: Any = object.__new__(kind)
        made.__dict__.update(tree)
        return made

    _to_trees[kind] = name, to_tree or (lambda value: dict(vars(value)))
    _from_trees[name] = from_tree or make


# ---- encode ----


def encode(value: Any) -> bytearray:
    """Returns a plain tree as bytes. TreeError: the tree has a value of another class, or is too deep or too large."""
    writer = _Writer()
    try:
        text = json.dumps(writer.tree(value, "", 0), allow_nan=False, separators=(",", ":")).encode()
    except TreeError:
        raise
    except ValueError as error:  # an integer of too many digits
        raise TreeError(f"the state cannot be sent: {error}") from None
    start = _aligned(_HEAD.size + len(text))
    weight = writer.weight + weigh(text, _ANY, _LEVELS)
    out = bytearray(max(start + writer.size, -(-(weight - FREE_BYTES) // MEMORY)))
    if len(out) > LIMIT_BYTES:
        raise TreeError(f"the state has {len(out)} bytes beside shared tensors, and at most {LIMIT_BYTES} can be sent")
    _HEAD.pack_into(out, 0, len(text))
    out[_HEAD.size : _HEAD.size + len(text)] = text
    view = memoryview(out)
    for offset, content in writer.raw:
        view[start + offset : start + offset + len(content)] = content
    return out


class _Writer:
    def __init__(self) -> None:
        self.raw: list[tuple[int, memoryview]] = []
        self.size = 0
        self.weight = 0

    def tree(self, value: Any, path: str, depth: int) -> Any:
        """`value` as JSON has it. `path` is its place, for errors."""
        if depth > DEPTH:
            raise TreeError(f"{path or 'the state'} is nested more than {DEPTH} deep")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.tree(one, f"{path}[{place}]", depth + 1) for place, one in enumerate(value)]
        found = self._tagged(value, kind, path, depth)
        if found is not None:
            self.weight += _weight_of(*next(iter(found.items())))
            return found
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TreeError(
            f"{path or 'the state'} is a {name}, which cannot be sent to other peers; pass plain values, or call "
            f"pccl.state.allow({kind.__qualname__}) in all peers"
        )

    def _tagged(self, value: Any, kind: type, path: str, depth: int) -> dict[str, Any] | None:
        name = _NAMES.get(kind, "")
        if name in _SEQUENCES:
            return {name: [self.tree(one, f"{path}[{place}]", depth + 1) for place, one in enumerate(value)]}
        if name in _MAPPINGS:
            pairs = [
                [self.tree(key, f"{path} key {key!r}", depth + 1), self.tree(one, _below(path, key), depth + 1)]
                for key, one in value.items()
            ]
            return {name: pairs}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, path)}
        if kind in (bytes, bytearray):
            return {kind.__name__: self._add(memoryview(value).cast("B"))}
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind is UUID:
            return {"uuid": value.hex}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(value).removeprefix("torch.")}
        if kind in _to_trees:
            given, to_tree = _to_trees[kind]
            return {"object": [given, self.tree(to_tree(value), path, depth + 1)]}
        if kind.__module__ == "numpy":
            return self._numpy(value, path)
        return None

    def _tensor(self, tensor: torch.Tensor, path: str) -> list[Any]:
        if hasattr(tensor, "full_tensor"):
            raise TreeError(f"{path or 'the state'} is a sharded tensor; only tensors that one peer holds whole can be sent")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise TreeError(f"{path or 'the state'} is a {tensor.layout} tensor on {tensor.device}, which cannot be sent")
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        name = str(plain.dtype).removeprefix("torch.")
        _require_shape(list(plain.shape), plain.dtype.itemsize, path or "the state")
        content = plain.reshape(-1).view(torch.uint8).numpy().data.cast("B") if plain.numel() else memoryview(b"")
        return [name, list(plain.shape), *self._add(content)]

    def _numpy(self, value: Any, path: str) -> dict[str, Any] | None:
        import numpy as np

        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _NUMPY_KINDS:
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            plain = np.ascontiguousarray(value)
            _require_shape(list(value.shape), value.dtype.itemsize, path or "the state")
            content = plain.reshape(-1).view(np.uint8).data.cast("B") if plain.size else memoryview(b"")
            return {kind: [value.dtype.str, list(value.shape), *self._add(content)]}
        return None

    def _add(self, content: memoryview) -> list[int]:
        place = [self.size, len(content)]
        self.raw.append((self.size, content))
        self.size = _aligned(self.size + len(content))
        return place


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) and path else key if isinstance(key, str) else f"{path}[{key!r}]"


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "size": torch.Size,
}
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict,
    "ordereddict": OrderedDict,
    "counter": collections.Counter,
}
_SETS = ("set", "frozenset")
_NAMES: dict[Any, str] = {kind: name for name, kind in (*_SEQUENCES.items(), *_MAPPINGS.items())}
_NAMES[collections.defaultdict] = "dict"

# ---- decode ----

_ANY = 1 << 62


def decode(content: bytes | bytearray | memoryview, *, numbers_and_text: bool = False, bounded: bool = True) -> Any:
    """Returns the tree that `encode` was given. Tensors are on the CPU, in memory of their own.

    TreeError: the bytes are no tree, or the tree has a class that `allow` was not called for in this process. With
    `numbers_and_text`, tensors, arrays, bytes and objects are refused. The tree takes at most MEMORY + 1 times the memory of its
    bytes and FREE_BYTES, unless `bounded` is False, for files that an earlier version wrote.
    """
    view = memoryview(content).cast("B")
    if len(view) < _HEAD.size or len(view) > LIMIT_BYTES:
        raise TreeError(f"{len(view)} bytes are not a state")
    (length,) = _HEAD.unpack_from(view, 0)
    if length > len(view) - _HEAD.size:
        raise TreeError("the state is truncated")
    room = FREE_BYTES + MEMORY * len(view) if bounded else _ANY
    text = view[_HEAD.size : _HEAD.size + length]
    parse_int = int if 0 < sys.get_int_max_str_digits() <= DIGITS else _integer
    try:
        room -= weigh(bytes(text), room, _LEVELS)
        tree = json.loads(str(text, "ascii"), object_pairs_hook=_tagged, parse_int=parse_int, parse_constant=_refuse_constant)
    except TreeError:
        raise
    except (ValueError, RecursionError) as error:
        raise TreeError(f"the state is malformed: {error}") from None
    refused = _LARGE_KINDS if numbers_and_text else frozenset()
    return _Reader(view[_aligned(_HEAD.size + length) :], refused, room, len(view)).value(tree, 0)


def _refuse_constant(text: str) -> Any:
    raise TreeError(f"the state is malformed: {text}")


def _integer(text: str) -> int:
    if len(text) > DIGITS:
        raise TreeError(f"the state is malformed: an integer of {len(text)} digits")
    return int(text)


def _tagged(pairs: list[tuple[str, Any]]) -> tuple[str, Any]:
    """Makes a tuple, which JSON has not, of an object: its kind and its content."""
    if len(pairs) != 1:
        raise TreeError("the state is malformed: an object has one key")
    return pairs[0]


class _Reader:
    """Makes values of what JSON has, in place, so that no list is there twice."""

    def __init__(self, raw: memoryview, refused: frozenset[str], room: int, size: int) -> None:
        self._raw = raw
        self._refused = refused
        self._room = room
        self._end = 0  # of the raw bytes that were taken
        self._comparisons = FREE_BYTES + COMPARED * size
        self._cost = 0  # comparisons with another value like that which was made last, at most

    def value(self, tree: Any, depth: int) -> Any:
        if depth > DEPTH:
            raise TreeError(f"the state is nested more than {DEPTH} deep")
        if type(tree) is list:
            return self.sequence(tree, depth)
        if type(tree) is not tuple:
            return tree
        kind, content = tree
        if kind in self._refused:
            raise TreeError(f"the state is malformed: kind {kind!r}")
        self._room -= _weight_of(kind, content)
        if self._room < 0:
            raise TreeError("the state is malformed: its values take more memory than its size permits")
        try:
            if kind in _SEQUENCES:
                return self.collection(kind, content, depth)
            if kind in _MAPPINGS:
                return _MAPPINGS[kind](self.pairs(content, depth))
            if kind == "object":
                return self.object(content, depth)
            self._cost = _COST
            if kind not in _KINDS or (type(content) is str and len(content) > _TEXT):
                raise TreeError(f"the state is malformed: kind {kind!r:.60}")
            return _KINDS[kind](self, content)
        except TreeError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError, RuntimeError) as error:
            raise TreeError(f"the state is malformed: cannot make a {kind}: {error!s:.200}") from None

    def sequence(self, content: Any, depth: int) -> list[Any]:
        if type(content) is not list:
            raise TreeError("the state is malformed: a sequence is a list")
        cost = len(content)
        for place, one in enumerate(content):
            if type(one) is list or type(one) is tuple:
                content[place] = self.value(one, depth + 1)
                cost += self._cost
        self._cost = cost
        return content

    def keys(self, keys: list[Any], cost: int) -> None:
        """TreeError: to make a set or dict of them would take too many comparisons. `cost`: of all keys, each with one other."""
        alike = require_apart(keys)
        self._cost = cost * alike
        if alike > 1:
            self._comparisons -= self._cost
        if self._comparisons < 0:
            raise TreeError("the state is malformed: too many keys have the same hash")

    def collection(self, kind: str, content: Any, depth: int) -> Any:
        items = self.sequence(content, depth)
        if kind in _SETS:
            self.keys(items, self._cost)
        made = _SEQUENCES[kind](items)
        _require_all(made, items)
        return made

    def pairs(self, content: Any, depth: int) -> dict[Any, Any]:
        if type(content) is not list or not all(type(pair) is list and len(pair) == 2 for pair in content):
            raise TreeError("the state is malformed: a dict is a list of pairs")
        cost = 0
        for pair in content:
            self.sequence(pair, depth)
            cost += self._cost
        self.keys([key for key, _ in content], cost)
        self._cost = 0  # a dict is no key
        made = dict(content)
        _require_all(made, content)
        return made

    def raw(self, offset: Any, length: Any) -> memoryview:
        whole = type(offset) is int and type(length) is int
        if not whole or offset < self._end or length < 0 or offset + length > len(self._raw):
            raise TreeError("the state is malformed: bytes beyond its end, or that it has twice")
        self._end = offset + length
        return self._raw[offset : offset + length]

    def tensor(self, content: Any) -> torch.Tensor:
        name, shape, offset, length = content
        dtype = _DTYPES[name]
        if _require_shape(shape, dtype.itemsize) != length:
            raise TreeError(f"the state is malformed: {length!r:.60} bytes for a tensor of shape {shape}")
        source = self.raw(offset, length)
        made = torch.empty(tuple(shape), dtype=dtype, device="cpu")
        if length:
            made.reshape(-1).view(torch.uint8).numpy()[:] = source
        return made

    def numpy(self, content: Any) -> Any:
        import numpy as np

        text, shape, offset, length = content
        dtype = np.dtype(text if type(text) is str and len(text) < 8 else "O")
        if dtype.kind not in _NUMPY_KINDS or dtype.hasobject or dtype.str != text:
            raise TreeError(f"the state is malformed: an array of {text!r:.60}")
        if _require_shape(shape, dtype.itemsize) != length:
            raise TreeError(f"the state is malformed: {length!r:.60} bytes for an array of shape {shape}")
        return np.frombuffer(self.raw(offset, length), dtype=dtype).reshape(shape).copy()

    def object(self, content: Any, depth: int) -> Any:
        name, tree = content
        if name not in _from_trees:
            raise TreeError(
                f"another peer sent a {name!s:.200}, which this process does not know; call pccl.state.allow() for that class"
            )
        return _from_trees[name](self.value(tree, depth + 1))


def _require_shape(shape: Any, itemsize: int, path: str = "the state") -> int:
    """Returns the bytes of a tensor. TreeError: it has too many, or could have if a dimension of it were not 0."""
    numbers = type(shape) is list and len(shape) <= DIMENSIONS and all(type(one) is int and one >= 0 for one in shape)
    if not numbers or math.prod(max(one, 1) for one in shape) * itemsize > LIMIT_BYTES:
        raise TreeError(
            f"{path} has a tensor of shape {shape!s:.100}; at most {DIMENSIONS} dimensions and {LIMIT_BYTES} bytes are sent"
        )
    return int(math.prod(shape)) * itemsize


def require_apart(keys: list[Any]) -> int:
    """Returns how many keys have the same hash, at most.

    TreeError: of many keys more than ALIKE have, so that a dict of them would take quadratic time.
    """
    hashes = sorted(map(hash, keys))
    if len(keys) > 4 * ALIKE and any(map(operator.eq, hashes, itertools.islice(hashes, ALIKE, None))):
        raise TreeError(f"the state is malformed: more than {ALIKE} keys have the same hash")
    return 1 if len(set(hashes)) == len(hashes) else max(collections.Counter(hashes).values())


def _require_all(made: Any, items: list[Any]) -> None:
    if len(made) != len(items):
        raise TreeError("the state is malformed: two equal keys")


def _float(text: Any) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise TreeError(f"the state is malformed: the number {text!r:.60}")
    return float(text)


_KINDS: dict[str, Callable[[_Reader, Any], Any]] = {
    "float": lambda reader, content: _float(content),
    "bytes": lambda reader, content: bytes(reader.raw(*content)),
    "bytearray": lambda reader, content: bytearray(reader.raw(*content)),
    "complex": lambda reader, content: complex(float(content[0]), float(content[1])),
    "uuid": lambda reader, content: UUID(hex=content),
    "dtype": lambda reader, content: _DTYPES[content],
    "device": lambda reader, content: torch.device(str(content)),
    "tensor": lambda reader, content: reader.tensor(content),
    "array": lambda reader, content: reader.numpy(content),
    "scalar": lambda reader, content: reader.numpy(content)[()],
}

_LARGE_KINDS = frozenset({"bytes", "bytearray", "tensor", "array", "scalar", "object"})
"""What stands for more bytes than its text has, or runs code of the program."""

_PLAIN, _HASHED, _DOUBLE = (64, 8), (192, 128), (384, 192)
_WEIGHTS = {"tuple": _PLAIN, "size": _PLAIN, "deque": (800, 8), "set": _HASHED, "frozenset": _HASHED, "dict": _HASHED}
_WEIGHTS |= {"counter": _DOUBLE, "ordereddict": _DOUBLE, "tensor": (1024, 0), "object": (512, 0)}
"""Bytes of memory by kind, beside those of its JSON: at most for each value, and for each of its items."""

_OTHERS = (192, 0)

_COST = 16
"""How much longer than two numbers two identities may be compared."""


def _weight_of(kind: str, content: Any) -> int:
    each, item = _WEIGHTS.get(kind, _OTHERS)
    return each + item * len(content) if item and type(content) is list else each


# ---- trees and their tensors apart: the tensors travel, or are saved, as entries with names ----


class _Place:
    """Stands for a tensor in a tree: the name of its entry."""

    def __init__(self, name: str) -> None:
        self.name = name


allow(_Place, lambda place: place.name, lambda name: _Place(str(name)), name="tensor at")

Places = dict[str, tuple[tuple[str, ...], torch.Tensor]]
"""Tensors by name, each with the keys that lead to it. The name is the keys joined with dots."""


def without_tensors(
    tree: Any, *, least_bytes: int = 0, reserved: str = "", kind_of: type[torch.Tensor] = torch.Tensor
) -> tuple[Any, Places]:
    """Returns `tree` with its tensors of `least_bytes` or more replaced by their places, and the places.

    Searches dicts, lists and tuples, for tensors of the class `kind_of`.
    No two names are the same or begin with `reserved`: the last key gets a "'" at its end where they would be. TreeError: it is
    too deep.
    """
    places: Places = {}

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > DEPTH:
            raise TreeError(f"{'.'.join(path[:3])}... is nested more than {DEPTH} deep")
        kind = type(value)
        if kind in (dict, OrderedDict):
            return kind((key, walk(one, (*path, str(key)))) for key, one in value.items())
        if kind in (list, tuple):
            return kind(walk(one, (*path, str(place))) for place, one in enumerate(value))
        if not isinstance(value, kind_of) or value.numel() * value.element_size() < least_bytes:
            return value
        name = ".".join(path)
        while name in places or name.split(".")[0] == reserved:
            path = (name + "'",)
            name = path[0]
        places[name] = path, value
        return _Place(name)

    return walk(tree, ()), places


def with_tensors(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns the tree of which `without_tensors` made `tree`. KeyError: a tensor is missing."""
    kind = type(tree)
    if kind in (dict, OrderedDict):
        return kind((key, with_tensors(one, tensors)) for key, one in tree.items())
    if kind in (list, tuple):
        return kind(with_tensors(one, tensors) for one in tree)
    return tensors[tree.name] if kind is _Place else tree


publish(globals())
