"""What reduces and collectives return."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from pccl._exports import publish


class Contributors(NamedTuple):
    """Who is in the elements from `start` to `stop` of a result. AVG has divided them by `len(peers)`.

    No peers: the range was not reduced; in place it holds the input.
    """

    start: int
    stop: int
    peers: frozenset[UUID]


@dataclass
class ReduceInfo:
    """Contributors of a reduce, which is what AVG divides by, and element bytes sent (`tx_bytes`) and received (`rx_bytes`).

    With `retry`, ranges of a result may have different contributors: `contributors` has them in order, and `local_world_size`
    is the number of those that the op was ended with. Without it `contributors` is empty: they are the members of the group.
    """

    local_world_size: int
    tx_bytes: int
    rx_bytes: int
    contributors: tuple[Contributors, ...] = field(default=(), kw_only=True)

    @property
    def world_size(self) -> int:
        """The same as `local_world_size`."""
        return self.local_world_size


class CollectiveInfo(NamedTuple):
    """What a collective did.

    `world_size` is how many members took part, as in `ReduceInfo`. `ranges` tells who is in which elements of a result, where
    members were lost on the way of a collective that goes on without them, and is empty otherwise.
    """

    world_size: int
    tx_bytes: int
    rx_bytes: int
    ranges: tuple[Contributors, ...] = ()

    @property
    def contributors(self) -> int:
        """The former name of `world_size`. Elsewhere `contributors` are the members in each range of a result."""
        warnings.warn("CollectiveInfo.contributors is now called world_size", DeprecationWarning, stacklevel=2)
        return self.world_size


class ParityInfo(NamedTuple):
    """What `check_parity` found: `world_size` members hold the same state now.

    If they did not before, `entry` is the name of the first entry that differed, and `minority` are the members that held other
    bytes than the majority. They were repaired or expelled.
    """

    world_size: int
    entry: str | None = None
    minority: tuple[UUID, ...] = ()


publish(globals())
