"""Which part of each tensor a member has, and the moves that turn one division of tensors among members into another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

ALIGN = 64
"""Bytes. Each slice of an image begins at a multiple."""

IMAGE_BYTES_MAX = 1 << 42
"""Of one member's part of a state."""

RUNS_MAX = 1 << 24
"""Ranges of memory that a slice consists of in its whole tensor."""

DIMENSIONS_MAX = 64

DTYPES = {
    name: one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype) and not (name := str(one).removeprefix("torch.")).startswith("q")  # quantized
}
"""Types of tensors that can be kept, by name."""


class Box(NamedTuple):
    """A part of a tensor: the indices from `offset` on, `shape` of them in each dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def meet(self, other: Box) -> Box | None:
        """What both have; None: nothing."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True))
        shape = tuple(end - begin for begin, end in zip(offset, ends, strict=True))
        return Box(offset, shape) if all(size > 0 for size in shape) else None

    def without(self, part: Box) -> list[Box]:
        """What is left when `part`, which lies inside, is taken away: at most two boxes for each dimension."""
        left = []
        offset, shape = list(self.offset), list(self.shape)
        for dim, (begin, size) in enumerate(zip(part.offset, part.shape, strict=True)):
            end = offset[dim] + shape[dim]
            if begin > offset[dim]:
                left.append(Box(tuple(offset), (*shape[:dim], begin - offset[dim], *shape[dim + 1 :])))
            if begin + size < end:
                behind = (*offset[:dim], begin + size, *offset[dim + 1 :])
                left.append(Box(behind, (*shape[:dim], end - begin - size, *shape[dim + 1 :])))
            offset[dim], shape[dim] = begin, size
        return left

    def inside(self, outer: Box) -> tuple[slice, ...]:
        """Where this box lies in a tensor that holds `outer`."""
        return tuple(slice(a - b, a - b + n) for a, b, n in zip(self.offset, outer.offset, self.shape, strict=True))


class Slice(NamedTuple):
    """A member's part of one tensor."""

    dtype: str
    """The name of torch's data type: "float32"."""
    itemsize: int
    whole: tuple[int, ...]
    """The shape of the whole tensor."""
    box: Box

    @property
    def nbytes(self) -> int:
        return self.box.numel * self.itemsize


ShardMap = dict[str, Slice]
"""A member's part of each tensor of a state, by name."""


def own_name(part: str, name: str) -> str:
    """The name in shard maps of a tensor that belongs to one member only: `part` is what the member's tensors are called."""
    return f"{part}\0{name}"


def part_of(name: str) -> tuple[str, str] | None:
    """What `own_name` was given; None: parts of this tensor are at several members."""
    part, mark, rest = name.partition("\0")
    return (part, rest) if mark else None


def shards_tree(shards: ShardMap) -> dict[str, Any]:
    """A shard map as a tree, for other members."""
    return {name: [*part[:3], *part.box] for name, part in sorted(shards.items())}


