"""Boxes against sets of indices, and plans of moves against what is least."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pccl.state._snapshots.boxes import (
    Box,
    ShardMap,
    Slice,
    first_holders,
    image_offsets,
    plan_moves,
    replicas,
    require_same_tensors,
    same_images,
    shards_from,
    uncovered,
)

SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def boxes(draw, shape):
    begins = [draw(st.integers(0, size - 1)) for size in shape]
    ends = [draw(st.integers(begin + 1, size)) for begin, size in zip(begins, shape, strict=True)]
    return Box(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))


def cells(box: Box) -> set[tuple[int, ...]]:
    ranges = [range(begin, begin + size) for begin, size in zip(box.offset, box.shape, strict=True)]
    return set(itertools.product(*ranges))


@given(st.data())
def test_meet_and_without_are_those_of_sets(data):
    shape = data.draw(SHAPES)
    one, other = data.draw(boxes(shape)), data.draw(boxes(shape))
    met = one.meet(other)
    assert (cells(met) if met else set()) == cells(one) & cells(other)
    if met:
        rest = one.without(met)
        assert sum(box.numel for box in rest) == one.numel - met.numel
        assert set().union(*map(cells, rest)) == cells(one) - cells(met)
        assert len(rest) <= 2 * len(shape)


@given(st.data())
def test_uncovered_is_the_difference(data):
    shape = data.draw(SHAPES)
    whole = Box((0,) * len(shape), shape)
    parts = data.draw(st.lists(boxes(shape), max_size=4))
    left = uncovered(whole, parts)
    assert set().union(*map(cells, left)) == cells(whole) - set().union(*map(cells, parts))
    assert sum(box.numel for box in left) == len(set().union(*map(cells, left)))


@st.composite
def divided(draw, shape, members):
    """Each member's box of a tensor, all together the whole: rows in uneven shares, some of them empty, or replicas."""
    whole = Box((0,) * len(shape), shape)
    if not shape or draw(st.booleans()):
        return [whole] * members
    dim = draw(st.integers(0, len(shape) - 1))
    cuts = sorted(draw(st.lists(st.integers(0, shape[dim]), min_size=members - 1, max_size=members - 1)))
    found = []
    for begin, end in itertools.pairwise([0, *cuts, shape[dim]]):
        offset = tuple(begin if at == dim else 0 for at in range(len(shape)))
        found.append(Box(offset, tuple(end - begin if at == dim else size for at, size in enumerate(shape))))
    return found


