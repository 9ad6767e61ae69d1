"""From pieces that survive to the state of all members, divided anew: what to restore, who sends what to whom, and doing it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from pccl._core.errors import PCCLTimeoutError, PeerLostError, StateLostError
from pccl._ops.collectives import CollectiveOp
from pccl.state._snapshots.boxes import (
    ALIGN,
    DTYPES,
    Box,
    Move,
    ShardMap,
    Slice,
    first_holders,
    image_offsets,
    list_of,
    part_of,
    plan_moves,
    text_of,
    uncovered,
    whole_number,
)
from pccl.state._snapshots.code import rebuild
from pccl.state._snapshots.images import Sum, hash_slice, runs
from pccl.state._snapshots.placement import lost_members
from pccl.state._snapshots.snapshot import ERA_MAX, ID_MAX, PLACE_MAX, Layout, Order, PieceName
from pccl.state._snapshots.talk import CHUNK_BYTES, GarbledError, Talk, Window

_log = logging.getLogger("pccl.state")

ATTEMPTS = 20
"""To restore a state, while members die."""

STEP_MAX = (1 << 63) - 1

KINDS = ("image", "parity", "values")
"""Of pieces."""


class DamagedError(RuntimeError):
    """What was restored has another hash than the snapshot."""


class Held(NamedTuple):
    """A piece that a member holds, as it tells the others."""

    snapshot: int
    era: int
    step: int
    layout: str
    piece: PieceName
    sums: dict[int, Sum]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Held:
        """From a tree. ValueError: it is malformed."""
        try:
            snapshot, era, step = whole_number(info["snapshot"], ID_MAX, 1), whole_number(info["era"], ERA_MAX), info["step"]
            kind, *place = list_of(info["piece"], 3)
            if kind not in KINDS or len(place) != 2:
                raise ValueError(f"{info['piece']!r:.60} is not a piece")
            name = PieceName(kind, *(whole_number(one, PLACE_MAX) for one in place))
            sums = {
                whole_number(int(member), PLACE_MAX): Sum(*(whole_number(number, (1 << 64) - 1) for number in one))
                for member, one in info["sums"].items()
            }
            return cls(snapshot, era, whole_number(step, STEP_MAX, -STEP_MAX), text_of(info["layout"]), name, sums)
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"a piece lacks {error}") from None


class Source(NamedTuple):
    """What is restored: a snapshot whose images can all be had."""

    id: int
    order: Order
    layout: Layout
    images: dict[int, list[int]]
    """By member of the layout: who holds its image."""
    parity: dict[tuple[int, int], list[int]]
    """By stripe and row: who holds it."""
    values: dict[int, list[int]]
    """By member of the layout: who holds its values."""
    total: Sum
    """The hash of the whole state."""
    sums: Mapping[int, Sum] = MappingProxyType({})
    """By member of the layout: the hash of its image."""

    @property
    def lost(self) -> list[int]:
        """The members of the layout whose images are to be rebuilt."""
        return [member for member in range(len(self.layout.maps)) if member not in self.images]


def choose(held: Sequence[Sequence[Held]], layouts: Mapping[str, Layout], damaged: Iterable[int] = ()) -> Source:
    """The newest snapshot that can be restored from what the members hold. The same at all that know the same.

    `damaged`: ids of snapshots that are not to be taken. StateLostError: there is none.
    """
    found: dict[tuple[Order, int, str], list[tuple[int, Held]]] = {}
    for member, pieces in enumerate(held):
        for piece in pieces:
            if piece.snapshot not in damaged and piece.layout in layouts:
                found.setdefault(((piece.era, piece.step), piece.snapshot, piece.layout), []).append((member, piece))
    why = "no member holds a snapshot"
    for order, id_, layout_id in sorted(found, reverse=True):
        source = _source(id_, order, layouts[layout_id], found[order, id_, layout_id])
        if isinstance(source, Source):
            return source
        if why == "no member holds a snapshot":
            why = source
    raise StateLostError(f"the state is lost: {why}")


def _source(id_: int, order: Order, layout: Layout, found: Sequence[tuple[int, Held]]) -> Source | str:
    """Or why it cannot be restored."""
    images: dict[int, list[int]] = {}
    parity: dict[tuple[int, int], list[int]] = {}
    values: dict[int, list[int]] = {}
    sums: dict[int, Sum] = {}
    for member, one in found:
        kind, place, row = one.piece
        if not layout.has(one.piece):
            _log.warning("%s", f"snapshots: member {member} tells of {kind} {place}.{row}, which the snapshot does not have")
            continue
        sums.update(one.sums)
        if kind == "image":
            images.setdefault(place, []).append(member)
        elif kind == "parity":
            parity.setdefault((place, row), []).append(member)
        else:
            values.setdefault(place, []).append(member)
    count = len(layout.maps)
    rows = [[(stripe, row) in parity for row in range(len(one.parity))] for stripe, one in enumerate(layout.placement.stripes)]
    lost = lost_members(layout.placement, [member in images for member in range(count)], rows)
    lost = [member for member in lost if not _has_replicas(layout.maps[member], [layout.maps[other] for other in images])]
    if lost or not values:
        ranks = ", ".join(map(str, lost))
        asked = layout.redundancy
        kept = f"{asked.parity} copies" if asked.data == 1 else f"code {tuple(asked)}"
        return (
            f"of the snapshot of step {order[1]} the parts of ranks {ranks} of {count} are gone, and what was kept of them "
            f"elsewhere ({kept}) was lost with other ranks"
        )
    unknown = [member for member in range(count) if member not in sums]
    if unknown:
        return f"of the snapshot of step {order[1]} the hash of rank {unknown[0]} is not known"
    total = sum((sums[member] for member in range(count)), Sum(0, 0))
    return Source(id_, order, layout, images, parity, values, total, sums)


def _has_replicas(shards: ShardMap, others: Sequence[ShardMap]) -> bool:
    """Whether other images together have all that an image has."""
    return all(
        not one.box.numel or not uncovered(one.box, (other[name].box for other in others if name in other))
        for name, one in shards.items()
    )


# ---- who sends what ----


class Fetch(NamedTuple):
    """Ranges of the bytes of a piece that one member sends to another."""

    source: int
    target: int
    piece: PieceName
    ranges: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        return sum(end - begin for begin, end in self.ranges)


class Rebuild(NamedTuple):
    """A range of all missing units of a stripe, which a member computes from others."""

    target: int
    stripe: int
    begin: int
    end: int
    units: dict[int, int]
    """By column: the member that holds the unit's image."""
    rows: dict[int, int]
    """By row of parity: the member that holds it."""


