"""What the links of a communicator are like: `Communicator.links` (docs/decisions/far-links.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pccl._core.calls import NativeHandle, call
from pccl._core.library import _ffi
from pccl._core.names import rank_label, read_struct, uuid_in
from pccl._exports import publish


@dataclass(frozen=True, kw_only=True)
class Link:
    """All connections of this peer to one other member of its group, together.

    Every two members have a control connection. Neighbours in the ring have more connections, called lanes. A number that the
    kernel does not report is 0.

    uuid, address, rank, name: the other member; an empty name means that it has none.
    connected: the control connection exists.
    by_memory: large tensors pass through memory of this host.
    far: the round trip is 2 ms or longer, so the number of lanes is tuned.
    relayed: the connections pass through a relay, whose line bounds their rate.
    paths: own address, address of the other end or of the relay, and number of connections between the two.
    lanes, lanes_in_use: lanes to the other member; those of them that carry large tensors.
    reason: why so many lanes are in use.
    congestion_control: the kernel's name of it; empty if unknown.
    shortest_round_trip_seconds, round_trip_seconds: the shortest recent round trip; the current one, with queues.
    bytes_per_second: sent and acknowledged in the last second of operations.
    limit_bytes_per_second: rate limit of all lanes together, which keeps queues short; 0 for none.
    acked_bytes: sent and acknowledged so far.
    retransmitted_share: share of the segments that were retransmitted, 0 to 1.
    busy_seconds: time with bytes in flight. window_limited_seconds and buffer_limited_seconds: of this, time with a full receive
    window of the other side, and with a full send buffer.
    """

    uuid: UUID
    address: str
    rank: int
    connected: bool
    by_memory: bool
    far: bool
    lanes: int
    lanes_in_use: int
    congestion_control: str
    shortest_round_trip_seconds: float
    round_trip_seconds: float
    bytes_per_second: float
    acked_bytes: int
    retransmitted_share: float
    busy_seconds: float
    window_limited_seconds: float
    buffer_limited_seconds: float
    limit_bytes_per_second: float
    reason: str
    name: str = ""
    relayed: bool = False
    paths: tuple[tuple[str, str, int], ...] = ()

    @property
    def lanes_spare(self) -> int:
        """Lanes that were made and do not carry large tensors now."""
        return self.lanes - self.lanes_in_use

    def __str__(self) -> str:
        if self.by_memory:
            return f"{rank_label(self.rank, self.name, self.uuid)}: {self.reason}"
        lanes = f"{self.lanes_in_use} of {self.lanes} lanes" if self.lanes else "no lanes"
        return (
            f"{rank_label(self.rank, self.name, self.uuid)}: {lanes}, {self.congestion_control or 'unknown'}, "
            f"{self.shortest_round_trip_seconds * 1e3:.1f} ms, {self.bytes_per_second * 8e-6:.0f} Mbit/s"
            f"{', relayed' if self.relayed else ''}: {self.reason}"
        )


def links_of(handle: NativeHandle) -> tuple[Link, ...]:
    """One for each other member of the group, by rank."""
    room, count = 0, _ffi.new("size_t *", 1)
    while count[0] > room:  # the first time, and where members have come meanwhile
        room = count[0]
        out = _ffi.new("struct link_report[]", room)
        call(handle, "pccl_ext_links", out, room, count, name="links")
    links = [_link(out[i]) for i in range(count[0])]
    return tuple(sorted(links, key=lambda link: link.rank))


def _path(c: Any) -> tuple[str, str, int]:
    local, remote = (_ffi.string(text).decode().rpartition(":")[0] for text in (c.local, c.remote))
    return local, remote, c.connections


def _link(c: Any) -> Link:
    return read_struct(
        Link,
        c,
        uuid=uuid_in(c.uuid),
        acked_bytes=int(c.acked_bytes),
        retransmitted_share=min(c.retransmits / c.segments, 1.0) if c.segments else 0.0,
        paths=tuple(_path(c.paths[i]) for i in range(c.path_count)),
    )


publish(globals())