@st.composite
def states(draw):
    """Shapes, and the maps of the members before and after."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    before, after = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    maps = []
    for members in (before, after):
        by_tensor = [draw(divided(shape, members)) for shape in shapes]
        maps.append(
            [
                {
                    f"t{number}": Slice("float32", 4, shape, parts[member])
                    for number, (shape, parts) in enumerate(zip(shapes, by_tensor, strict=True))
                }
                for member in range(members)
            ]
        )
    return maps


@given(states())
def test_moves_bring_all_and_nothing_twice(maps):
    before, after = maps
    members = max(len(before), len(after))
    sources = [[before[member]] if member < len(before) else [] for member in range(members)]
    targets = [after[member] if member < len(after) else {} for member in range(members)]
    moves = plan_moves(sources, targets)
    least = 0
    for target, shards in enumerate(targets):
        for name, one in shards.items():
            come = [move for move in moves if move.target == target and move.name == name]
            assert sum(move.box.numel for move in come) == one.box.numel
            assert set().union(*(cells(move.box) for move in come)) == (cells(one.box) if one.box.numel else set())
            own = cells(sources[target][0][name].box) if sources[target] else set()
            least += 4 * len(cells(one.box) - own) if one.box.numel else 0
    for move in moves:
        assert cells(move.box) <= cells(sources[move.source][move.image][move.name].box)
    assert sum(move.box.numel * before[0][move.name].itemsize for move in moves if move.source != move.target) == least


def test_the_member_at_last_sends_only_what_nobody_else_has():
    whole = (8,)
    parts: list[ShardMap] = [{"t": Slice("float32", 4, whole, Box((begin,), (4,)))} for begin in (0, 4)]
    sources = [[parts[0]], [], [parts[0], parts[1]]]
    moves = plan_moves(sources, [parts[0], {"t": Slice("float32", 4, whole, Box((0,), whole))}], last=2)
    assert [(move.source, move.target, move.box.offset) for move in moves] == [(0, 0, (0,)), (0, 1, (0,)), (2, 1, (4,))]


def test_a_tensor_that_nobody_has_is_named():
    part = {"weight": Slice("float32", 4, (4,), Box((0,), (2,)))}
    with pytest.raises(LookupError, match="weight"):
        plan_moves([[part]], [{"weight": Slice("float32", 4, (4,), Box((0,), (4,)))}])


def test_equal_boxes_are_counted_at_their_first_member():
    halves: list[ShardMap] = [{"t": Slice("float32", 4, (4,), Box((begin,), (2,)))} for begin in (0, 2, 0, 2)]
    assert first_holders(halves) == [["t"], ["t"], [], []]
    with pytest.raises(ValueError, match="t: members have parts of it that overlap"):
        first_holders([{"t": Slice("float32", 4, (4,), Box((begin,), (3,)))} for begin in (0, 1)])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({}, "weight is in the state of member 0, and not in that of member 1"),
        ({"weight": Slice("float32", 4, (5,), Box((0,), (5,)))}, r"weight is float32 of shape \(4,\) at member 0"),
        ({"weight": Slice("int32", 4, (4,), Box((0,), (4,)))}, "int32 of shape .* at member 1"),
    ],
)
def test_other_tensors_are_refused_by_name(other, text):
    with pytest.raises(ValueError, match=text):
        require_same_tensors([{"weight": Slice("float32", 4, (4,), Box((0,), (4,)))}, other])


def test_slices_begin_at_multiples_of_64_bytes():
    shards: ShardMap = {
        "b": Slice("uint8", 1, (100,), Box((0,), (70,))),
        "a": Slice("float64", 8, (3,), Box((0,), (3,))),
        "c": Slice("float32", 4, (), Box((), ())),
    }
    assert image_offsets(shards) == ({"a": 0, "b": 64, "c": 192}, 256)
    assert math.prod(()) == 1


GOOD = ["float32", 4, [6, 2], [1, 0], [3, 2]]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (["Tensor", *GOOD[1:]], "'Tensor' is not a data type"),
        (["__name__", *GOOD[1:]], "is not a data type"),
        ([7, *GOOD[1:]], "7 is not a text"),
        (["float32", 8, *GOOD[2:]], "elements of 8 bytes"),
        (["float32", 4, [6], [1, 0], [3, 2]], "in 1, 2 and 2 dimensions"),
        (["float32", 4, [6, 2], [4, 0], [3, 2]], "is not inside"),
        (["float32", 4, [6, 2], [-1, 0], [3, 2]], "-1 is not a number"),
        (["float32", 4, [6, 2], [True, 0], [3, 2]], "True is not a number"),
        (["float32", 4, [6, 2], [0, 0], [3.0, 2]], "3.0 is not a number"),
        (["float32", 4, [1 << 41], [0], [1 << 41]], "it has 8796093022208 bytes"),
        (["float32", 4, [1 << 33, 2], [0, 0], [1 << 33, 1]], "ranges of memory"),
        (["float32", 4, [1] * 65, [0] * 65, [1] * 65], "a list is not a list of at most 64"),
        (["float32", 4, [6, 2]], "is not a slice"),
        (None, "None is not a slice"),
    ],
)
def test_shard_maps_of_others_are_checked(part, text):
    assert shards_from({"w": GOOD}) == {"w": Slice("float32", 4, (6, 2), Box((1, 0), (3, 2)))}
    with pytest.raises(ValueError, match=text):
        shards_from({"w": part})


def test_replicas_are_told_by_the_members_that_have_them():
    whole, half = Slice("float32", 4, (4,), Box((0,), (4,))), Slice("float32", 4, (4,), Box((0,), (2,)))
    none = Slice("float32", 4, (4,), Box((0,), (0,)))
    maps = [{"a": whole, "b": half, "c": none}, {"a": whole, "b": none, "c": none}, {"a": whole, "b": half, "c": whole}]
    assert replicas(maps) == {(0, 1, 2): ["a"], (0, 2): ["b"]}


def test_members_that_have_all_that_another_one_has():
    def part(begin: int, size: int) -> Slice:
        return Slice("float32", 4, (4,), Box((begin,), (size,)))

    maps = [{"a": part(0, 2)}, {"a": part(2, 2)}, {"a": part(0, 2), "b": part(0, 4)}, {"a": part(4, 0), "b": part(0, 0)}]
    assert same_images(maps) == [(2,), (), (), (0, 1, 2)]
