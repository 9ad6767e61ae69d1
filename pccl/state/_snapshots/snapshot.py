"""A snapshot: how a state is divided among members, what one process holds of it, and what a member gives to it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import torch

from pccl._core.errors import PCCLTimeoutError, PeerLostError
from pccl.state._local.tree import TreeError, decode, encode
from pccl.state._snapshots.boxes import (
    ALIGN,
    ShardMap,
    first_holders,
    image_offsets,
    list_of,
    replicas,
    require_same_tensors,
    same_images,
    shards_from,
    shards_tree,
    text_of,
    whole_number,
)
from pccl.state._snapshots.code import MEMBERS_MAX
from pccl.state._snapshots.images import Memory, Sum
from pccl.state._snapshots.placement import Placement, Redundancy, place, unit_bytes
from pccl.state._snapshots.talk import GarbledError, Talk

ERA_MAX = 1 << 60
"""Of a snapshot, and more than there ever are."""

ID_MAX = (1 << 56) - 1
"""Of a snapshot."""

MEMBERS_OF_RUN = 1024
"""Work on a layout grows with the square of its members."""

PLACE_MAX = 1 << 20
"""Of members, stripes and rows."""

Order = tuple[int, int]
"""Era and step of a snapshot: the greater, the newer. An era ends when a state is restored."""


class Layout:
    """How a state is divided among members, and where its redundancy lies."""

    def __init__(self, hosts: Sequence[str], maps: Sequence[ShardMap], redundancy: Redundancy) -> None:
        require_same_tensors(maps)
        self.hosts = list(hosts)
        self.maps = list(maps)
        self.redundancy = redundancy
        self.sizes = [image_offsets(shards)[1] for shards in maps]
        self.first = first_holders(maps)
        self.replicas = replicas(maps)
        self.replicas_of: list[list[tuple[int, ...]]] = [[] for _ in maps]
        """By member: the keys of `replicas` that it is in."""
        for members in self.replicas:
            for member in members:
                self.replicas_of[member].append(members)
        self.placement: Placement = place(hosts, redundancy, same_images(maps))
        self.id = hashlib.blake2b(self.encoded(), digest_size=7).hexdigest()

    def encoded(self) -> bytes:
        maps = [shards_tree(shards) for shards in self.maps]
        return bytes(encode({"hosts": self.hosts, "maps": maps, "redundancy": list(self.redundancy)}))

    @classmethod
    def decoded(cls, content: bytes) -> Layout:
        """What `encoded` gave. ValueError: it is damaged."""
        tree = decode(content, numbers_and_text=True)
        try:
            hosts = [text_of(host) for host in list_of(tree["hosts"], MEMBERS_OF_RUN)]
            maps = list(map(shards_from, list_of(tree["maps"], MEMBERS_OF_RUN)))
            redundancy = Redundancy(*(whole_number(one, MEMBERS_MAX) for one in tree["redundancy"]))
            if not 0 < len(hosts) == len(maps):
                raise ValueError(f"{len(hosts)} hosts of {len(maps)} members")
            return cls(hosts, maps, redundancy)
        except (TypeError, LookupError, AttributeError) as error:
            raise TreeError(f"the layout of a snapshot is malformed: {error}") from None

    def unit(self, stripe: int) -> int:
        return unit_bytes(self.sizes, self.placement, self.placement.stripes[stripe], ALIGN)

    def has(self, piece: PieceName) -> bool:
        if piece.kind != "parity":
            return piece.place < len(self.maps)
        stripes = self.placement.stripes
        return piece.place < len(stripes) and piece.row < len(stripes[piece.place].parity)

    def size_of(self, piece: PieceName) -> int | None:
        """The bytes of a piece; None: any number."""
        if piece.kind == "values":
            return None
        return self.sizes[piece.place] if piece.kind == "image" else self.unit(piece.place)

    def range_of(self, stripe: int, column: int) -> tuple[int, int]:
        """Where a unit lies in its member's image; it is shorter than the others where the image ends, or empty."""
        member, unit = self.placement.stripes[stripe].data[column]
        size = self.sizes[member]
        # The same in all stripes of the member, whose units may be larger: its units have each byte of its image once.
        each = -(-size // self.placement.units[member] // ALIGN) * ALIGN
        return min(size, unit * each), min(size, (unit + 1) * each)


class PieceName(NamedTuple):
    """What a piece is: the image of a member, or a row of the parity of a stripe."""

    kind: str
    """`image`, `parity`, or `values`: what the member told beside the tensors."""
    place: int
    """The member, or the stripe."""
    row: int = 0


@dataclass
class Snapshot:
    """What one process holds of a snapshot."""

    id: int
    era: int
    step: int
    layout: Layout
    pieces: dict[PieceName, Memory] = field(default_factory=dict)
    sums: dict[int, Sum] = field(default_factory=dict)
    """The hashes of the members' images, as far as they are known here."""
    complete: bool = False
    """Known to be stored by all."""
    bare: bool = False
    """Without redundancy: the snapshot before stays beside it."""

    @property
    def order(self) -> Order:
        return self.era, self.step


class SnapshotError(RuntimeError):
    """A snapshot was not taken; the one before it stays. The text says why."""


class RefusedError(SnapshotError):
    """A snapshot was refused for a reason of the program, so the next one would be, too."""


class SpoiledError(SnapshotError):
    """Another member has failed."""


SHARED_FAILURES = (SnapshotError, PeerLostError, PCCLTimeoutError, GarbledError)
"""Failures of a snapshot that the other members hear of, or have as well."""


@dataclass
class Report:
    """What a member's last snapshot has cost, in bytes and seconds."""

    step: int = -1
    complete: bool = False
    state_bytes: int = 0
    """The size of the own image."""
    sent_bytes: int = 0
    received_bytes: int = 0
    copy_seconds: float = 0.0
    """In which the optimizer had to wait, if it came."""
    seconds: float = 0.0
    why: str = ""
    """Why it is not complete."""


@dataclass(eq=False)
class Contribution:
    """What a member gives to a snapshot, of which all members tell the same step and members."""

    step: int
    tensors: Mapping[str, torch.Tensor]
    """Its part of the state, as local tensors."""
    shards: ShardMap
    values: bytes
    members: tuple[UUID, ...]
    own: int
    """Its place among the members."""
    problem: Exception | None = None
    """Why it cannot take part; the snapshot then fails on all."""

    def __post_init__(self) -> None:
        self.members = tuple(self.members)


@dataclass(eq=False, kw_only=True)
class Job(Contribution):
    """A snapshot under way."""

    era: int
    """At first the own one; then the highest of any member."""
    talk: Talk
    report: Report
    copied: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set after `copied`, also if the snapshot failed or never began."""
    failure: BaseException | None = None
    """Why it is not complete, when it has ended."""
    unkept: Exception | None = None
    """Why the holder of this host has not got the pieces of a complete one."""
    thread: threading.Thread = field(init=False)
    """Takes the snapshot. It may live a moment longer than the snapshot."""
    _unclaimed: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Returns True to the first caller only.

        The first caller is `thread`, which then takes the snapshot, or a starter that failed, which then drops it.
        """
        return self._unclaimed.acquire(blocking=False)