class Plan(NamedTuple):
    """What all members do to have their targets."""

    moves: list[Move]
    """From images; `image` is the member of the layout. Those of a rebuilt image have `source` == `target`."""
    rebuilds: list[Rebuild]
    fetches: list[Fetch]


def plan(source: Source, targets: Sequence[ShardMap]) -> Plan:
    """The plan by which each member gets its target; the same at all members. LookupError: the snapshot lacks a tensor.

    What a lost image had is computed by the member that needs it, from the same ranges of as many other units as the code has, of
    which those that it holds need not be sent.
    """
    layout, lost = source.layout, source.lost
    members = len(targets)
    slots = [[slot for slot, holders in sorted(source.images.items()) if member in holders] for member in range(members)]
    slots.append(lost)
    maps = [[layout.maps[slot] for slot in some] for some in slots]
    moves = [
        move._replace(image=slots[move.source][move.image], source=move.target if move.source == members else move.source)
        for move in plan_moves(maps, targets, last=members)
    ]
    fetches = [
        Fetch(move.source, move.target, PieceName("image", move.image), tuple(_ranges(layout, move)))
        for move in moves
        if move.source != move.target
    ]
    rebuilds = _plan_rebuilds(source, moves, members)
    for one in rebuilds:
        for column, holder in one.units.items():
            name, low, high = _unit(one, column, layout)
            if holder != one.target and low < high:
                fetches.append(Fetch(holder, one.target, name, ((low, high),)))
        for row, holder in one.rows.items():
            if holder != one.target:
                fetches.append(Fetch(holder, one.target, PieceName("parity", one.stripe, row), ((one.begin, one.end),)))
    return Plan(moves, rebuilds, fetches)


def _unit(one: Rebuild, column: int, layout: Layout) -> tuple[PieceName, int, int]:
    """Of which image, and where in it, the bytes of a unit are that a rebuild takes or makes."""
    member, _ = layout.placement.stripes[one.stripe].data[column]
    begin, end = layout.range_of(one.stripe, column)
    return PieceName("image", member), min(end, begin + one.begin), min(end, begin + one.end)


def _ranges(layout: Layout, move: Move) -> list[tuple[int, int]]:
    """Where the box of a move lies in its image, in bytes, in the order of the box's memory."""
    shards = layout.maps[move.image]
    part = shards[move.name]
    first = image_offsets(shards)[0][move.name]
    offset = tuple(a - b for a, b in zip(move.box.offset, part.box.offset, strict=True))
    run, starts = runs(part.box.shape, Box(offset, move.box.shape))
    return [(first + start * part.itemsize, first + (start + run) * part.itemsize) for start in starts]


