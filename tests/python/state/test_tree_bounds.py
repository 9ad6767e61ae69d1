"""A small message costs its reader little: memory in proportion to its bytes, and no quadratic work."""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import worst_trees
from hypothesis import given, settings
from hypothesis import strategies as st
from worst_trees import KEYS, TREES, message

from pccl.state import TreeError, decode, encode
from pccl.state._local.tree import ALIKE, FREE_BYTES

SIZE = 1 << 17


@contextlib.contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """Traces memory; the call returns the peak so far, in bytes."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def read(content: bytes) -> Any:
    """What `decode` returns, or the error."""
    try:
        return decode(content)
    except TreeError as error:
        return error


def steps(call: Callable[[], object]) -> int:
    """How many functions are called meanwhile."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


decode(encode([torch.ones(1), np.ones(1)]))  # imports


@pytest.mark.parametrize("name", TREES)
def test_memory_and_work_of_a_message_are_bounded_by_its_size(name):
    content = TREES[name](SIZE)
    assert len(content) < 2 * SIZE
    with memory() as peak:
        read(content)
        assert peak() <= 8 * len(content) + 2 * FREE_BYTES
    assert steps(lambda: read(content)) <= len(content)


fragments = st.recursive(
    st.sampled_from(
        ['"a"', "1", "300", "0.5", "null", '"\\u00e9"', '{"float":"nan"}', '{"bytes":[0,9]}', f'{{"uuid":"{7:032x}"}}']
    ),
    lambda inner: st.builds(
        lambda around, one, count: around % ",".join([one] * count),
        st.sampled_from(
            [
                "[%s]",
                '{"tuple":[%s]}',
                '{"set":[%s]}',
                '{"dict":[[%s]]}',
                '{"deque":[%s]}',
                '{"a":%s}',
                '{"tensor":["int8",[%s],0,0]}',
            ]
        ),
        inner,
        st.integers(0, 60),
    ).filter(lambda text: len(text) < SIZE),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(fragments, st.integers(1, 2000), st.integers(0, SIZE))
def test_any_message_takes_memory_in_proportion_to_its_size(fragment, count, padding):
    count = min(count, SIZE // (len(fragment) + 1) + 1)
    content = message("[" + ",".join([fragment] * count) + "]") + bytes(padding)
    with memory() as peak:
        read(content)
        assert peak() <= 8 * len(content) + 2 * FREE_BYTES


HONEST: list[Any] = [
    list(range(100_000)),
    {f"layer.{i}.weight": {"step": i, "lr": 0.5 * i, "betas": (0.9, 0.999)} for i in range(3000)},
    collections.OrderedDict((i, collections.Counter({i: 1})) for i in range(2000)),
    {uuid4() for _ in range(3000)} | {0.5 * i for i in range(1000)},
    [random.Random(1).getstate(), b"", bytearray(b"a"), '[{,:"\\' * 20_000, "é\n😀" * 3000],
    {2**i for i in range(900)},
    [torch.arange(i) for i in range(300)] + [np.arange(i) for i in range(300)] + [np.float32(i) for i in range(300)],
]


@pytest.mark.parametrize("place", range(len(HONEST)))
def test_what_encode_makes_is_accepted_however_many_values_it_has(place):
    tree = HONEST[place]
    content = encode(tree)
    with memory() as peak:
        told = decode(content)
        assert peak() <= 8 * len(content) + 2 * FREE_BYTES
    if isinstance(tree, list) and len(tree) == 900:
        assert all(type(a) is type(b) and np.array_equal(a, b) for a, b in zip(told, tree, strict=True))
    else:
        assert told == tree


def test_bytes_that_two_values_have_are_refused():
    tree = [{"bytes": [0, 8]}, {"tensor": ["uint8", [8], 64, 8]}]
    assert decode(message(tree, bytes(72)))[0] == bytes(8)
    for second in ([0, 8], [4, 8], [7, 1]):
        with pytest.raises(TreeError, match="twice"):
            decode(message([{"bytes": [0, 8]}, {"bytes": second}], bytes(72)))
    with pytest.raises(TreeError, match="twice"):
        decode(message([{"bytes": [64, 8]}, {"array": ["|u1", [8], 0, 8]}], bytes(72)))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("around", ["dict", "ordereddict", "counter", "set", "frozenset"])
def test_many_keys_of_one_hash_are_refused(kind, around):
    is_set = around.endswith("set")
    items = [KEYS[kind](i) if is_set else [KEYS[kind](i), 1] for i in range(300)]
    with pytest.raises(TreeError, match="same hash"):
        decode(message({around: items}, size=1 << 18))
    assert len(decode(message({around: items[:ALIKE]}, size=1 << 18))) == ALIKE


@pytest.mark.parametrize("inner", ["tuple", "frozenset"])
@pytest.mark.parametrize("outer", ["dict", "set"])
@pytest.mark.parametrize(("levels", "width"), [(3, 16), (2, 60), (7, 3)])
def test_sets_of_one_hash_in_sets_of_one_hash_are_refused(inner, outer, levels, width):
    """To tell two of them apart, each key of the one is compared with all keys of the other."""
    fresh = itertools.count()

    def nested(levels: int, width: int) -> Any:
        if levels == 0:
            return next(fresh) * (2**61 - 1) + 5
        made = {"frozenset": [nested(levels - 1, width) for _ in range(width)]}
        return {"tuple": [made]} if inner == "tuple" else made

    def around(levels: int, width: int) -> Any:
        keys = [nested(levels, width) for _ in range(width)]
        return message({outer: [[key, 0] for key in keys] if outer == "dict" else keys}, size=1 << 20)

    assert len(decode(around(2, 4))) == 4
    with pytest.raises(TreeError, match="same hash"):
        decode(around(levels, width))


def test_keys_of_one_hash_that_programs_have_are_accepted():
    """-1 and -2 have the same hash."""
    places = list(itertools.product((-2, -1, 0, 1), repeat=3))
    tree: Any = {
        place: [tuple(range(1000)), {-1: frozenset(places), -2: frozenset(map(frozenset, places[:8]))}] for place in places
    }
    for _ in range(20):
        tree = {-1: tree, -2: (0,)}
    assert decode(encode(tree)) == tree


@pytest.mark.parametrize("kind", ["device", "dtype", "uuid", "float"])
def test_a_long_text_takes_no_memory_of_errors(kind):
    content = message({kind: "cuda:" + "9" * SIZE})
    with memory() as peak:
        assert isinstance(read(content), TreeError)
        assert peak() < 4 * len(content)


@pytest.mark.parametrize(
    "text", ['{"dict":[[1,2],[1,3]]}', '{"dict":[[1,2],[1.0,3]]}', '{"set":[1,true]}', '{"tuple":[],"tuple":[1]}']
)
def test_keys_that_are_there_twice_are_refused(text):
    with pytest.raises(TreeError, match=r"two equal keys|one key"):
        decode(message(text))


@pytest.mark.parametrize(
    "shape", [[0, 1 << 62], [0, 1 << 70], [1 << 62] * 4, [0] * 65, [True], ["1"], "1", [0, 1 << 35], [-1], [1.0], 1, None]
)
@pytest.mark.parametrize("kind", ["tensor", "array", "scalar"])
def test_shapes_that_no_tensor_has_are_refused(kind, shape):
    with pytest.raises(TreeError):
        decode(message({kind: ["uint8" if kind == "tensor" else "|u1", shape, 0, 1 if shape == [True] else 0]}, bytes(64)))
    with pytest.raises(TreeError, match="dimensions"):
        encode(torch.empty(0, 1 << 40))


def test_a_text_for_an_error_is_short():
    for tree in ({"x" * 9000: 1}, {"object": ["x" * 9000, 1]}, {"float": "x" * 9000}, {"array": ["x" * 9000, [1], 0, 1]}):
        with pytest.raises(TreeError) as caught:
            decode(message(tree))
        assert len(str(caught.value)) < 500


def test_integers_have_a_limit_whatever_python_permits():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(TreeError, match="digits"):
            decode(message("1" * 5000))
        assert decode(message("1" * 4000)) == int("1" * 4000)
    finally:
        sys.set_int_max_str_digits(before)
    with pytest.raises(TreeError, match="cannot be sent"):
        encode(10**5000)


def test_deep_texts_are_refused_whatever_recursion_python_permits():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)  # with which the parser of JSON would overflow the stack
    try:
        for text in ("[" * 50_000 + "]" * 50_000, '{"tuple":[' * 20_000 + "]}" * 20_000):
            with pytest.raises(TreeError, match="deep"):
                decode(message(text, size=1 << 23))
    finally:
        sys.setrecursionlimit(before)


def test_changed_messages_take_no_more_memory():
    """A mutation loop with a fixed seed: what it finds can be run again."""
    rng = random.Random(4)
    seeds = [encode([*HONEST[1].items()][:40]), encode(HONEST[6][::29]), encode(HONEST[4][:1])]
    words = [b"[", b"]", b"{", b'"', b"[],", b'{"set":[', b'{"bytes":[0,64]},', b"9" * 30, b"\\", b"-", b"e9", b"NaN", b"\xff"]
    for _ in range(300):
        content = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at, word = rng.randrange(8, len(content)), rng.choice(words) * rng.randint(1, 40)
            content[at : at + rng.choice((0, len(word)))] = word
        if rng.random() < 0.7:
            content[:8] = min(len(content) - 8, rng.randrange(1, 2 * len(content))).to_bytes(8, "little")
        with memory() as peak:
            read(bytes(content))
            assert peak() <= 8 * len(content) + 2 * FREE_BYTES, bytes(content)


def test_files_of_earlier_versions_are_read():
    short = message("[" + ",".join(["[300]"] * 5000) + "]")
    with pytest.raises(TreeError, match="memory"):
        decode(short)
    assert decode(short, bounded=False) == [[300]] * 5000
    assert worst_trees.message([1]) == bytes(encode([1]))
