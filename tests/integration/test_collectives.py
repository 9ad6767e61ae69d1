"""Every collective by name, among real processes: results, sub-groups, sizes, types, and mistakes, of which all are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from collective_members import DIVIDED, KINDS, ROOTED, Wish, connected, on_all
from performers import PATIENCE, Performer

from pccl import DataType, ReduceOp

SIZE = 4
KIB = 1024


@pytest.fixture(scope="module")
def four() -> Iterator[list[Performer]]:
    with connected(SIZE) as members:
        for member in members:
            member.tell("load_torch")
        for member in members:
            member.answer(4 * PATIENCE)  # all of them at once, on a busy machine
        yield members


def made(members: list[Performer], wish: Wish) -> None:
    """It is made rightly, by all who take part."""
    taking_part = [members[rank] for rank in wish.members or range(len(members))]
    expected = 2 if wish.kind == "send" else len(taking_part)
    assert on_all(taking_part, "make", wish) == [expected] * len(taking_part)


@pytest.mark.parametrize("torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("size", [0, 4, 20_004, 4 * KIB, KIB * KIB, 20 * KIB * KIB])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes(four, kind, size, torch):
    """The bytes of a tensor, or of a part."""
    if torch:
        pytest.importorskip("torch")
    parts = SIZE if kind in DIVIDED and size > KIB * KIB else 1
    made(four, Wish(kind, size // 4 // parts, torch=torch, root=size % 3, launched=torch))


@pytest.mark.parametrize("dtype", DataType)
@pytest.mark.parametrize("kind", KINDS)
def test_types(four, kind, dtype):
    if dtype is DataType.BFLOAT16:
        pytest.importorskip("ml_dtypes")
    for count in (333, 150_001):
        made(four, Wish(kind, count, dtype, root=1))


@pytest.mark.parametrize("op", [op for op in ReduceOp if op is not ReduceOp.AVG])
@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter"])
def test_operations(four, kind, op):
    for dtype in (DataType.INT64, DataType.UINT8, DataType.BOOL):
        for count in (77, 100_003):
            made(four, Wish(kind, count, dtype, op=op, root=2))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("members", [(1,), (0, 2), (3, 1, 2)], ids=str)
def test_all_reduce_of_a_group(four, members, in_place):
    for count in (0, 9, 300_000):
        made(four, Wish("all_reduce", count, members=members, in_place=in_place))


@pytest.mark.parametrize("members", [(1,), (0, 2), (3, 1), (2, 0, 3), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sub_groups(four, kind, members):
    if kind == "send" and len(members) == 1:
        return
    for count in (9, 120_000):
        made(four, Wish(kind, count, members=members, root=len(members) - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_two_groups_at_once(four, kind):
    for count in (9, 120_000):
        for one, other in (((0, 1), (2, 3)), ((3, 0), (1, 2))):
            for members in (one, other):
                for rank in members:
                    four[rank].tell("make", Wish(kind, count, members=members))
            assert [member.answer() for member in four] == [2] * SIZE


@pytest.mark.parametrize("lists", [False, True], ids=["counts", "lists"])
@pytest.mark.parametrize("count", [0, 1, 50, 100_001])
@pytest.mark.parametrize("kind", DIVIDED)
def test_parts_of_different_sizes(four, kind, count, lists):
    made(four, Wish(kind, count, unequal=True, lists=lists, root=3))
    made(four, Wish(kind, count, unequal=True, lists=lists, root=1, members=(3, 0, 2)))


@pytest.mark.parametrize("kind", DIVIDED)
def test_lists_of_equal_parts(four, kind):
    for count in (1, 100_001):
        made(four, Wish(kind, count, lists=True))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("count", [0, 5, 300_000])
def test_all_gather_in_place(four, count, unequal):
    made(four, Wish("all_gather", count, in_place=True, unequal=unequal))


@pytest.mark.parametrize("count", [0, 5, 3_000_000])
def test_reduce_in_place(four, count):
    made(four, Wish("reduce", count, in_place=True, root=3))


def test_all_kinds_in_flight_at_once(four):
    wishes = [Wish(kind, count, root=at % SIZE) for at, kind in enumerate(KINDS) for count in (0, 3, 1000, 90_001)]
    assert all(on_all(four, "make_all", wishes * 2))


@pytest.mark.parametrize("count", [100, 200_000])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "send"])
def test_a_call_that_gave_up_waiting_is_repeated(four, kind, count):
    wish = Wish(kind, count, lists=kind in DIVIDED)
    for member in four[1:]:
        member.tell("make_bit_by_bit", wish)
    assert four[0].ask("make", wish) == SIZE
    for member in four[1:]:
        member.answer()
    made(four, wish)


MISTAKES = [
    ("kind", Wish("broadcast"), Wish("barrier"), "broadcast", "barrier"),
    *((f"{kind} count", Wish(kind, 5), Wish(kind, 6), "count", "") for kind in KINDS if kind not in ("barrier", "send")),
    *((f"{kind} dtype", Wish(kind), Wish(kind, dtype=DataType.INT32), "float32", "int32") for kind in KINDS[:-2]),
    *((f"{kind} root", Wish(kind), Wish(kind, root=1), "", "") for kind in ROOTED),
    ("reduce op", Wish("reduce"), Wish("reduce", op=ReduceOp.MAX), "sum", "max"),
    ("reduce_scatter op", Wish("reduce_scatter"), Wish("reduce_scatter", op=ReduceOp.MIN), "sum", "min"),
    ("gather counts", Wish("gather", 5, unequal=True), Wish("gather", 6, unequal=True), "count", ""),
    ("all_gather counts", Wish("all_gather", 5), Wish("all_gather", 5, unequal=True), "count", ""),
    ("all_to_all counts", Wish("all_to_all", 5), Wish("all_to_all", 5, unequal=True), "", ""),
    ("large", Wish("broadcast", 5_000_000), Wish("broadcast", 4_999_999), "4999999", "5000000"),
]


@pytest.mark.parametrize(("most", "one", "mine", "theirs"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
@pytest.mark.parametrize("odd", [0, 2])
def test_mistakes_are_told_to_all(four, most, one, mine, theirs, odd):
    for rank, member in enumerate(four):
        member.tell("fail", one if rank == odd else most)
    for member in four:
        kind, text = member.answer()
        assert kind == "UsageError", (kind, text)
        assert mine in text
        assert theirs in text
    made(four, most)


def test_a_send_of_another_size_than_is_received(four):
    four[0].tell("fail", Wish("send", 5, members=(0, 1)))
    four[1].tell("fail", Wish("send", 6, members=(0, 1)))
    for member in four[:2]:
        kind, text = member.answer()
        assert kind == "UsageError"
        assert "5" in text
        assert "6" in text
    made(four, Wish("send", 5))