def whole_number(value: Any, most: int, least: int = 0) -> int:
    """A number that another process has told. ValueError: it is none from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_short(value)} is not a number from {least} to {most}")
    return value


def text_of(value: Any) -> str:
    """A text that another process has told. ValueError: it is none."""
    if type(value) is not str:
        raise ValueError(f"{_short(value)} is not a text")
    value.encode()  # a lone surrogate is no text
    return value


def list_of(value: Any, most: int) -> list[Any]:
    """A list or tuple that another process has told. ValueError: it is none, or longer than `most`."""
    if type(value) not in (list, tuple) or len(value) > most:
        raise ValueError(f"{_short(value)} is not a list of at most {most}")
    return list(value)


def _short(value: Any) -> str:
    return f"{value!r:.60}" if type(value) in (bool, int, float, str, type(None)) else f"a {type(value).__name__}"


def shards_from(tree: Any) -> ShardMap:
    """From what `shards_tree` gave. ValueError: it is malformed, or larger than any state is."""
    if type(tree) is not dict:
        raise ValueError(f"{_short(tree)} is not a shard map")
    found: ShardMap = {}
    for name, part in tree.items():
        try:
            found[text_of(name)] = _slice_from(part)
        except ValueError as error:
            raise ValueError(f"tensor {_short(name)}: {error}") from None
    if image_offsets(found)[1] > IMAGE_BYTES_MAX:
        raise ValueError(f"it has {image_offsets(found)[1]} bytes, and a member keeps at most {IMAGE_BYTES_MAX}")
    return found


def _slice_from(part: Any) -> Slice:
    if type(part) not in (list, tuple) or len(part) != 5:
        raise ValueError(f"{_short(part)} is not a slice")
    dtype = DTYPES.get(text_of(part[0]))
    if dtype is None:
        raise ValueError(f"{_short(part[0])} is not a data type of torch")
    whole, offset, shape = (
        tuple(whole_number(one, IMAGE_BYTES_MAX) for one in list_of(numbers, DIMENSIONS_MAX)) for numbers in part[2:]
    )
    box = Box(offset, shape)
    if part[1] != dtype.itemsize or not len(whole) == len(offset) == len(shape):
        raise ValueError(f"elements of {_short(part[1])} bytes in {len(whole)}, {len(offset)} and {len(shape)} dimensions")
    if any(begin + size > end for begin, size, end in zip(offset, shape, whole, strict=True)):
        raise ValueError(f"the part {shape} at {offset} is not inside the shape {whole}")
    if run_count(whole, box) > RUNS_MAX:
        raise ValueError(f"the part {shape} of the shape {whole} consists of more than {RUNS_MAX} ranges of memory")
    return Slice(part[0], dtype.itemsize, whole, box)


def split_of(whole: tuple[int, ...], box: Box) -> int:
    """The dimensions from this one on lie one behind the other in the memory of the whole tensor."""
    split = len(whole)
    while split > 0 and box.shape[split - 1] == whole[split - 1]:
        split -= 1
    return max(0, split - 1)


def run_count(whole: tuple[int, ...], box: Box) -> int:
    """Of how many ranges of the memory of the whole tensor a box consists."""
    return math.prod(box.shape[: split_of(whole, box)]) if box.numel else 0


def image_offsets(shards: ShardMap) -> tuple[dict[str, int], int]:
    """Where each slice begins in the member's image, in bytes, and the size of the image."""
    offsets, end = {}, 0
    for name in sorted(shards):
        offsets[name] = end
        end += -(-shards[name].nbytes // ALIGN) * ALIGN
    return offsets, end


def require_same_tensors(maps: Sequence[ShardMap]) -> None:
    """ValueError: the members have other tensors, shapes or data types, or two of them the same tensor as their own."""
    owners: dict[str, int] = {}
    for place, shards in enumerate(maps):
        for part in {own[0] for name in shards if (own := part_of(name))}:
            if part in owners:
                raise ValueError(f"members {owners[part]} and {place} both call their part {part!r}; give each another name")
            owners[part] = place
    maps = [{name: one for name, one in shards.items() if not part_of(name)} for shards in maps]
    first = maps[0]
    for place, other in enumerate(maps):
        for name in sorted(first.keys() ^ other.keys()):
            has, lacks = (0, place) if name in first else (place, 0)
            raise ValueError(f"tensor {name} is in the state of member {has}, and not in that of member {lacks}")
        for name, one in other.items():
            if one[:3] != first[name][:3]:
                texts = [f"{part.dtype} of shape {part.whole}" for part in (first[name], one)]
                raise ValueError(f"tensor {name} is {texts[0]} at member 0, and {texts[1]} at member {place}")


def uncovered(whole: Box, parts: Iterable[Box]) -> list[Box]:
    """What of a box no part has."""
    left = [whole]
    for part in parts:
        rest: list[Box] = []
        for box in left:
            met = box.meet(part)
            rest += [box] if met is None else box.without(met)
        left = rest
        if not left:
            break
    return left


class Move(NamedTuple):
    """A box that one member sends to another, or takes from an image of its own (`source` == `target`)."""

    name: str
    box: Box
    source: int
    """The member."""
    image: int
    """Which of the member's images, by its place in its list."""
    target: int


def plan_moves(sources: Sequence[Sequence[ShardMap]], targets: Sequence[ShardMap], last: int | None = None) -> list[Move]:
    """The moves after which each member has all of its target.

    `sources[member]` has the shard maps of the images that the member holds; several may hold the same elements. An element that
    a member holds is not sent to it, any other once: no plan sends fewer bytes. Of several members that hold what another one
    lacks the one sends that has to send the least so far; the one at `last` only what nobody else has. LookupError names a tensor
    that nobody has all of.
    """
    sent = [0] * len(sources)
    moves: list[Move] = []
    holders: dict[str, list[tuple[int, int, Box]]] = {}
    for member, images in enumerate(sources):
        for image, shards in enumerate(images):
            for name, one in shards.items():
                if one.box.numel:
                    holders.setdefault(name, []).append((member, image, one.box))
    for target, shards in enumerate(targets):
        for name, one in sorted(shards.items()):
            left = [one.box] if one.box.numel else []
            found = holders.get(name, [])
            own = [holder for holder in found if holder[0] == target]
            strangers = (holder for holder in found if holder[0] != target)
            others = sorted(strangers, key=lambda holder: (holder[0] == last, sent[holder[0]]))
            for member, image, box in (*own, *others):
                rest = []
                for wanted in left:
                    met = wanted.meet(box)
                    if met is None:
                        rest.append(wanted)
                        continue
                    moves.append(Move(name, met, member, image, target))
                    sent[member] += met.numel * one.itemsize * (member != target)
                    rest += wanted.without(met)
                left = rest
                if not left:
                    break
            if left:
                raise LookupError(name)
    return moves


def first_holders(maps: Sequence[ShardMap]) -> list[list[str]]:
    """The names of the slices that each member has as the first of those who have the same: each element once, if equal boxes are
    the only ones that meet. ValueError: others do."""
    seen: dict[str, list[Box]] = {}
    found: list[list[str]] = [[] for _ in maps]
    for member, shards in enumerate(maps):
        for name, one in sorted(shards.items()):
            boxes = seen.setdefault(name, [])
            if not one.box.numel or one.box in boxes:
                continue
            if any(one.box.meet(other) for other in boxes):
                raise ValueError(f"tensor {name}: members have parts of it that overlap and are not the same")
            boxes.append(one.box)
            found[member].append(name)
    return found


def same_images(maps: Sequence[ShardMap]) -> list[tuple[int, ...]]:
    """By member: the others that have all that it has."""
    parts = [frozenset((name, one.box) for name, one in shards.items() if one.box.numel) for shards in maps]
    return [tuple(other for other, its in enumerate(parts) if other != member and own <= its) for member, own in enumerate(parts)]


def replicas(maps: Sequence[ShardMap]) -> dict[tuple[int, ...], list[str]]:
    """By members that have some slices alike: the names of these."""
    holders: dict[tuple[str, Box], list[int]] = {}
    for member, shards in enumerate(maps):
        for name, one in shards.items():
            if one.box.numel:
                holders.setdefault((name, one.box), []).append(member)
    found: dict[tuple[int, ...], list[str]] = {}
    for (name, _), members in sorted(holders.items()):
        if len(members) > 1:
            found.setdefault(tuple(members), []).append(name)
    return found