def _plan_rebuilds(source: Source, moves: Sequence[Move], members: int) -> list[Rebuild]:
    layout, lost = source.layout, set(source.lost)
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for move in moves:
        if move.image not in lost:
            continue
        ranges = _ranges(layout, move)
        for number, stripe in enumerate(layout.placement.stripes):
            for column, (member, _) in enumerate(stripe.data):
                if member != move.image:
                    continue
                begin, end = layout.range_of(number, column)
                for low, high in ranges:
                    low, high = max(low, begin) - begin, min(high, end) - begin
                    if low < high:
                        padded = low // ALIGN * ALIGN, -(-high // ALIGN) * ALIGN
                        wanted.setdefault((move.target, number), []).append(padded)
    found = []
    for (target, number), ranges in sorted(wanted.items()):
        stripe = layout.placement.stripes[number]
        units = {
            column: _nearest(source.images[member], target)
            for column, (member, _) in enumerate(stripe.data)
            if member not in lost
        }
        there = [row for row in range(len(stripe.parity)) if (number, row) in source.parity]
        there.sort(key=lambda row: target not in source.parity[number, row])
        rows = {row: _nearest(source.parity[number, row], target) for row in there[: len(stripe.data) - len(units)]}
        found += [Rebuild(target, number, begin, end, units, rows) for begin, end in _merged(ranges)]
    return found


def _nearest(holders: Sequence[int], target: int) -> int:
    return target if target in holders else holders[target % len(holders)]


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, those that meet or touch as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


# ---- doing it ----

Pieces = Callable[[PieceName], torch.Tensor]
"""The bytes of a piece that this process holds, as uint8."""


def carry_out(
    work: Plan, source: Source, talk: Talk, pieces: Pieces, targets: Mapping[str, torch.Tensor], shards: ShardMap
) -> int:
    """Fills the tensors `targets`, of the shapes of `shards`, on all members. Returns the bytes received.

    Each member calls it with the same plan. PeerLostError: a member was lost; the targets are unspecified, the pieces are as
    before.
    """
    own, layout = talk.own, source.layout
    come = _exchange(work, talk, pieces)
    received = sum(content.numel() for content in come.values())
    at = dict.fromkeys(come, 0)

    def next_of(fetch: Fetch) -> torch.Tensor:
        begin = at[fetch.source]
        at[fetch.source] += fetch.nbytes
        return come[fetch.source][begin : begin + fetch.nbytes]

    parts = iter([next_of(fetch) for fetch in work.fetches if fetch.target == own])
    moved = {id(move): next(parts) for move in work.moves if move.target == own and move.source != own}
    rebuilt = {slot: torch.empty(layout.sizes[slot], dtype=torch.uint8, device="cpu") for slot in source.lost}
    for one in work.rebuilds:
        if one.target == own:
            _compute(one, source, pieces, parts, own, rebuilt)
    with torch.no_grad():
        for move in work.moves:
            if move.target != own:
                continue
            content = moved.get(id(move))
            if content is None:
                image = rebuilt[move.image] if move.image in rebuilt else pieces(PieceName("image", move.image))
                found = [image[begin:end] for begin, end in _ranges(layout, move)]
                content = found[0] if len(found) == 1 else torch.cat(found)
            part = shards[move.name]
            aligned = content.clone() if content.storage_offset() % part.itemsize else content
            box = aligned.view(DTYPES[part.dtype]).view(move.box.shape)
            targets[move.name].view(part.box.shape)[move.box.inside(part.box)].copy_(box)
    return received


def _compute(
    one: Rebuild,
    source: Source,
    pieces: Pieces,
    parts: Any,
    own: int,
    rebuilt: Mapping[int, torch.Tensor],
) -> None:
    layout = source.layout
    stripe = layout.placement.stripes[one.stripe]
    size = one.end - one.begin
    units: dict[int, torch.Tensor] = {}
    rows: dict[int, torch.Tensor] = {}
    for column, holder in one.units.items():
        name, low, high = _unit(one, column, layout)
        units[column] = padded = torch.zeros(size, dtype=torch.uint8, device="cpu")
        if low < high:
            padded[: high - low].copy_(pieces(name)[low:high] if holder == own else next(parts))
    for row, holder in one.rows.items():
        name = PieceName("parity", one.stripe, row)
        rows[row] = pieces(name)[one.begin : one.end] if holder == own else next(parts)
    found = rebuild(size, len(stripe.data), units, rows, len(stripe.parity))
    for column, content in found.items():
        name, low, high = _unit(one, column, layout)
        rebuilt[name.place][low:high].copy_(content[: high - low])


