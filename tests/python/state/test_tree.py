"""Plain trees: what goes in comes out, what cannot go in is refused by name, and no bytes run code or crash."""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pccl.state
from pccl.state import TreeError, decode, encode

PACKAGE = Path(pccl.__file__).parent

plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(allow_nan=False), st.uuids()
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text()))
trees = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict),
        st.sets(st.integers(), max_size=4),
        st.frozensets(st.text(), max_size=4),
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


@given(trees)
def test_a_tree_comes_out_as_it_went_in(tree):
    assert same(decode(encode(tree)), tree)


DTYPES = [
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)])
def test_a_tensor_keeps_its_bits(dtype, shape):
    tensor = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8).view(dtype).reshape(shape)
    (other,) = decode(encode([tensor]))
    assert (other.dtype, other.shape) == (dtype, tensor.shape)
    assert other.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))
    other.reshape(-1)  # writable, in memory of its own


def test_views_parameters_and_conjugates_are_sent_as_values():
    grid = torch.arange(12.0).reshape(3, 4)
    told = decode(encode({"t": grid.T, "s": grid[::2, 1], "p": torch.nn.Parameter(grid), "c": torch.tensor([1 + 2j]).conj()}))
    assert told["t"].equal(grid.T)
    assert told["s"].equal(grid[::2, 1])
    assert told["p"].equal(grid)
    assert told["c"].tolist() == [1 - 2j]


@pytest.mark.parametrize("value", [np.arange(6).reshape(2, 3)[:, ::2], np.float32(1.5), np.zeros((0, 2)), np.bool_(True)])
def test_arrays_and_numpy_scalars(value):
    other = decode(encode(value))
    assert type(other) is type(value)
    assert np.array_equal(other, value)
    assert other.dtype == value.dtype


def test_other_kinds_of_torch_and_collections():
    tree = [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), collections.Counter({30: 2}), collections.deque([1, "a"])]
    assert decode(encode(tree)) == tree
    assert decode(encode(collections.defaultdict(list, {1: [2]}))) == {1: [2]}
    assert decode(encode(UUID(int=5))) == UUID(int=5)


class Writes:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_is_refused_and_runs_nothing(tmp_path):
    target = str(tmp_path / "made")
    saved = io.BytesIO()
    torch.save({"x": Writes(target)}, saved)
    for content in (pickle.dumps(Writes(target)), saved.getvalue()):
        with pytest.raises(TreeError):
            decode(content)
    with pytest.raises(TreeError, match=r"a\.b\[1\] is a .*Writes.*pccl\.state\.allow\(Writes\)"):
        encode({"a": {"b": [0, Writes(target)]}})
    with pytest.raises(TreeError, match="cannot be sent"):
        encode({"a": lambda: 0})
    assert not os.path.exists(target)


@dataclass
class Point:
    x: int
    y: list[float]


def test_a_class_that_is_allowed(monkeypatch):
    readers: dict[str, object] = {}
    monkeypatch.setattr("pccl.state._local.tree._to_trees", {})
    monkeypatch.setattr("pccl.state._local.tree._from_trees", readers)
    with pytest.raises(TreeError):
        encode(Point(1, [2.0]))
    pccl.state.allow(Point)
    content = encode([Point(1, [2.0])])
    assert decode(content) == [Point(1, [2.0])]
    readers.clear()
    with pytest.raises(TreeError, match=r"another peer sent a .*Point"):
        decode(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_tree_or_a_tree_error(content):
    with contextlib.suppress(TreeError):
        decode(content)


@given(trees, st.data())
def test_a_changed_byte_is_a_tree_or_a_tree_error(tree, data):
    content = encode({"tree": tree, "tensor": torch.arange(3)})
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(TreeError):
        decode(content)


@pytest.mark.parametrize(
    "text",
    [
        '{"tensor":["float32",[1000000000000],0,4]}', '{"tensor":["float32",[-1,-1],0,4]}', '{"tensor":["object",[1],0,8]}',
        '{"array":["|O",[1],0,8]}', '{"array":["<f4",[2],0,4]}', '{"set":[[]]}', '{"dict":[[[],1]]}', '{"dict":3}',
        '{"bytes":[0,90]}',
        '{"bytes":[-4,2]}', '{"object":["builtins.eval","1"]}', '{"float":"1_0"}', '{"a":1,"b":2}', "{}", "NaN", "[" * 5000,
        '{"size":["a"]}', '{"uuid":"zz"}', '{"counter":[[1]]}', '{"list":[]}',
    ],
)  # fmt: skip
def test_malformed_text_is_a_tree_error(text):
    with pytest.raises(TreeError):
        decode(len(text).to_bytes(8, "little") + text.encode() + bytes(64))


def test_a_tree_that_is_too_deep_is_refused():
    tree: list = []
    for _ in range(200):
        tree = [tree]
    with pytest.raises(TreeError, match="nested"):
        encode(tree)


UNPICKLES = re.compile(
    r"\b(?:pickle|cPickle|_pickle|cloudpickle|dill|joblib|marshal|shelve)\b(?!ab)|torch\.load\(|np\.load\(|numpy\.load\(|yaml\.load\("
    r"|allow_pickle|weights_only|jsonpickle|(?<![\w.])(?:eval|exec)\(|recv_object|multiprocessing"
)


def test_nothing_in_the_package_unpickles():
    """What may stay: words in texts that say so, and the pipes of this machine's own processes."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            if UNPICKLES.search(code) and not code.strip().startswith(('"""', "Nothing here")) and "without pickle" not in code:
                found.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert found == []