def _exchange(work: Plan, talk: Talk, pieces: Pieces) -> dict[int, torch.Tensor]:
    """By source: all bytes that come from there, in the order of the fetches.

    A member that is lost ends its own messages only: those of others go on, since they wait for them.
    """
    own = talk.own
    sizes: dict[tuple[int, int], int] = {}
    for fetch in work.fetches:
        pair = fetch.source, fetch.target
        sizes[pair] = sizes.get(pair, 0) + fetch.nbytes
    come = {
        source: torch.empty(size, dtype=torch.uint8, device="cpu") for (source, target), size in sizes.items() if target == own
    }
    losses: list[PeerLostError | PCCLTimeoutError] = []
    failures: list[BaseException] = []
    garbled: list[int] = []

    def pass_on(content: torch.Tensor, other: int, begin: Callable[[int, str, torch.Tensor], CollectiveOp]) -> None:
        window = Window(talk)
        try:
            for number, part in enumerate(torch.split(content, CHUNK_BYTES)):
                window.add(begin(other, f"fetch {number}", part))
            window.drain()
        except GarbledError:  # the others are told when all is through
            window.forget()
            garbled.append(other)
        except (PeerLostError, PCCLTimeoutError) as error:
            window.forget(gives_up=isinstance(error, PCCLTimeoutError))
            losses.append(error)

    def receive() -> None:
        try:
            for source, target in sorted(sizes):
                if target == own:
                    pass_on(come[source], source, talk.recv)
        except BaseException as error:
            failures.append(error)
            talk.abandon()

    receiver = threading.Thread(target=receive, name="pccl restore", daemon=True)
    try:
        receiver.start()
        for source, target in sorted(sizes):
            if source == own:
                parts = [
                    pieces(fetch.piece)[begin:end]
                    for fetch in work.fetches
                    if (fetch.source, fetch.target) == (own, target)
                    for begin, end in fetch.ranges
                ]
                pass_on(torch.cat(parts), target, talk.send)
    except BaseException as error:
        failures.append(error)
        talk.abandon()  # else two that have failed would wait for each other
    if receiver.is_alive():  # else it has ended, or `start` has failed
        receiver.join()
    for cause in (*failures, *losses):  # what the other thread has later may follow from the first
        raise cause
    for member, (other,) in enumerate(talk.gather([1 + garbled[0] if garbled else 0])):
        if other:
            raise GarbledError(f"members {member} and {other - 1} have sent each other other numbers of bytes than planned")
    return come


def verify(source: Source, talk: Talk, targets: Mapping[str, torch.Tensor], maps: Sequence[ShardMap]) -> None:
    """Compares the hash of the state as it is divided now with that of the snapshot. DamagedError on all alike.

    Of tensors that belong to one member only (`own_name`) it compares those of the images that the targets have all of.
    """
    own, wanted = Sum(0, 0), source.total
    shards = maps[talk.own]
    if any(part_of(name) for one in source.layout.maps for name in one):
        slots = _whole_images(source.layout, maps)
        names = {name for slot in slots for name in source.layout.maps[slot]}
        maps = [{name: one for name, one in some.items() if name in names} for some in maps]
        wanted = sum((source.sums[slot] for slot in slots), Sum(0, 0))
    for name in first_holders(maps)[talk.own]:
        part = shards[name]
        content = targets[name].detach().reshape(part.box.shape).cpu()
        own += hash_slice(name, part, content)
    total = sum((Sum.of_signed(low, high) for low, high in talk.gather(own.signed())), Sum(0, 0))
    if total != wanted:
        raise DamagedError(f"what was restored of the snapshot of step {source.order[1]} has another hash than the snapshot")


def _whole_images(layout: Layout, maps: Sequence[ShardMap]) -> list[int]:
    """The members of the layout whose tensors the maps have all of, each element once or in equal boxes."""
    boxes: dict[str, set[Box]] = {}
    for shards in maps:
        for name, one in shards.items():
            boxes.setdefault(name, set()).add(one.box)

    def whole(name: str, one: Slice) -> bool:
        found = [box for box in boxes.get(name, ()) if box.numel]
        return sum(box.numel for box in found) == one.box.numel and not uncovered(one.box, found)

    return [slot for slot, shards in enumerate(layout.maps) if all(whole(*item) for item in shards.items())]


def misfit(shards: ShardMap, known: Mapping[str, Slice], part: str = "") -> str:
    """The first difference between the tensors of a process and those of a state, of names that begin with `part`; "": none."""
    own, theirs = ({name for name in some if name.startswith(part)} for some in (shards, known))
    for name in sorted(own ^ theirs):
        return f"{name} is {'here, and not' if name in own else 'not here, but'} in the state of the run"
    for name in sorted(own):
        if shards[name][:3] != known[name][:3]:
            texts = [f"{one.dtype} of shape {one.whole}" for one in (shards[name], known[name])]
            return f"{name} is {texts[0]} here, and {texts[1]} in the state of the run"
    return ""


def is_whole(maps: Sequence[ShardMap]) -> bool:
    """Whether members have all parts of the tensors of the first of them."""
    return _has_replicas({name: one._replace(box=Box((0,) * len(one.whole), one.whole)) for name, one in maps[0].items()}, maps)
